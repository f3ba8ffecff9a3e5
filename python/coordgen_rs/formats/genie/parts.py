"""One graph of a part of the model: which of its tensors is what, and whether it can be run.

In: a graph's name and facts. Out: a `PartGraph`. Every input is known by its name, because ONNX
Runtime matches unknown names by position without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordgen_rs.bundle.qnn import Encoding
from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genie.tensors import (
    CACHE_INDEX,
    COS,
    EMBEDDED,
    LOGITS,
    MASK,
    SIN,
    TOKENS,
    CacheName,
    GraphFacts,
    GraphName,
    TensorFacts,
)

_SCALES = 1e-30, 1e30
_FIXED = (TOKENS, *EMBEDDED, MASK, COS, SIN, CACHE_INDEX)


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
    keys: dict[int, CacheTensors] = field(default_factory=dict)
    values: dict[int, CacheTensors] = field(default_factory=dict)
    num_kv_heads: int = 0
    head_dim: int = 0
    slots: int = 0

    @property
    def is_native(self) -> bool:
        """Whether new rows are written in the graph, among all slots, at `cache_index`."""
        return CACHE_INDEX in self.facts.inputs

    @property
    def embedded(self) -> str | None:
        """The input that takes embedded tokens, if there is one."""
        return next((name for name in EMBEDDED if name in self.facts.inputs), None)


class PartReader:
    """Reads graphs, and names where one is not as it must be.

    Args:
        where: The bundle, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def read(self, name: str, file: str, facts: GraphFacts) -> PartGraph:
        """The graph of a name.

        Raises:
            BundleError: It lacks something, or has something that is not known.
        """
        at = GraphName.of(name)
        if at is None:
            raise self._error(name, "its name is not of the form arN_clM_s_of_t")
        rest = [each for each in facts.inputs if each not in _FIXED and CacheName.of(each) is None]
        takes_tokens = any(each in facts.inputs for each in (TOKENS, *EMBEDDED))
        if takes_tokens != (at.part == 1) or len(rest) != (at.part != 1):
            said = ", ".join(rest) or "nothing but caches"
            raise self._error(name, f"it reads {said}, expected tokens or one hidden state")
        outs = [each for each in facts.outputs if CacheName.of(each) is None]
        if len(outs) != 1 or (outs == [LOGITS]) != (at.part == at.num_parts):
            said = ", ".join(outs) or "keys and values alone"
            raise self._error(name, f"it gives {said}, expected one hidden state, or logits last")
        keys, values = (self._caches(name, facts, kind) for kind in ("key", "value"))
        graph = PartGraph(name, file, at, facts, rest[0] if rest else None, outs[0], keys, values)
        self._check_rows(graph)
        return self._with_layers(graph) if keys or values else graph

    def _caches(self, name: str, facts: GraphFacts, kind: str) -> dict[int, CacheTensors]:
        """The keys or values of all layers."""
        pasts, news = (_by_layer(tensors, kind, way) for tensors, way in _ways(facts))
        if pasts.keys() != news.keys():
            layers = sorted(pasts.keys() ^ news.keys())
            raise self._error(name, f"the {kind}s of layer {layers[0]} are not both read and given")
        found = {}
        for layer, past in pasts.items():
            new = news[layer]
            if list(past) != list(new) or list(past) not in ([None], list(range(len(past)))):
                raise self._error(name, f"the {kind}s of layer {layer} lack a head")
            found[layer] = CacheTensors(
                tuple(past.values()),
                tuple(new.values()),
                self._encoding(name, {each: facts.inputs[each] for each in past.values()}),
                self._encoding(name, {each: facts.outputs[each] for each in new.values()}),
            )
        return found

    def _with_layers(self, graph: PartGraph) -> PartGraph:
        """The same graph, with the sizes of its caches."""
        inputs, outputs, rows = graph.facts.inputs, graph.facts.outputs, graph.at.rows
        if graph.keys.keys() != graph.values.keys():
            raise self._error(graph.name, "keys and values are not of the same layers")
        first = inputs[next(iter(graph.keys.values())).past[0]].shape
        if len(first) != 4:
            raise self._error(graph.name, f"its keys have the shape {first}, expected 4 sizes")
        kv_heads, _, head_dim, slots = first
        heads = len(next(iter(graph.keys.values())).past)
        for tensors, is_key in ((graph.keys, True), (graph.values, False)):
            for cache in tensors.values():
                if len(cache.past) != heads:
                    raise self._error(graph.name, "its layers have different numbers of heads")
                for names, facts, size in ((cache.past, inputs, slots), (cache.new, outputs, rows)):
                    last = (head_dim, size) if is_key else (size, head_dim)
                    self._check_shapes(graph.name, facts, names, (kv_heads, 1, *last))
        expected = graph.at.context - (0 if graph.is_native else rows)
        if slots != expected:
            raise self._error(graph.name, f"its caches have {slots} slots, expected {expected}")
        self._check_shapes(graph.name, inputs, (MASK,), (1, 1, rows, graph.at.context))
        self._check_shapes(graph.name, inputs, (COS, SIN), (1, 1, rows, head_dim // 2))
        for name in (MASK, COS, SIN):
            self._encoding(graph.name, {name: inputs[name]})
        if graph.is_native:
            self._check_shapes(graph.name, inputs, (CACHE_INDEX,), (1,), "int32")
        return PartGraph(
            **{
                **vars(graph),
                "num_kv_heads": kv_heads if heads == 1 else heads,
                "head_dim": head_dim,
                "slots": slots,
            }
        )

    def _check_rows(self, graph: PartGraph) -> None:
        """Check what goes in and out of a part beside caches."""
        inputs, outputs, rows = graph.facts.inputs, graph.facts.outputs, graph.at.rows
        out = outputs[graph.out].shape
        if graph.out == LOGITS and rows > 1 and out[:-1] in ((1, 1), (1,), (1, 1, 1)):
            raise self._error(
                graph.name,
                "it gives the logits of the last row only (genie_model), so that no draft can be "
                "verified",
            )
        hidden = [(outputs, graph.out)]
        if graph.hidden_in is not None:
            hidden.append((inputs, graph.hidden_in))
        if graph.embedded is not None:
            hidden.append((inputs, graph.embedded))
        for tensors, each in hidden:
            shape = tensors[each].shape
            if len(shape) < 2 or shape[-2] != rows or any(size != 1 for size in shape[:-2]):
                raise self._error(graph.name, f"{each} has the shape {shape}, expected {rows} rows")
            self._encoding(graph.name, {each: tensors[each]})
        if TOKENS in inputs:
            self._check_shapes(graph.name, inputs, (TOKENS,), (1, rows), "int32")

    def _check_shapes(
        self,
        graph: str,
        tensors: Mapping[str, TensorFacts],
        names: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str | None = None,
    ) -> None:
        for each in names:
            if each not in tensors:
                raise self._error(graph, f"it has no {each}")
            found = tensors[each]
            if found.shape != shape:
                raise self._error(graph, f"{each} has the shape {found.shape}, expected {shape}")
            if dtype is not None and found.dtype != dtype:
                raise self._error(graph, f"{each} is {found.dtype}, expected {dtype}")

    def _encoding(self, graph: str, tensors: Mapping[str, TensorFacts]) -> Encoding:
        """The encoding that some tensors have in common."""
        first: Encoding | None = None
        for each, facts in tensors.items():
            if not facts.is_flat:
                raise self._error(
                    graph, f"{each} is in the tiles of HTP's matrix unit, which nobody documents"
                )
            if facts.encoding is None:
                raise self._error(
                    graph, f"{each} is {facts.dtype}, expected uint8 or uint16 with one scale"
                )
            first = first or facts.encoding
            most = 255 if facts.dtype == "uint8" else 65_535
            is_scale = _SCALES[0] <= facts.encoding.scale <= _SCALES[1]
            if not is_scale or not 0 <= facts.encoding.zero_point <= most:
                raise self._error(graph, f"{each} is encoded as {facts.encoding}, which cannot be")
            if facts.encoding != first:
                raise self._error(graph, f"{each} is encoded unlike {next(iter(tensors))}")
        if first is None:
            raise self._error(graph, "a layer has no keys or values")
        return first

    def _error(self, graph: str, what: str) -> BundleError:
        return BundleError(f"{self._where}: graph {graph}: {what}")


def _ways(facts: GraphFacts) -> tuple[tuple[dict[str, TensorFacts], bool], ...]:
    return (facts.inputs, True), (facts.outputs, False)


def _by_layer(
    tensors: Mapping[str, TensorFacts], kind: str, is_input: bool
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
