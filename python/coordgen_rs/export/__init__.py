"""From a checkpoint to a bundle, without torch.

Data flow: `checkpoints/` opens a checkpoint as a `ModelConfig` and `Tensor`s that are read piece by
piece -> for CPU, `cpu/exporter.py` lays them out by `layers.py` and `stored.py`
(`cpu/quantize.py`, `cpu/int4.py`) and builds one graph per block (`cpu/graph.py`); where a text
decides how weights are rounded, the float model reads it first (`calibration/`), for
`cpu/equalisation.py` or `cpu/compensation.py`; for Qualcomm's HTP, `qnn/exporter.py` goes through
`qnn/graph.py` (floats), `calibration/texts.py`, `text_model.py` and `calibration.py` (ranges on
real text), `encodings.py` and `quantize.py` (fixed point), and ends with a `report.py` ->
`bundle.py` adds the manifest, and `writer.py` makes the directory appear at once.
"""

from coordgen_rs.export.cpu.exporter import export_checkpoint

__all__ = ["export_checkpoint"]
