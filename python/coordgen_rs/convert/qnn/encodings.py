"""Encodings that graphs share with each other and with the host, chosen from calibrated ranges.

In: ranges of all float graphs. Out: an encoding for every input and output. What lies inside of one
graph only is left to onnxruntime's quantiser (`quantize.py`, which also tells the rules).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coordgen_rs.bundle.qnn import CacheEncodings, Encoding, QnnTarget, Soc
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.qnn.calibration import Ranges
from coordgen_rs.convert.qnn.graph import (
    REPEATED_MASK,
    has_bare_keys,
    key_value_names,
    masked_scores_name,
    scores_name,
)

CacheType = Literal["uint8", "uint16"]

_SOFTMAX_FLOOR = 24.0
"""Scores that far below a row's best weigh 4e-11 each: nothing, even if there are thousands."""


def choose_encodings(
    ranges: Sequence[Ranges],
    layers: Sequence[range],
    cache_type: CacheType,
    soc: Soc,
    most_rotation: float = 1.0,
) -> QnnTarget:
    """The encodings of a model for a chip.

    Args:
        ranges: The ranges of the blocks in order, then of the head.
        layers: The layers of the blocks.
        cache_type: How keys and values are stored.
        soc: The chip.
        most_rotation: Largest cosine or sine.
    """
    blocks = list(zip(ranges, layers, strict=False))
    spans = [
        high - low
        for block, numbers in blocks
        for low, high in (block.by_name[scores_name(number)] for number in numbers)
    ]
    # Scores are clipped to their range, so no masked one can come near any visible one.
    mask_value = -float(math.ceil(max(spans) + _SOFTMAX_FLOOR))
    caches = [_cache(block, number, cache_type) for block, numbers in blocks for number in numbers]
    return QnnTarget(
        soc=soc.name,
        soc_model=soc.model,
        htp_arch=soc.htp_arch,
        mask_value=mask_value,
        mask=Encoding.of_range(mask_value, 0),
        rotation=Encoding.symmetric(most_rotation),
        hidden=[Encoding.of_range(*block.by_name["hidden"]) for block in ranges],
        caches=caches,
        logits=Encoding.of_range(*ranges[-1].by_name["logits"]),
    )


def _cache(block: Ranges, number: int, cache_type: CacheType) -> CacheEncodings:
    """One encoding for past and new keys, one for past and new values."""
    key, value = (
        Encoding.symmetric(block.largest([key_value_names(number, kind)[1]]), cache_type)
        for kind in ("key", "value")
    )
    return CacheEncodings(key, value, key, value)


@dataclass(frozen=True)
class Conversion:
    """A value of 16 bits that one node reads in the encoding of a cache of 8 bits."""

    encoding: Encoding
    reader: str
    """The node's name."""


def block_encodings(
    config: ModelConfig, index: int, layers: range, ranges: Ranges, shared: QnnTarget
) -> tuple[dict[str, Encoding], dict[str, Conversion]]:
    """The given encodings of block `index`, and what is converted on its way to caches of 8 bits.

    Only what is stored has 8 bits. Left to onnxruntime's quantiser, that would also convert what
    enters the value weights, and the weights of attention: SmolLM2 then has 91.5 % of float's
    choices. Keys that are neither normed nor rotated have their encoding, like values, from where
    they are computed.

    Returns:
        Both by tensor.
    """
    encodings = {
        "hidden": shared.hidden[index],
        "hidden_out": shared.hidden[index + 1],
        "mask": shared.mask,
    }
    # No layer of the block may be rotated.
    encodings |= {name: shared.rotation for name in ("cos", "sin") if name in ranges.by_name}
    if REPEATED_MASK in ranges.by_name:
        encodings[REPEATED_MASK] = shared.mask
    converted: dict[str, Conversion] = {}
    for number in layers:
        cache = shared.caches[number]
        for kind, encoding in (("key", cache.key), ("value", cache.value)):
            names = key_value_names(number, kind)
            encodings |= dict.fromkeys(names, encoding)
            if encoding.dtype == "uint8":
                rotary = (f"layer_{number}.{kind}_rotary.{part}" for part in _ROTARY_PARTS)
                tensors = [it for it in (*rotary, f"{names[1]}.by_row") if it in ranges.by_name]
                converted |= dict.fromkeys(tensors, Conversion(encoding, names[1]))
            elif kind == "value" or has_bare_keys(config, number):
                # Reshape and Transpose keep an encoding, so it begins where values are computed.
                encodings[f"layer_{number}.{kind[0]}_proj"] = encoding
        low, high = ranges.by_name[scores_name(number)]
        encodings[masked_scores_name(number)] = Encoding.of_range(low + shared.mask_value, high)
    return encodings, converted


_ROTARY_PARTS = ("centred_first", "centred_second", "centred_rest")
