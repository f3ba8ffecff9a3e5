"""From a checkpoint to a bundle, without torch.

Data flow: `checkpoints/` opens a checkpoint as a `ModelConfig` and `Tensor`s that are read piece by
piece -> `layers.py` and `stored.py` lay them out (`cpu/quantize.py`) -> `cpu/graph.py` builds one
graph per block and width -> `writer.py` makes the directory appear at once, manifest included.
For Qualcomm's HTP `qnn/exporter.py` takes the same checkpoint through `qnn/graph.py` (floats),
`calibration_texts.py`, `text_model.py` and `calibration.py` (ranges on real text), `encodings.py`
and `quantize.py` (fixed point), and ends with a `report.py`.
"""

from coordgen_rs.export.cpu.exporter import export_checkpoint

__all__ = ["export_checkpoint"]
