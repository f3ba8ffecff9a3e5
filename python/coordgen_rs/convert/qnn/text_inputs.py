"""What a graph reads besides hidden states where a text is read at once, from its start.

In: the configuration and a number of tokens. Out: mask, rotations, and a past that nobody sees.
"""

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle import rotation
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.qnn.graph import key_value_names

Array = NDArray[np.float32]

_MASKED = -1e4


def text_inputs(config: ModelConfig, layers: range, num_rows: int) -> dict[str, Array]:
    """All inputs of a block but `hidden`.

    The past has one slot, because ONNX Runtime reduces no empty tensors.
    """
    mask = np.full((1, 1, num_rows, 1 + num_rows), _MASKED, np.float32)
    mask[0, 0, :, 1:] = np.where(np.tri(num_rows, dtype=bool), 0, np.float32(_MASKED))
    cos, sin = rotation.tables(num_rows, config.inv_freq, config.rope_factor or 1.0)
    past = np.zeros((1, config.num_kv_heads, 1, config.head_dim), np.float32)
    return {
        "mask": mask,
        "cos": cos[np.newaxis, np.newaxis],
        "sin": sin[np.newaxis, np.newaxis],
        **{key_value_names(it, kind)[0]: past for it in layers for kind in ("key", "value")},
    }
