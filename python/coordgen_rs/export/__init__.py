"""From a checkpoint to a bundle, without torch.

Data flow: `checkpoint.py` opens (config.py, rope.py, safetensors_file.py, llama2c.py) -> `Tensor`s
read by pieces -> `layers.py` and `stored.py` lay them out (quantize.py) -> `graph.py` builds one
graph per block and width -> `writer.py` makes the directory appear at once, manifest included.
For Qualcomm's HTP `qnn_exporter.py` takes the same checkpoint through `qnn_graph.py` (floats),
`calibration_texts.py`, `text_model.py` and `qnn_calibration.py` (ranges on real text),
`qnn_encodings.py` and `qnn_quantize.py` (fixed point), and ends with a `qnn_report.py`.
"""

from coordgen_rs.export.exporter import export_checkpoint

__all__ = ["export_checkpoint"]
