"""The sections of the bench, one a file: each has a function from a `Workbench` to a `Section`.

To add one: write its file, enter its function below, and its columns in `../reporting/schema.json`.
"""

from collections.abc import Callable
from typing import NamedTuple

from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.reporting.section import Section
from coordgen_rs.lab.bench.sections.ablation import measure_ablation
from coordgen_rs.lab.bench.sections.breakdown import measure_breakdown
from coordgen_rs.lab.bench.sections.chunk_size import measure_chunk_size
from coordgen_rs.lab.bench.sections.draft_length import measure_draft_length
from coordgen_rs.lab.bench.sections.energy import measure_energy
from coordgen_rs.lab.bench.sections.graphs import measure_graphs
from coordgen_rs.lab.bench.sections.latency import measure_latency
from coordgen_rs.lab.bench.sections.memory import measure_memory
from coordgen_rs.lab.bench.sections.methods import measure_methods
from coordgen_rs.lab.bench.sections.sources import measure_sources
from coordgen_rs.lab.bench.sections.switching import measure_switching


class Measurement(NamedTuple):
    """How a section is measured.

    Attributes:
        measure: Measures it.
        about: What it shows, for `--help`.
        needs_data: Whether it needs prompts.
        may_stream: Whether it can be measured on a target that is streamed.
    """

    measure: Callable[[Workbench], Section]
    about: str
    needs_data: bool = True
    may_stream: bool = True


SECTIONS: dict[str, Measurement] = {
    "methods": Measurement(measure_methods, "published methods and ours: speed, acceptance"),
    "ablation": Measurement(
        measure_ablation, "calibration and reuse beside other drafters (CoordGen, Table 4)"
    ),
    "sources": Measurement(measure_sources, "auto with one source more, and one less"),
    "graphs": Measurement(
        measure_graphs, "drafting and switching, each on and off (Table 3)", may_stream=False
    ),
    "switching": Measurement(
        measure_switching, "all strategies of loading graphs", needs_data=False
    ),
    "breakdown": Measurement(measure_breakdown, "where an answer's time goes (Figure 13)"),
    "draft-length": Measurement(
        measure_draft_length,
        "time of a step by its rows (Figure 6)",
        needs_data=False,
        may_stream=False,
    ),
    "chunk-size": Measurement(
        measure_chunk_size,
        "prefill and decode at one size (Figure 5)",
        needs_data=False,
        may_stream=False,
    ),
    "memory": Measurement(measure_memory, "peak memory, a process each (Figure 12)"),
    "latency": Measurement(measure_latency, "time to the first token and between tokens (Fig. 10)"),
    "energy": Measurement(measure_energy, "joules a token, where a source exists (Figure 11)"),
}
"""All sections, in the order in which they are measured."""
