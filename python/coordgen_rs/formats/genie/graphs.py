"""One graph of a part of the model: which of its tensors is what, and whether it can be run.

In: a graph's name and facts. Out: a `PartGraph`. Names are those that AI Hub gives graphs and
tensors of language models. Every input is known by its name, because ONNX Runtime matches unknown
names by position without a word.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from coordgen_rs.bundle.qnn import Encoding
from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genie.binary import GraphFacts, TensorFacts

_GRAPH = re.compile(r"(?:\w+?_)?ar([1-9]\d{0,3})_cl([1-9]\d{0,6})_([1-9]\d?)_of_([1-9]\d?)")
_CACHE = re.compile(
    r"past_(?:nativekvcache__)?(key|value)_(\d{1,3})(?:_h(?:ead_)?(\d{1,3}))?_(in|out)"
)

TOKENS = "input_ids"
EMBEDDED = ("inputs_embeds", "input_embeds")
MASK, COS, SIN = "attention_mask", "position_ids_cos", "position_ids_sin"
CACHE_INDEX = "cache_index"
LOGITS = "logits"

_SCALES = 1e-30, 1e30
FILLED = (TOKENS, *EMBEDDED, MASK, COS, SIN, CACHE_INDEX)
"""Inputs that a run is filled with; others are caches and hidden states."""


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


@dataclass(frozen=True)
class CacheTensors:
    """The keys or values of a layer.

    Attributes:
        past: Names of inputs, one for all heads or one for each.
        new: Names of outputs, likewise.
        past_encoding: How the graph reads them.
        new_encoding: How it gives them out.
    """

    past: tuple[str, ...]
    new: tuple[str, ...]
    past_encoding: Encoding
    new_encoding: Encoding


@dataclass(frozen=True)
class PartGraph:
    """A graph of a part of the model.

    Attributes:
        name: The graph's name.
        file: Name of its context binary.
        at: The parts of its name.
        facts: The facts about all its inputs and outputs.
        hidden_in: The input that holds hidden states; None in the first part.
        out: The output with hidden states, or with logits in the last part.
        keys: The key tensors, by layer.
        values: The value tensors, by layer.
        num_kv_heads: 0 in a part without layers.
        head_dim: 0 in a part without layers.
        slots: Slots of the caches that it reads; 0 in a part without layers.
    """

    name: str
    file: str
    at: GraphName
    facts: GraphFacts
    hidden_in: str | None
    out: str
    keys: dict[int, CacheTensors]
    values: dict[int, CacheTensors]
    num_kv_heads: int
    head_dim: int
    slots: int

    @property
    def is_native(self) -> bool:
        """Whether new rows are written in the graph, among all slots, at `cache_index`."""
        return CACHE_INDEX in self.facts.inputs

    @property
    def embedded(self) -> str | None:
        """The input that takes embedded tokens, if there is one."""
        return next((name for name in EMBEDDED if name in self.facts.inputs), None)


def read_graph(where: str, name: str, at: GraphName, file: str, facts: GraphFacts) -> PartGraph:
    """Read a graph.

    Args:
        where: The bundle, for messages.
        name: The graph's name.
        at: The parts of the name.
        file: Name of its context binary.
        facts: What its inputs and outputs are.

    Raises:
        BundleError: It lacks something, or has something that is not known.
    """
    reader = _GraphReader(f"{where}: graph {name}", at, facts)
    hidden_in, out = reader.hidden_in(), reader.out()
    keys, values = reader.caches("key"), reader.caches("value")
    reader.check_rows(hidden_in, out)
    sizes = reader.cache_sizes(keys, values) if keys or values else (0, 0, 0)
    return PartGraph(name, file, at, facts, hidden_in, out, keys, values, *sizes)


class _GraphReader:
    """Reads one graph, and says where it is not as it must be.

    Args:
        where: The graph, for messages.
        at: The parts of its name.
        facts: What its inputs and outputs are.
    """

    def __init__(self, where: str, at: GraphName, facts: GraphFacts) -> None:
        self._where, self._at = where, at
        self._inputs, self._outputs = facts.inputs, facts.outputs

    def hidden_in(self) -> str | None:
        """The input that holds hidden states; None in the first part, which reads tokens."""
        rest = [each for each in self._inputs if each not in FILLED and not CacheName.of(each)]
        is_first = self._at.part == 1
        takes_tokens = any(each in self._inputs for each in (TOKENS, *EMBEDDED))
        if takes_tokens != is_first or len(rest) != (not is_first):
            said = ", ".join(rest) or "nothing but caches"
            raise self._error(f"it reads {said}, expected tokens or one hidden state")
        return rest[0] if rest else None

    def out(self) -> str:
        """The output with hidden states, or with logits in the last part."""
        outs = [each for each in self._outputs if not CacheName.of(each)]
        if len(outs) != 1 or (outs == [LOGITS]) != (self._at.part == self._at.num_parts):
            said = ", ".join(outs) or "keys and values alone"
            raise self._error(f"it gives {said}, expected one hidden state, or logits last")
        return outs[0]

    def caches(self, kind: str) -> dict[int, CacheTensors]:
        """The keys or values of all layers."""
        pasts = _by_layer(self._inputs, kind, is_input=True)
        news = _by_layer(self._outputs, kind, is_input=False)
        if pasts.keys() != news.keys():
            layers = sorted(pasts.keys() ^ news.keys())
            raise self._error(f"the {kind}s of layer {layers[0]} are not both read and given")
        found = {}
        for layer, past in pasts.items():
            new = news[layer]
            if list(past) != list(new) or list(past) not in ([None], list(range(len(past)))):
                raise self._error(f"the {kind}s of layer {layer} lack a head")
            found[layer] = CacheTensors(
                tuple(past.values()),
                tuple(new.values()),
                self._encoding({each: self._inputs[each] for each in past.values()}),
                self._encoding({each: self._outputs[each] for each in new.values()}),
            )
        return found

    def cache_sizes(
        self, keys: Mapping[int, CacheTensors], values: Mapping[int, CacheTensors]
    ) -> tuple[int, int, int]:
        """Heads of keys and values, width of a head, and slots of all layers' caches."""
        inputs, rows, context = self._inputs, self._at.rows, self._at.context
        if keys.keys() != values.keys():
            raise self._error("keys and values are not of the same layers")
        first = next(iter(keys.values())).past
        shape = inputs[first[0]].shape
        if len(shape) != 4:
            raise self._error(f"its keys have the shape {shape}, expected 4 sizes")
        kv_heads, _, head_dim, slots = shape
        for tensors, is_key in ((keys, True), (values, False)):
            for cache in tensors.values():
                if len(cache.past) != len(first):
                    raise self._error("its layers have different numbers of heads")
                ways = (cache.past, inputs, slots), (cache.new, self._outputs, rows)
                for names, facts, size in ways:
                    last = (head_dim, size) if is_key else (size, head_dim)
                    self._check_shapes(facts, names, (kv_heads, 1, *last))
        is_native = CACHE_INDEX in inputs
        expected = context - (0 if is_native else rows)
        if slots != expected:
            raise self._error(f"its caches have {slots} slots, expected {expected}")
        self._check_shapes(inputs, (MASK,), (1, 1, rows, context))
        self._check_shapes(inputs, (COS, SIN), (1, 1, rows, head_dim // 2))
        for name in (MASK, COS, SIN):
            self._encoding({name: inputs[name]})
        if is_native:
            self._check_shapes(inputs, (CACHE_INDEX,), (1,), "int32")
        return kv_heads if len(first) == 1 else len(first), head_dim, slots

    def check_rows(self, hidden_in: str | None, out: str) -> None:
        """Check what goes in and out beside caches."""
        inputs, rows, shape = self._inputs, self._at.rows, self._outputs[out].shape
        if out == LOGITS and rows > 1 and shape[:-1] in ((1, 1), (1,), (1, 1, 1)):
            raise self._error(
                "it gives the logits of the last row only (genie_model), so that no draft can be "
                "verified"
            )
        hidden = {out: self._outputs[out]}
        hidden |= {name: inputs[name] for name in (hidden_in or "", *EMBEDDED) if name in inputs}
        for name, facts in hidden.items():
            shape = facts.shape
            if len(shape) < 2 or shape[-2] != rows or any(size != 1 for size in shape[:-2]):
                raise self._error(f"{name} has the shape {shape}, expected {rows} rows")
            self._encoding({name: facts})
        if TOKENS in inputs:
            self._check_shapes(inputs, (TOKENS,), (1, rows), "int32")

    def _check_shapes(
        self,
        tensors: Mapping[str, TensorFacts],
        names: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str | None = None,
    ) -> None:
        for each in names:
            if each not in tensors:
                raise self._error(f"it has no {each}")
            found = tensors[each]
            if found.shape != shape:
                raise self._error(f"{each} has the shape {found.shape}, expected {shape}")
            if dtype is not None and found.dtype != dtype:
                raise self._error(f"{each} is {found.dtype}, expected {dtype}")

    def _encoding(self, tensors: Mapping[str, TensorFacts]) -> Encoding:
        """The encoding that some tensors have in common."""
        first: Encoding | None = None
        for each, facts in tensors.items():
            encoding = facts.encoding
            if not facts.is_flat:
                raise self._error(
                    f"{each} is in the tiles of HTP's matrix unit, which nobody documents"
                )
            if encoding is None:
                raise self._error(
                    f"{each} is {facts.dtype}, expected uint8 or uint16 with one scale"
                )
            first = first or encoding
            most = 255 if facts.dtype == "uint8" else 65_535
            is_scale = _SCALES[0] <= encoding.scale <= _SCALES[1]
            if not is_scale or not 0 <= encoding.zero_point <= most:
                raise self._error(f"{each} is encoded as {encoding}, which cannot be")
            if encoding != first:
                raise self._error(f"{each} is encoded unlike {next(iter(tensors))}")
        if first is None:
            raise self._error("a layer has no keys or values")
        return first

    def _error(self, what: str) -> BundleError:
        return BundleError(f"{self._where}: {what}")


def _by_layer(
    tensors: Mapping[str, TensorFacts], kind: str, *, is_input: bool
) -> dict[int, dict[int | None, str]]:
    """Names by layer and head, both ascending."""
    found: dict[int, dict[int | None, str]] = {}
    for each in tensors:
        name = CacheName.of(each)
        if name is not None and (name.kind, name.is_input) == (kind, is_input):
            found.setdefault(name.layer, {})[name.head] = each
    return {layer: dict(sorted(found[layer].items(), key=_head)) for layer in sorted(found)}


def _head(item: tuple[int | None, str]) -> int:
    return -1 if item[0] is None else item[0]
