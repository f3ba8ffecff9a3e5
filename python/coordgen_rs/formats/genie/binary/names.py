"""Names of graphs and tensors in context binaries of language models, as AI Hub gives them."""

import re
from dataclasses import dataclass
from typing import Literal, cast

_GRAPH = re.compile(r"(?:\w+?_)?ar([1-9]\d{0,3})_cl([1-9]\d{0,6})_([1-9]\d?)_of_([1-9]\d?)")
_CACHE = re.compile(
    r"past_(?:nativekvcache__)?(key|value)_(\d{1,3})(?:_h(?:ead_)?(\d{1,3}))?_(in|out)"
)

TOKENS = "input_ids"
EMBEDDED = ("inputs_embeds", "input_embeds")
MASK, COS, SIN = "attention_mask", "position_ids_cos", "position_ids_sin"
CACHE_INDEX = "cache_index"
LOGITS = "logits"


@dataclass(frozen=True)
class GraphName:
    """What a graph's name tells, such as `token_ar1_cl4096_2_of_3`.

    Attributes:
        rows: Tokens of a run (AR).
        context: Tokens that they attend to, themselves included (CL).
        part: Number of the part of the model, from 1.
        num_parts: How many there are.
    """

    rows: int
    context: int
    part: int
    num_parts: int

    @classmethod
    def of(cls, name: str) -> "GraphName | None":
        """What a name tells; None if it is not such a name."""
        found = _GRAPH.fullmatch(name)
        return None if found is None else cls(*map(int, found.groups()))


@dataclass(frozen=True)
class CacheName:
    """What the name of a tensor of keys or values tells, such as `past_key_3_in`.

    Attributes:
        kind: Keys or values.
        layer: Number of the layer in the model, from 0.
        head: Number of the head, from 0; None for a tensor of all heads.
        is_input: Whether it is read; else it is given out.
    """

    kind: Literal["key", "value"]
    layer: int
    head: int | None
    is_input: bool

    @classmethod
    def of(cls, name: str) -> "CacheName | None":
        """What a name tells; None if it is not such a name."""
        found = _CACHE.fullmatch(name)
        if found is None:
            return None
        kind, layer, head, way = found.groups()
        return cls(
            cast(Literal["key", "value"], kind),
            int(layer),
            None if head is None else int(head),
            way == "in",
        )
