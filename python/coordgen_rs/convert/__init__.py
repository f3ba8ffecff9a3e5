"""From a checkpoint to a bundle, without torch.

Data flow: `families/checkpoint.py` opens one (`containers/`) as a `ModelConfig` and `Tensor`s that
are read piece by piece -> for CPU, `cpu/exporter.py` writes layers (`cpu/layers.py`,
`weight_file.py`, with `quantize.py`) and builds a graph of their names (`cpu/graph.py`); where a
text decides how weights are rounded, the float model reads it first (`texts.py`,
`cpu/calibration.py`, `gptq.py`); for Qualcomm's HTP, `qnn/exporter.py` turns the residual stream
(`qnn/outliers.py`), prepares layer after layer (`qnn/preparation.py`, with `qnn/graph.py`,
`qnn/calibration.py`, `gptq.py`; results are kept by `qnn/resume.py`), then chooses bits and
encodings (`qnn/quantize.py`), and ends with a report (`qnn/report.py`) -> `writer.py` adds the
tokenizer, chat templates and the manifest, and makes the directory appear at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordgen_rs.convert.cpu.exporter import export_checkpoint
    from coordgen_rs.convert.families.checkpoint import fetched, open_checkpoint

__all__ = ["export_checkpoint", "fetched", "open_checkpoint"]

_MODULES = {
    "export_checkpoint": "cpu.exporter",
    "fetched": "families.checkpoint",
    "open_checkpoint": "families.checkpoint",
}
"""Loaded on first use: the command that says what exporting needs stands in this package."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
