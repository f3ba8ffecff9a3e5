"""Folders of ONNX Runtime GenAI for tests: written from a bundle, with one thing changed.

In: an opened float32 bundle. Out: a folder as `benches/peers/genai_model.py` writes it, beside a
tokenizer, which needs no package but onnx.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from coordgen_rs import Bundle
from coordgen_rs.runtime.onnx_runtime import cpu_session
from genai_model import CONFIG_NAME, MODEL_NAME, export_genai


def write_folder(bundle: Bundle, out: Path) -> Path:
    """Write a folder of the weights and the tokenizer of `bundle`."""
    export_genai(bundle, out, threads=1)
    shutil.copy(bundle.file(bundle.manifest.tokenizer), out / "tokenizer.json")
    return out


def edit_graph(folder: Path, edit: Callable[[onnx.GraphProto], None]) -> Path:
    """Change the graph of a folder; its weights stay in their file."""
    model = onnx.load(folder / MODEL_NAME, load_external_data=False)
    edit(model.graph)
    (folder / MODEL_NAME).write_bytes(model.SerializeToString())
    return folder


def edit_config(folder: Path, **fields: object) -> Path:
    """Set fields of the config by their paths, with `__` between the names; None removes one."""
    config = json.loads((folder / CONFIG_NAME).read_text())
    for path, value in fields.items():
        *parents, name = path.split("__")
        where = config["model"]
        for parent in parents:
            where = where.setdefault(parent, {})
        if value is None:
            del where[name]
        else:
            where[name] = value
    (folder / CONFIG_NAME).write_text(json.dumps(config))
    return folder


def attention_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


def with_attributes(**values: object) -> Callable[[onnx.GraphProto], None]:
    """An edit that gives all attention nodes these attributes."""

    def edit(graph: onnx.GraphProto) -> None:
        for node in attention_nodes(graph):
            kept = [item for item in node.attribute if item.name not in values]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.extend(helper.make_attribute(*item) for item in values.items())

    return edit


def with_input(place: int, name: str) -> Callable[[onnx.GraphProto], None]:
    """An edit that gives all attention nodes an input of the graph's at a place."""

    def edit(graph: onnx.GraphProto) -> None:
        for node in attention_nodes(graph):
            node.input.extend([""] * (place + 1 - len(node.input)))
            node.input[place] = name

    return edit


def constant(graph: onnx.GraphProto, name: str, array: np.ndarray) -> str:
    graph.initializer.append(numpy_helper.from_array(array, name))
    return name


def unpack(graph: onnx.GraphProto) -> None:
    """Split the packed query, key and value before attention, as the builder does for norms."""
    for node in attention_nodes(graph):
        sizes = {item.name: item.i for item in node.attribute}
        width = [sizes["num_heads"], sizes["kv_num_heads"], sizes["kv_num_heads"]]
        past = next(value for value in graph.input if value.name == node.input[3])
        head_dim = past.type.tensor_type.shape.dim[3].dim_value
        counts = np.array([heads * head_dim for heads in width], np.int64)
        split = constant(graph, f"{node.name}.sizes", counts)
        packed, parts = node.input[0], [f"{node.name}.{part}" for part in "qkv"]
        node.input[:3] = parts
        place = list(graph.node).index(node)
        graph.node.insert(place, helper.make_node("Split", [packed, split], parts, axis=2))


def prune(graph: onnx.GraphProto) -> None:
    """Make logits of the last row only, as the builder's prune_lm_head does."""
    head = graph.node[-1]
    last = constant(graph, "last_row", np.array(-1, np.int64))
    axis = constant(graph, "row_axis", np.array([1], np.int64))
    nodes = [
        helper.make_node("Gather", [head.input[0], last], ["pruned"], axis=1),
        helper.make_node("Unsqueeze", ["pruned", axis], ["pruned_row"]),
    ]
    head.input[0] = "pruned_row"
    for place, node in enumerate(nodes, len(graph.node) - 1):
        graph.node.insert(place, node)


def switch_rotations(limit: int) -> Callable[[onnx.GraphProto], None]:
    """An edit that takes other rotations beyond a length, as the builder does for LongRoPE."""

    def edit(graph: onnx.GraphProto) -> None:
        bound = constant(graph, "limit", np.array(limit, np.int64))
        branches = {"then_branch": "large", "else_branch": "small"}
        inner = {}
        names = ("cos_cache", "sin_cache")
        tables = {item.name: item for item in graph.initializer if item.name in names}
        arrays = {
            name: np.zeros(list(item.dims), np.float32)
            if item.data_location == onnx.TensorProto.EXTERNAL
            else numpy_helper.to_array(item)
            for name, item in tables.items()
        }
        for branch, kind in branches.items():
            nodes = [
                helper.make_node(
                    "Constant", [], [f"{name}_{kind}"], value=numpy_helper.from_array(array)
                )
                for name, array in arrays.items()
            ]
            outputs = [
                helper.make_tensor_value_info(f"{name}_{kind}", 1, arrays[name].shape)
                for name in names
            ]
            inner[branch] = helper.make_graph(nodes, kind, [], outputs)
        for item in tables.values():
            graph.initializer.remove(item)
        graph.node.insert(0, helper.make_node("If", ["is_long"], list(names), **inner))
        graph.node.insert(0, helper.make_node("Greater", ["long_total", "limit"], ["is_long"]))
        graph.node.insert(
            0, helper.make_node("ReduceSum", ["attention_mask"], ["long_total"], keepdims=0)
        )
        assert bound == "limit"

    return edit


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def graphs_own_logits(folder: Path, token_ids: NDArray[Any]) -> NDArray[np.float32]:
    """What the folder's graph itself makes of a text, in ONNX Runtime and in one run."""
    config = json.loads((folder / CONFIG_NAME).read_text())["model"]["decoder"]
    text = token_ids.astype(np.int64)[None]
    empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_size"]), np.float32)
    past = {
        config["inputs"][f"past_{kind}_names"] % layer: empty
        for layer in range(config["num_hidden_layers"])
        for kind in ("key", "value")
    }
    feeds = {"input_ids": text, "attention_mask": np.ones_like(text)} | past
    (logits,) = cpu_session(folder / MODEL_NAME).run(["logits"], feeds)
    return logits[0]
