"""Pipelines of ONNX Runtime GenAI in the form of AI Hub Models 0.46, compiled for the emulator.

In: an opened bundle for QNN. Out: a folder as `create_ort_genai_assets` of AI Hub Models 0.46.1
writes it: genai_config.json, context binaries, an ONNX file for each of their graphs, and graphs
for CPU around them. One binary holds one graph, because the emulator cannot load more.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from coordgen_rs import Bundle
from coordgen_rs.bundle import rope
from coordgen_rs.formats.genie.binary import GraphFacts, read_binary
from coordgen_rs.runtime.qnn.provider import version
from genie_bundles import Form, compile_graph, part_model

CONFIG_NAME = "genai_config.json"
NAME = "embedded"
TENSORS = ("attention_mask", "position_ids_cos", "position_ids_sin")


def write_pipeline(bundle: Bundle, out: Path, form: Form) -> Path:
    """Write a pipeline of that form, whose widths are 1 and another; its graphs are `bundle`'s."""
    out.mkdir(parents=True)
    num_parts, stages = len(bundle.manifest.blocks), {}
    stages["position-processor"] = _position_processor(bundle, out, form.context)
    stages["quantizer"] = _quantizer(bundle, out)
    for rows in sorted(form.widths, reverse=True):
        kind = "token" if rows == 1 else "prompt"
        for part in range(num_parts):
            ending = f"{part + 1}_of_{num_parts}"
            name = f"{kind}_ar{rows}_cl{form.context}_{ending}"
            binary = f"{NAME}_{kind}_part_{ending}.bin"
            compile_graph(bundle, part_model(bundle, part, rows, form), out / binary, name)
            file = f"{NAME}_{kind}_{ending}.onnx"
            facts = read_binary(out / binary).graphs[name]
            onnx.save(wrapper(name, facts, binary), out / file)
            stages[f"{NAME}_{kind}_{ending}"] = {
                "filename": file,
                "inputs": list(facts.inputs),
                "outputs": list(facts.outputs),
                "session_options": {"provider_options": [{"qnn": {"backend_path": "QnnHtp.dll"}}]},
                "run_on_token_gen": rows == 1,
                "run_on_prompt": rows != 1,
            }
    stages["dequantizer"] = _dequantizer(out)
    shutil.copy(bundle.file(bundle.manifest.tokenizer), out / "tokenizer.json")
    config = _config(bundle, form, stages)
    (out / CONFIG_NAME).write_text(json.dumps(config, indent=4))
    return out


def _config(bundle: Bundle, form: Form, stages: dict[str, Any]) -> dict[str, Any]:
    manifest, sizes = bundle.manifest, bundle.manifest.model
    config = json.loads(Path(__file__).with_name("genie_pipeline.json").read_text())
    config["model"] |= {
        "bos_token_id": manifest.bos_token_id,
        "context_length": form.context,
        "eos_token_id": manifest.end_token_ids,
        "pad_token_id": manifest.end_token_ids[0],
        "vocab_size": sizes.vocab_size,
    }
    decoder = config["model"]["decoder"]
    decoder |= {
        "head_size": sizes.head_dim,
        "hidden_size": sizes.hidden_size,
        "num_attention_heads": sizes.num_heads,
        "num_hidden_layers": sizes.num_layers,
        "num_key_value_heads": sizes.num_kv_heads,
        "pipeline": [stages],
    }
    decoder["sliding_window"]["window_size"] = max(form.widths)
    return config


def wrapper(name: str, facts: GraphFacts, binary: str) -> onnx.ModelProto:
    """An ONNX file for a graph, as `generate_wrapper_onnx_file` writes it."""

    def infos(tensors: Any) -> list[Any]:
        return [
            helper.make_tensor_value_info(
                each, helper.np_dtype_to_tensor_dtype(np.dtype(it.dtype)), it.shape
            )
            for each, it in tensors.items()
        ]

    node = helper.make_node(
        "EPContext",
        name=name,
        inputs=list(facts.inputs),
        outputs=list(facts.outputs),
        ep_cache_context=binary,
        embed_mode=0,
        ep_sdk_version=version().qnn,
        source="Qnn",
        domain="com.microsoft",
    )
    graph = helper.make_graph([node], "qnn-onnx-model", infos(facts.inputs), infos(facts.outputs))
    return helper.make_model(graph)


