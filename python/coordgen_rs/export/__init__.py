"""From a checkpoint to a bundle, without torch.

Data flow: `checkpoint.py` opens (config.py, rope.py, safetensors_file.py, llama2c.py) -> `Tensor`s
read by pieces -> `layers.py` and `stored.py` lay them out (quantize.py) -> `graph.py` builds one
graph per block and width -> `writer.py` makes the directory appear at once, manifest included.
"""

from coordgen_rs.export.exporter import export_checkpoint

__all__ = ["export_checkpoint"]
