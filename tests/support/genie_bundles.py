"""Bundles in the form of Qualcomm AI Hub's, made from one of ours and compiled for the emulator.

In: an opened bundle for QNN. Out: a directory as AI Hub Models 0.65 writes it for Genie and GenieX
(`metadata.json` beside the config), or as 0.46 did. The graphs are the bundle's own: quantised the
same, with the names, shapes and layouts of AI Hub's. One binary holds one graph, because the
emulator cannot load more; on a device one holds all widths of a part.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import genie_facts
from coordgen_rs import Bundle
from coordgen_rs.bundle.qnn import CacheEncodings, Encoding, Soc
from coordgen_rs.formats.genie.binary import GraphFacts, TensorFacts, read_binary
from coordgen_rs.runtime.qnn.provider import qnn_session, version

CONFIG_NAME = "genie_config.json"


@dataclass(frozen=True)
class Form:
    """How a bundle is to look.

    Attributes:
        widths: AR of its graphs.
        context: CL of its graphs.
        prefixes: What stands before a graph's name, by width.
        has_metadata: Whether there is a metadata.json, as since 0.65.
        is_native: Whether new rows are written in the graph, at `cache_index`.
        by_head: Whether each head has tensors of its own.
        has_lookup: Whether the embedding is a file.
        has_4_sizes: Whether hidden states between parts are (1, 1, rows, hidden size).
    """

    widths: Sequence[int] = (1, 32)
    context: int = 160
    prefixes: Callable[[int], str] = lambda rows: ""
    has_metadata: bool = True
    is_native: bool = False
    by_head: bool = False
    has_lookup: bool = False
    has_4_sizes: bool = False


def write_genie(bundle: Bundle, out: Path, form: Form) -> Path:
    """Write a bundle of that form; its graphs are those of `bundle`."""
    out.mkdir(parents=True)
    num_parts, binaries, graphs = len(bundle.manifest.blocks), [], {}
    for part in range(num_parts):
        for rows in form.widths:
            ending = f"ar{rows}_cl{form.context}_{part + 1}_of_{num_parts}"
            name, file = form.prefixes(rows) + ending, f"part_{part + 1}_ar{rows}.bin"
            compile_graph(bundle, part_model(bundle, part, rows, form), out / file, name)
            graphs |= read_binary(out / file).graphs
            binaries.append(file)
    _write_texts(bundle, out, form, binaries, graphs)
    return out


def compile_graph(bundle: Bundle, model: onnx.ModelProto, out: Path, name: str) -> None:
    """Compile a graph for the bundle's chip, as a binary whose graph has that name."""
    target = bundle.manifest.qnn
    assert target is not None
    folder = out.parent / "compiling"
    folder.mkdir()
    path, made = folder / "graph.onnx", folder / "graph_context.onnx"
    onnx.save(model, path)
    entries = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "0",
        "ep.context_file_path": str(made),
    }
    qnn_session(path, Soc(target.soc, target.soc_model, target.htp_arch, ""), None, entries)
    (binary,) = folder.glob("*.bin")
    (node,) = onnx.load(made).graph.node
    out.write_bytes(renamed(binary.read_bytes(), node.name, name))
    shutil.rmtree(folder)


def renamed(binary: bytes, old: str, new: str) -> bytes:
    """A context binary whose graph has another, shorter name: ONNX Runtime chooses its own."""
    before, after = old.encode(), new.encode().ljust(len(old), b"\0")
    length, shorter = (len(name).to_bytes(4, "little") for name in (old, new))
    binary = binary.replace(length + before, shorter + after)
    return binary.replace(before, after)


