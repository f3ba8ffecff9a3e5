"""A checkpoint of Hugging Face: whatever its JSON files say, it is refused by name, or opens as
sizes that agree with each other.

The input is one object with the contents of `config`, `generation` and `index`.
"""

import json
import math
from contextlib import suppress

from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import CheckpointError
from scratch import FOLDER, holding, without

IS_JSON = True
_FILES = {
    "config": "config.json",
    "generation": "generation_config.json",
    "index": "model.safetensors.index.json",
}
_HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
_WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)


def run(data: bytes) -> None:
    """Open the checkpoint."""
    holding("model.safetensors", _WEIGHTS)
    contents = None
    with suppress(ValueError, RecursionError):
        contents = json.loads(data)
    files = {"config.json": data}
    if isinstance(contents, dict):
        files = {
            file: json.dumps(contents[name]).encode("utf-8", "surrogatepass")
            for name, file in _FILES.items()
            if name in contents
        }
    for file in _FILES.values():
        if file in files:
            holding(file, files[file])
        else:
            without(file)
    try:
        checkpoint = open_checkpoint(FOLDER)
    except CheckpointError:
        return
    config = checkpoint.config
    assert 2 <= len(config.inv_freq) * 2 <= config.head_dim
    assert all(math.isfinite(frequency) for frequency in config.inv_freq)
    assert math.isfinite(config.rms_norm_eps)
    assert config.num_heads % config.num_kv_heads == 0
    assert all(0 <= token < config.vocab_size for token in config.end_token_ids)
    for tensor in checkpoint.tensors.values():
        assert tensor.load().shape == tensor.shape
