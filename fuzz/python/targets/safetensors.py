"""A safetensors file: any file is refused by name, or every tensor of it is read or refused.

The first byte says what follows: a file, or a header, a NUL and the data behind it.
"""

import numpy as np

from coordgen_rs.convert.containers.hugging_face import open_safetensors
from coordgen_rs.errors import CheckpointError
from scratch import holding

IS_JSON = True
PREFIX = 1


def run(data: bytes) -> None:
    """Open the file and read all that it promises."""
    form, content = data[:1], data[1:]
    if form != b"r":
        header, _, rows = content.partition(b"\0")
        content = len(header).to_bytes(8, "little") + header + rows
    try:
        tensors = open_safetensors(holding("model.safetensors", content))
    except CheckpointError:
        return
    for tensor in tensors.values():
        try:
            rows = list(tensor.pieces())
        except CheckpointError:
            continue
        assert all(piece.dtype == np.float32 for piece in rows)
        assert np.concatenate(rows).shape == tensor.shape