def _save(out: Path, name: str, nodes: Any, inputs: Any, outputs: Any, constants: Any) -> None:
    initializers = [numpy_helper.from_array(array, each) for each, array in constants.items()]
    graph = helper.make_graph(nodes, Path(name).stem, inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), out / name)


def _float(name: str, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _position_processor(bundle: Bundle, out: Path, context: int) -> dict[str, Any]:
    """From a 2-D mask and position ids to a mask for each row, cosines and sines."""
    names = [f"{name}_before_quantizer" for name in TENSORS]
    cos, sin = rope.tables(context, bundle.manifest.inv_freq)
    constants = {
        "cos_table": cos,
        "sin_table": sin,
        "one": np.array(1, np.float32),
        "unseen": np.array(-50, np.float32),
        "axis": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["cos_table", "position_ids"], ["cos"]),
        helper.make_node("Unsqueeze", ["cos", "axis"], [names[1]]),
        helper.make_node("Gather", ["sin_table", "position_ids"], ["sin"]),
        helper.make_node("Unsqueeze", ["sin", "axis"], [names[2]]),
        helper.make_node("Cast", ["attention_mask_before_processor"], ["seen"], to=1),
        helper.make_node("Sub", ["one", "seen"], ["is_unseen"]),
        helper.make_node("Mul", ["is_unseen", "unseen"], [names[0]]),
    ]
    inputs = ["attention_mask_before_processor", "position_ids"]
    _save(
        out,
        "position-processor.onnx",
        nodes,
        [
            helper.make_tensor_value_info(inputs[0], TensorProto.INT32, (1, context)),
            helper.make_tensor_value_info(inputs[1], TensorProto.INT32, (1, "sequence_length")),
        ],
        [_float(names[0], 1, context), *(_float(name, 1, 1, "rows", "half") for name in names[1:])],
        constants,
    )
    return {"filename": "position-processor.onnx", "inputs": inputs, "outputs": names}


def _quantizer(bundle: Bundle, out: Path) -> dict[str, Any]:
    target = bundle.manifest.qnn
    assert target is not None
    encodings = (target.mask, target.rotation, target.rotation)
    constants, nodes = {}, []
    for name, encoding in zip(TENSORS, encodings, strict=True):
        constants[f"{name}_scale"] = np.array(encoding.scale, np.float32)
        constants[f"{name}_offset"] = np.array(encoding.zero_point, np.uint16)
        read = [f"{name}_before_quantizer", f"{name}_scale", f"{name}_offset"]
        nodes.append(helper.make_node("QuantizeLinear", read, [name], f"{name}_quantizer"))
    inputs = [f"{name}_before_quantizer" for name in TENSORS]
    shape = (1, 1, "sequence_length", "size")
    _save(
        out,
        "quantizer.onnx",
        nodes,
        [_float(name, 1, 1, "rows", f"{name}_size") for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.UINT16, shape) for name in TENSORS],
        constants,
    )
    return {"filename": "quantizer.onnx", "inputs": inputs, "outputs": list(TENSORS)}


def _dequantizer(out: Path) -> dict[str, Any]:
    shape = (1, "sequence_length", "vocab_size")
    node = helper.make_node("Cast", ["logits"], ["logits_dequantized"], to=TensorProto.FLOAT)
    logits = helper.make_tensor_value_info("logits", TensorProto.UINT16, shape)
    _save(out, "dequantizer.onnx", [node], [logits], [_float("logits_dequantized", *shape)], {})
    return {
        "filename": "dequantizer.onnx",
        "inputs": ["logits"],
        "outputs": ["logits_dequantized"],
    }
