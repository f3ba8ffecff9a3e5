"""The sections of the bench: what each shows and needs, and the document of all that is measured.

In: names and settings; measured sections. Out: names that can be measured; JSON types, which
`schema.json` describes. To add one: write a function from a `Workbench` to a `Section`, enter it
below, and its columns in `schema.json`.
"""

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, NamedTuple

from coordgen_rs.errors import OptionError
from coordgen_rs.errors.json_text import parse_json
from coordgen_rs.lab.bench.condition import Condition
from coordgen_rs.lab.bench.drafting import measure_edgellm, measure_methods, measure_sources
from coordgen_rs.lab.bench.energy_and_memory import measure_energy, measure_memory
from coordgen_rs.lab.bench.latency import measure_breakdown, measure_latency
from coordgen_rs.lab.bench.switching import measure_graphs, measure_switching
from coordgen_rs.lab.bench.widths import measure_chunk_size, measure_draft_length
from coordgen_rs.lab.bench.workbench import Settings, Workbench
from coordgen_rs.lab.tables import Section

SCHEMA_VERSION = 1


class Measurement(NamedTuple):
    """How a section is measured.

    Attributes:
        measure: Measures it.
        about: What it shows, for `--help`.
        needs_data: Whether it needs prompts.
        may_stream: Whether it can be measured on a target that is streamed.
        drafts_streamed: Whether it needs one, and a draft model.
    """

    measure: Callable[[Workbench], Section]
    about: str
    needs_data: bool = True
    may_stream: bool = True
    drafts_streamed: bool = False


SECTIONS: dict[str, Measurement] = {
    "methods": Measurement(measure_methods, "published methods and ours: speed, acceptance"),
    "edgellm": Measurement(
        measure_edgellm,
        "what each part of EdgeLLM adds (its Figure 22), streamed",
        drafts_streamed=True,
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
        measure_draft_length, "time of a step by its rows (Figure 6)", False, may_stream=False
    ),
    "chunk-size": Measurement(
        measure_chunk_size, "prefill and decode at one size (Figure 5)", False, may_stream=False
    ),
    "memory": Measurement(measure_memory, "peak memory, a process each (Figure 12)"),
    "latency": Measurement(measure_latency, "time to the first token and between tokens (Fig. 10)"),
    "energy": Measurement(measure_energy, "joules a token, where a source exists (Figure 11)"),
}
"""All sections, in the order in which they are measured."""


def chosen_sections(names: Sequence[str] | None, settings: Settings) -> list[str]:
    """The sections to measure, in their order.

    Args:
        names: What was asked for; None for all that the settings allow.
        settings: With or without data, a draft model and a memory budget.

    Raises:
        OptionError: A section needs prompts where there are none, cannot be measured on a target
            that is streamed, or needs one and a draft model.
    """
    streams = settings.memory_budget is not None
    drafts_streamed = streams and settings.draft_model is not None
    chosen = []
    for name, entry in SECTIONS.items():
        can_be = drafts_streamed if entry.drafts_streamed else entry.may_stream or not streams
        if not (can_be if names is None else name in names):
            continue
        if entry.needs_data and settings.data is None:
            raise OptionError(f"section {name!r} needs DATA, a file of prompts")
        if not can_be and entry.drafts_streamed:
            raise OptionError(f"section {name!r} needs --draft-model and --memory-budget")
        if not can_be:
            raise OptionError(f"section {name!r} cannot be measured with a memory budget")
        chosen.append(name)
    return chosen


def document(
    condition: Condition, sections: Sequence[Section], *, is_complete: bool
) -> dict[str, Any]:
    """All figures as JSON types.

    Args:
        condition: The condition of all sections.
        sections: Those that were measured.
        is_complete: Whether these are all that were asked for.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "is_complete": is_complete,
        "condition": condition.to_json(),
        "sections": {section.name: section.to_json() for section in sections},
    }


def schema() -> dict[str, Any]:
    """The JSON schema of `document`."""
    text = resources.files(__package__).joinpath("schema.json").read_bytes()
    parsed: dict[str, Any] = parse_json(text, "schema.json")
    return parsed