class _Editor:
    """A part's graph under construction."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self._front: list[onnx.NodeProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def encoding(self, name: str, encoding: Encoding) -> list[str]:
        scale = self.constant(f"{name}.scale", np.array(encoding.scale, np.float32))
        zero = self.constant(f"{name}.zero", np.array(encoding.zero_point, encoding.dtype))
        return [scale, zero]

    def rename(self, old: str, new: str) -> None:
        for node in self.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]

    def quantized(
        self, name: str, encoding: Encoding, inputs: list[str], node: Any
    ) -> list[onnx.NodeProto]:
        """`node(real inputs)` between the conversions that QNN folds into it."""
        parameters = self.encoding(name, encoding)
        reals = [f"{name}.real.{each}" for each in inputs]
        before = [
            helper.make_node("DequantizeLinear", [each, *parameters], [real])
            for each, real in zip(inputs, reals, strict=True)
        ]
        after = helper.make_node("QuantizeLinear", [f"{name}.result", *parameters], [name])
        return [*before, *node(reals, f"{name}.result"), after]

    def front(self, nodes: list[onnx.NodeProto]) -> None:
        self._front += nodes

    def finish(self) -> onnx.ModelProto:
        nodes = [*self._front, *self.graph.node]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        return self.model


def part_model(bundle: Bundle, part: int, rows: int, form: Form) -> onnx.ModelProto:
    """The graph of a part at a width: a block, the first with the embedding, the last the head."""
    manifest, target = bundle.manifest, bundle.manifest.qnn
    assert target is not None
    block, shape = manifest.blocks[part], manifest.model
    edit = _Editor(onnx.load(bundle.file(block.graphs[manifest.prefill_rows])))
    inputs: list[onnx.ValueInfoProto] = []
    outputs: list[onnx.ValueInfoProto] = []

    hidden = (1,) * (1 + form.has_4_sizes) + (rows, shape.hidden_size)
    if part == 0 and not form.has_lookup:
        _embed(edit, bundle, target.hidden[0])
        inputs.append(_info("input_ids", "int32", 1, rows))
    else:
        name = "inputs_embeds" if part == 0 else f"_model_layers_{part}_in"
        if form.has_4_sizes:
            edit.front(_reshaped(edit, name, "hidden", target.hidden[part], hidden[1:]))
        else:
            edit.rename("hidden", name)
        inputs.append(_info(name, "uint16", *hidden))
    for old, new in (("mask", "attention_mask"), ("cos", COS), ("sin", SIN)):
        edit.rename(old, new)
    half = len(manifest.inv_freq)
    inputs += [_info("attention_mask", "uint16", 1, 1, rows, form.context)]
    inputs += [_info(name, "uint16", 1, 1, rows, half) for name in (COS, SIN)]
    for layer in block.layers:
        for kind in ("key", "value"):
            cache = _CacheEditor(edit, form, target.caches[layer], layer, kind, rows)
            cache.edit(shape.num_kv_heads, shape.head_dim, inputs, outputs)
    if form.is_native:
        _index(edit, form.context, rows)
        inputs.append(_info("cache_index", "int32", 1))
    if part == len(manifest.blocks) - 1:
        _add_head(edit, onnx.load(bundle.file(manifest.head.graphs[manifest.prefill_rows])))
        outputs.append(_info("logits", "uint16", 1, rows, shape.vocab_size))
    else:
        name = f"_model_layers_{part}_out"
        if form.has_4_sizes:
            encoding = target.hidden[part + 1]
            edit.graph.node.extend(_reshaped(edit, "hidden_out", name, encoding, hidden))
        else:
            edit.rename("hidden_out", name)
        outputs.append(_info(name, "uint16", *hidden))
    del edit.graph.input[:], edit.graph.output[:]
    edit.graph.input.extend(inputs)
    edit.graph.output.extend(outputs)
    return edit.finish()


COS, SIN = "position_ids_cos", "position_ids_sin"


def _info(name: str, dtype: str, *sizes: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, getattr(TensorProto, dtype.upper()), sizes)


@dataclass
class _CacheEditor:
    """Gives the keys or values of a layer the names and layouts of AI Hub's."""

    graph: "_Editor"
    form: Form
    encodings: CacheEncodings
    layer: int
    kind: str
    rows: int

    def edit(self, heads: int, size: int, inputs: list[Any], outputs: list[Any]) -> None:
        """Change the graph, and add to what it reads and gives."""
        is_key, ours = self.kind == "key", f"{self.kind}_{self.layer}"
        old = self.encodings.key if is_key else self.encodings.value
        new = self.encodings.key_new if is_key else self.encodings.value_new
        perm = [1, 0, 3, 2] if is_key else [1, 0, 2, 3]
        count = len(self._names("in", heads))
        past = self.form.context - (0 if self.form.is_native else self.rows)
        for way, slots, into, encoding in (
            ("in", past, inputs, old),
            ("out", self.rows, outputs, new),
        ):
            sizes = (size, slots) if is_key else (slots, size)
            for name in self._names(way, heads):
                into.append(_info(name, encoding.dtype, heads // count, 1, *sizes))
        self.graph.front(
            self.graph.quantized(ours, old, self._names("in", heads), self._joined(perm, ours))
        )
        after = self.graph.quantized(
            f"{ours}.out",
            new,
            [f"{ours}_new"],
            lambda reals, result: _transpose(reals, result, perm),
        )
        self.graph.graph.node.extend(after)
        for head, name in enumerate(self._names("out", heads)):
            self.graph.graph.node.extend(self._slice(f"{ours}.out", name, new, head, count))
        if self.form.is_native:
            self._write_in_place(f"{ours}_all", old)

    def _names(self, way: str, heads: int) -> list[str]:
        stem = "past_nativekvcache__" if self.form.is_native else "past_"
        name = f"{stem}{self.kind}_{self.layer}"
        if not self.form.by_head:
            return [f"{name}_{way}"]
        return [f"{name}_head_{head}_{way}" for head in range(heads)]

    def _joined(self, perm: list[int], name: str) -> Any:
        """Nodes from the inputs of all heads to our layout."""

        def nodes(reals: list[str], result: str) -> list[onnx.NodeProto]:
            if len(reals) == 1:
                return _transpose(reals, result, perm)
            turned = [f"{real}.turned" for real in reals]
            pairs = zip(reals, turned, strict=True)
            turns = [_transpose([real], turn, perm)[0] for real, turn in pairs]
            return [*turns, helper.make_node("Concat", turned, [result], axis=1)]

        return nodes

    def _slice(
        self, source: str, name: str, encoding: Encoding, head: int, count: int
    ) -> list[onnx.NodeProto]:
        """One head of what is given out, under its name; all of them if there is one tensor."""
        if count == 1:
            self.graph.rename(source, name)
            return []
        starts = self.graph.constant(f"{name}.starts", np.array([head], np.int64))
        ends = self.graph.constant(f"{name}.ends", np.array([head + 1], np.int64))
        axes = self.graph.constant(f"{name}.axes", np.array([0], np.int64))
        return self.graph.quantized(
            name,
            encoding,
            [source],
            lambda reals, result: [
                helper.make_node("Slice", [*reals, starts, ends, axes], [result])
            ],
        )

    def _write_in_place(self, joined: str, encoding: Encoding) -> None:
        """Take new rows from behind the past, where our graph has them, to their slots."""
        (concat,) = (
            node
            for node in self.graph.graph.node
            if node.op_type == "Concat" and node.output[0].startswith(joined)
        )
        result, concat.output[0] = concat.output[0], f"{joined}.behind"
        parameters = self.graph.encoding(f"{joined}.behind", encoding)
        place = list(self.graph.graph.node).index(concat) + 1
        forth, back = {"perm": [2, 0, 1, 3]}, {"perm": [1, 2, 0, 3]}
        nodes, value = [], f"{joined}.behind"
        for operator, more, attributes in (
            ("Transpose", [], forth),
            ("Gather", ["slot_sources"], {"axis": 0}),
            ("Transpose", [], back),
        ):
            at = f"{value}.{operator.lower()}"
            nodes += [
                helper.make_node("QuantizeLinear", [value, *parameters], [f"{at}.q"]),
                helper.make_node("DequantizeLinear", [f"{at}.q", *parameters], [f"{at}.dq"]),
                helper.make_node(operator, [f"{at}.dq", *more], [at], **attributes),
            ]
            value = at
        nodes[-1].output[0] = result
        for offset, node in enumerate(nodes):
            self.graph.graph.node.insert(place + offset, node)


def _transpose(reals: list[str], result: str, perm: list[int]) -> list[onnx.NodeProto]:
    return [helper.make_node("Transpose", reals, [result], perm=perm)]


def _reshaped(
    edit: "_Editor", old: str, new: str, encoding: Encoding, shape: Sequence[int]
) -> list[onnx.NodeProto]:
    """Nodes that give a value another shape and name."""
    sizes = edit.constant(f"{new}.sizes", np.array(shape, np.int64))
    return edit.quantized(
        new,
        encoding,
        [old],
        lambda reals, result: [helper.make_node("Reshape", [*reals, sizes], [result])],
    )


def _index(edit: "_Editor", context: int, rows: int) -> None:
    """Where each slot's row stands: behind all slots if this run wrote it, else in its place."""
    slots = edit.constant("slots", np.arange(context, dtype=np.int32))
    behind = edit.constant("behind", np.arange(context, 2 * context, dtype=np.int32))
    count = edit.constant("count", np.array([rows], np.int32))
    zero = edit.constant("none", np.array([0], np.int32))
    edit.front(
        [
            helper.make_node("Sub", [slots, "cache_index"], ["from_index"]),
            helper.make_node("Sub", [behind, "cache_index"], ["new_sources"]),
            helper.make_node("GreaterOrEqual", ["from_index", zero], ["is_behind_first"]),
            helper.make_node("Less", ["from_index", count], ["is_before_end"]),
            helper.make_node("And", ["is_behind_first", "is_before_end"], ["is_new"]),
            helper.make_node("Where", ["is_new", "new_sources", slots], ["slot_sources"]),
        ]
    )


def _embed(edit: _Editor, bundle: Bundle, encoding: Encoding) -> None:
    table = edit.constant("embedding", np.array(bundle.embedding()))
    parameters = edit.encoding("hidden", encoding)
    edit.front(
        [
            helper.make_node("DequantizeLinear", [table, *parameters], ["embedding.real"]),
            helper.make_node("Gather", ["embedding.real", "input_ids"], ["hidden.real"], axis=0),
            helper.make_node("QuantizeLinear", ["hidden.real", *parameters], ["hidden"]),
        ]
    )


def _add_head(edit: _Editor, head: onnx.ModelProto) -> None:
    """Put the head behind the last block."""
    taken = {"hidden": "hidden_out", "logits": "logits"}

    def name(each: str) -> str:
        return taken.get(each, each and f"head.{each}")

    for tensor in head.graph.initializer:
        tensor.name = name(tensor.name)
    for node in head.graph.node:
        node.name = name(node.name)
        node.input[:] = map(name, node.input)
        node.output[:] = map(name, node.output)
    edit.graph.initializer.extend(head.graph.initializer)
    edit.graph.node.extend(head.graph.node)


def _write_texts(
    bundle: Bundle, out: Path, form: Form, binaries: list[str], graphs: dict[str, GraphFacts]
) -> None:
    """Everything but the binaries."""
    manifest, target, ends = bundle.manifest, bundle.manifest.qnn, bundle.manifest.end_token_ids
    assert target is not None
    shutil.copy(bundle.file(manifest.tokenizer), out / "tokenizer.json")
    dialog = genie_facts.dialog(binaries)
    dialog["context"] = {
        "size": form.context,
        "n-vocab": manifest.model.vocab_size,
        "bos-token": -1 if manifest.bos_token_id is None else manifest.bos_token_id,
        "eos-token": ends[0] if len(ends) == 1 else ends,
    }
    dialog["engine"]["model"]["positional-encoding"] = {
        "type": "rope",
        "rope-dim": manifest.model.head_dim // 2,
        "rope-theta": round(manifest.inv_freq[1] ** (-manifest.model.head_dim / 2)),
    }
    if form.has_lookup:
        dialog["embedding"] = {
            "type": "lut",
            "lut-path": "embedding_weights.raw",
            "size": manifest.model.hidden_size,
            "datatype": "float32",
        }
        table = target.hidden[0].dequantize(bundle.embedding())
        (out / "embedding_weights.raw").write_bytes(table.astype("<f4").tobytes())
    qairt = version().qnn.lstrip("v")
    (out / "tool-versions.yaml").write_text(f"tool_versions:\n  qairt: {qairt}\n")
    described = {
        name: {"inputs": _tensors(it.inputs), "outputs": _tensors(it.outputs)}
        for name, it in graphs.items()
    }
    chip = {"soc_model": target.soc_model, "htp_arch": target.htp_arch}
    genie_facts.write_texts(
        out, dialog, described if form.has_metadata else None, **chip, qairt=qairt
    )


def _tensors(facts: dict[str, TensorFacts]) -> dict[str, Any]:
    return {
        name: genie_facts.tensor(it.dtype, *it.shape)
        if it.scale is None
        else genie_facts.tensor(it.dtype, *it.shape, scale=it.scale, zero_point=it.zero_point or 0)
        for name, it in facts.items()
    }
