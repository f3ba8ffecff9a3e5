"""The graphs of a bundle that are run: one context length, all widths that every part has.

In: the graphs of all binaries. Out: a `GenieModel`: parts by width, and the encodings that they
share. Graphs that disagree about anything that passes between them are refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from coordgen_rs.bundle.qnn import CacheEncodings, Encoding
from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genie.binary import GraphFacts, TensorFacts
from coordgen_rs.formats.genie.graphs import (
    CACHE_INDEX,
    COS,
    MASK,
    SIN,
    GraphName,
    PartGraph,
    read_graph,
)

_OF_LAYERS = {MASK, COS, SIN, CACHE_INDEX}
"""What a graph reads that has layers."""


@dataclass(frozen=True)
class GenieModel:
    """The graphs that are run.

    Attributes:
        context: Tokens that a row attends to (CL).
        parts: Graphs of each part by width, narrowest first.
        mask: How the graphs read the mask.
        cos: How they read cosines.
        sin: How they read sines.
        embedded: How the first part reads embedded tokens; None if it reads ids.
        hidden: How hidden states are passed behind each part but the last.
        logits: How logits are given.
        caches: The encodings of keys and values, by layer.
        num_kv_heads: Heads of keys and values.
        head_dim: Width of a head.
        hidden_size: Width of hidden states; None for one part that reads ids.
        vocab_size: Number of logits.
    """

    context: int
    parts: list[dict[int, PartGraph]]
    mask: Encoding
    cos: Encoding
    sin: Encoding
    embedded: Encoding | None
    hidden: list[Encoding]
    logits: Encoding
    caches: list[CacheEncodings]
    num_kv_heads: int
    head_dim: int
    hidden_size: int | None
    vocab_size: int

    @property
    def widths(self) -> list[int]:
        """The numbers of rows for which there are graphs, ascending."""
        return list(self.parts[0])


def choose_model(
    where: str, graphs: Mapping[str, tuple[str, GraphFacts]], most_context: int
) -> GenieModel:
    """Choose the context length and the widths, and read their graphs.

    Args:
        where: The bundle, for messages.
        graphs: File and facts of each graph, by its name.
        most_context: Tokens of a request that the bundle's config allows.

    Raises:
        BundleError: There are no such graphs, or they do not fit together.
    """
    known = {name: at for name in graphs if (at := GraphName.of(name)) is not None}
    if not known:
        said = ", ".join(sorted(graphs)[:3]) or "none"
        raise BundleError(f"{where}: no graph has a name of the form arN_clM_s_of_t, but {said}")
    totals = {at.num_parts for at in known.values()}
    if len(totals) > 1:
        raise BundleError(f"{where}: its graphs are of {sorted(totals)} parts, expected one number")
    context, widths = _chosen(where, known.values(), totals.pop(), most_context)
    parts: dict[int, dict[int, PartGraph]] = {}
    for name, at in sorted(known.items(), key=lambda item: (item[1].part, item[1].rows)):
        if at.context == context and at.rows in widths:
            if at.rows in parts.setdefault(at.part, {}):
                raise BundleError(f"{where}: more than one graph is {name}")
            parts[at.part][at.rows] = read_graph(where, name, at, *graphs[name])
    return _joined(where, context, [parts[number] for number in sorted(parts)])


def _chosen(
    where: str, names: Iterable[GraphName], num_parts: int, most_context: int
) -> tuple[int, set[int]]:
    """The longest context that is allowed, and the widths that all parts have for it.

    Raises:
        BundleError: There is no width that can verify a draft.
    """
    found: dict[int, dict[int, set[int]]] = {}
    for at in names:
        found.setdefault(at.context, {}).setdefault(at.rows, set()).add(at.part)
    every = set(range(1, num_parts + 1))
    whole = {
        context: {rows for rows, parts in by_rows.items() if parts == every}
        for context, by_rows in found.items()
    }
    usable = {context: rows for context, rows in whole.items() if rows and max(rows) > 1}
    if not usable:
        raise BundleError(
            f"{where}: no width of more than one row has graphs of all {num_parts} parts, so no "
            "draft can be verified"
        )
    allowed = [context for context in usable if context <= most_context] or [min(usable)]
    return max(allowed), usable[max(allowed)]


def _joined(where: str, context: int, parts: list[dict[int, PartGraph]]) -> GenieModel:
    """The model of some parts, once all that passes between them was compared.

    Raises:
        BundleError: They keep caches inside, or disagree.
    """
    graphs = [graph for part in parts for graph in part.values()]
    layered = [graph for graph in graphs if graph.slots]
    if not layered or any(it.facts.inputs.keys() & _OF_LAYERS for it in graphs if not it.slots):
        raise BundleError(
            f"{where}: its graphs keep keys and values inside (genie_model), so that no draft can "
            "be taken back"
        )
    ins = [(it, it.facts.inputs) for it in graphs]
    outs = [graph.facts.outputs[graph.out] for graph in parts[-1].values()]
    embedded = [inputs[graph.embedded] for graph, inputs in ins if graph.embedded]
    passed = [inputs[graph.hidden_in] for graph, inputs in ins if graph.hidden_in]
    passed += [it.facts.outputs[it.out] for part in parts[:-1] for it in part.values()]
    sizes = {facts.shape[-1] for facts in (*embedded, *passed)}
    mask, cos, sin = (
        _same(where, name, [graph.facts.inputs[name] for graph in layered])
        for name in (MASK, COS, SIN)
    )
    return GenieModel(
        context=context,
        parts=parts,
        mask=mask,
        cos=cos,
        sin=sin,
        embedded=_same(where, "inputs_embeds", embedded) if embedded else None,
        hidden=[_hidden(where, *pair) for pair in pairwise(parts)],
        logits=_same(where, "logits", outs),
        caches=_caches(where, parts),
        num_kv_heads=_one(where, "heads of keys and values", {it.num_kv_heads for it in layered}),
        head_dim=_one(where, "widths of heads", {it.head_dim for it in layered}),
        hidden_size=_one(where, "hidden sizes", sizes) if sizes else None,
        vocab_size=_one(where, "numbers of logits", {facts.shape[-1] for facts in outs}),
    )


def _caches(where: str, parts: list[dict[int, PartGraph]]) -> list[CacheEncodings]:
    """The encodings of all layers, each in one part, the same at all widths.

    Raises:
        BundleError: They are not.
    """
    found: dict[int, CacheEncodings] = {}
    for part in parts:
        by_width = [_layers(graph) for graph in part.values()]
        if any(other != by_width[0] for other in by_width):
            raise BundleError(
                f"{where}: the widths {list(part)} encode keys and values differently, so they "
                "cannot share a cache"
            )
        if found.keys() & by_width[0].keys():
            raise BundleError(f"{where}: two parts have the same layer")
        found |= by_width[0]
    if sorted(found) != list(range(len(found))):
        raise BundleError(f"{where}: its graphs have the layers {sorted(found)}")
    return [found[layer] for layer in range(len(found))]


def _layers(graph: PartGraph) -> dict[int, CacheEncodings]:
    return {
        layer: CacheEncodings(
            key.past_encoding, value.past_encoding, key.new_encoding, value.new_encoding
        )
        for (layer, key), value in zip(graph.keys.items(), graph.values.values(), strict=True)
    }


def _hidden(where: str, part: dict[int, PartGraph], after: dict[int, PartGraph]) -> Encoding:
    """How hidden states pass from a part to the one after it."""
    passed = [graph.facts.outputs[graph.out] for graph in part.values()]
    passed += [it.facts.inputs[it.hidden_in] for it in after.values() if it.hidden_in]
    number = next(iter(part.values())).at.part
    return _same(where, f"the hidden states behind part {number}", passed)


def _same(where: str, what: str, tensors: list[TensorFacts]) -> Encoding:
    first, *others = {facts.encoding for facts in tensors}
    if first is None or others:
        raise BundleError(f"{where}: its graphs encode {what} differently")
    return first


def _one(where: str, what: str, found: set[int]) -> int:
    if len(found) != 1:
        raise BundleError(f"{where}: its graphs have different {what}: {sorted(found)}")
    return found.pop()
