"""The graphs of a bundle that are run: one context length, all widths that every part has.

In: the graphs of all binaries. Out: a `GenieModel`: parts by width, and the encodings that they
share. Graphs that disagree about anything that passes between them are refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from coordgen_rs.bundle.qnn import CacheEncodings, Encoding
from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genie.parts import CacheTensors, PartGraph, PartReader
from coordgen_rs.formats.genie.tensors import CACHE_INDEX, COS, MASK, SIN, GraphFacts, GraphName

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
    named = {name: GraphName.of(name) for name in graphs}
    known = {name: at for name, at in named.items() if at is not None}
    if not known:
        said = ", ".join(sorted(graphs)[:3]) or "none"
        raise BundleError(f"{where}: no graph has a name of the form arN_clM_s_of_t, but {said}")
    totals = {at.num_parts for at in known.values()}
    if len(totals) > 1:
        raise BundleError(f"{where}: its graphs are of {sorted(totals)} parts, expected one number")
    context, widths = _chosen(where, known.values(), totals.pop(), most_context)
    reader = PartReader(where)
    parts: dict[int, dict[int, PartGraph]] = {}
    for name, at in sorted(known.items(), key=lambda item: (item[1].part, item[1].rows)):
        if at.context == context and at.rows in widths:
            if at.rows in parts.setdefault(at.part, {}):
                raise BundleError(f"{where}: more than one graph is {name}")
            parts[at.part][at.rows] = reader.read(name, *graphs[name])
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
    caches = _caches(where, parts)
    hidden = [_hidden(where, *pair) for pair in pairwise(parts)]
    out = {graph.facts.outputs[graph.out].shape[-1] for graph in parts[-1].values()}
    embedded = [graph.facts.inputs[graph.embedded] for graph in graphs if graph.embedded]
    sizes = {
        graph.facts.outputs[graph.out].shape[-1] for part in parts[:-1] for graph in part.values()
    }
    sizes |= {facts.shape[-1] for facts in embedded}
    sizes |= {g.facts.inputs[g.hidden_in].shape[-1] for g in graphs if g.hidden_in is not None}
    return GenieModel(
        context=context,
        parts=parts,
        mask=_same(where, MASK, [graph.facts.inputs[MASK].encoding for graph in layered]),
        cos=_same(where, COS, [graph.facts.inputs[COS].encoding for graph in layered]),
        sin=_same(where, SIN, [graph.facts.inputs[SIN].encoding for graph in layered]),
        embedded=_same(where, "inputs_embeds", [e.encoding for e in embedded])
        if embedded
        else None,
        hidden=hidden,
        logits=_same(
            where, "logits", [g.facts.outputs[g.out].encoding for g in parts[-1].values()]
        ),
        caches=caches,
        num_kv_heads=_one(where, "heads of keys and values", {g.num_kv_heads for g in layered}),
        head_dim=_one(where, "widths of heads", {graph.head_dim for graph in layered}),
        hidden_size=_one(where, "hidden sizes", sizes) if sizes else None,
        vocab_size=_one(where, "numbers of logits", out),
    )


def _caches(where: str, parts: list[dict[int, PartGraph]]) -> list[CacheEncodings]:
    """The encodings of all layers, each in one part, the same at all widths.

    Raises:
        BundleError: They are not.
    """
    found: dict[int, CacheEncodings] = {}
    for part in parts:
        by_width = [_layers(graph.keys, graph.values) for graph in part.values()]
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


def _layers(
    keys: dict[int, CacheTensors], values: dict[int, CacheTensors]
) -> dict[int, CacheEncodings]:
    return {
        layer: CacheEncodings(
            keys[layer].past_encoding,
            values[layer].past_encoding,
            keys[layer].new_encoding,
            values[layer].new_encoding,
        )
        for layer in keys
    }


def _hidden(where: str, part: dict[int, PartGraph], after: dict[int, PartGraph]) -> Encoding:
    """How hidden states pass from a part to the one after it."""
    passed = [graph.facts.outputs[graph.out].encoding for graph in part.values()]
    passed += [g.facts.inputs[g.hidden_in].encoding for g in after.values() if g.hidden_in]
    return _same(
        where, f"the hidden states behind part {next(iter(part.values())).at.part}", passed
    )


def _same(where: str, what: str, encodings: list[Encoding | None]) -> Encoding:
    first = encodings[0]
    if first is None or any(other != first for other in encodings):
        raise BundleError(f"{where}: its graphs encode {what} differently")
    return first


def _one(where: str, what: str, found: set[int]) -> int:
    if len(found) != 1:
        raise BundleError(f"{where}: its graphs have different {what}: {sorted(found)}")
    return found.pop()
