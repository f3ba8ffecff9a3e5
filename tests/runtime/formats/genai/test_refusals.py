"""What a folder of ONNX Runtime GenAI may not be: each is refused in one line that says why."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from coordgen_rs import open_session
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.formats.genai import folder as folder_module
from genai_folders import (
    attention_nodes,
    constant,
    edit_config,
    edit_graph,
    switch_rotations,
    with_attributes,
    with_input,
)
from genai_model import CONFIG_NAME, MODEL_NAME


def refuse(folder, match, error=BundleError):
    with pytest.raises(error, match=match) as caught:
        open_session(folder)
    assert "\n" not in str(caught.value)


CONFIGS = {
    "decoder is missing": {"decoder": None},
    "provider 'cuda'": {"decoder__session_options__provider_options": [{"cuda": {}}]},
    "provider 'QNN'": {"decoder__session_options__provider_options": [{"QNN": {}}]},
    "part 'vision'": {"vision": {}},
    "not a plain file name": {"decoder__filename": "../model.onnx"},
    "model has no field context_length": {"context_length": None},
    r"model\.vocab_size is str": {"vocab_size": "many"},
    "its config a vocabulary of 7": {"vocab_size": 7, "eos_token_id": 1, "bos_token_id": 1},
    r"eos_token_id is \['end'\]": {"eos_token_id": "end"},
    "is not in the vocabulary": {"eos_token_id": [10**6]},
    "head_size|unlike its config": {"decoder__head_size": 3},
    "lacks the input 'past_key_values.9.key'": {"decoder__num_hidden_layers": 10},
    "must hold %d once": {"decoder__inputs__past_key_names": "past.key"},
    "lacks the output 'scores'": {"decoder__outputs__logits": "scores"},
}


@pytest.mark.parametrize("match", CONFIGS)
def test_configs_of_what_cannot_run(folder, match):
    if match.startswith("lacks the input"):
        layers = len(
            attention_nodes(onnx.load(folder / MODEL_NAME, load_external_data=False).graph)
        )
        match = f"lacks the input 'past_key_values.{layers}.key'"
        edit_config(folder, decoder__num_hidden_layers=layers + 1)
    else:
        edit_config(folder, **CONFIGS[match])
    refuse(folder, match)


def embeddings_as_input(graph):
    graph.input.append(helper.make_tensor_value_info("inputs_embeds", 1, ("b", "s", 8)))


def recurrent_state(graph):
    graph.input.append(helper.make_tensor_value_info("past_conv.0", 1, (1, 8, 3)))


def half_precision_cache(graph):
    graph.input[2].type.tensor_type.elem_type = TensorProto.FLOAT16


def another_attention(graph):
    graph.node.append(helper.make_node("MultiHeadAttention", ["a"], ["b"], domain="com.microsoft"))


def shared_cache(graph):
    nodes = attention_nodes(graph)
    nodes[1].input[3:5] = nodes[0].input[3:5]


def mask_of_its_own(graph):
    place, node = next(
        (place, node) for place, node in enumerate(graph.node) if "input_ids" in node.input
    )
    names = [name if name != "input_ids" else "masked_ids" for name in node.input]
    node.input[:] = names
    mul = helper.make_node("Mul", ["input_ids", "attention_mask"], ["masked_ids"])
    graph.node.insert(place, mul)


def unknown_condition(graph):
    switch_rotations(64)(graph)
    next(node for node in graph.node if node.op_type == "Greater").op_type = "Less"


def rotations_that_are_computed(graph):
    graph.node.insert(0, helper.make_node("Neg", ["cos_cache"], ["negative_cos"]))
    for node in attention_nodes(graph):
        node.input[7] = "negative_cos"


def weights_in_an_attribute(graph):
    """A constant whose content would be read from any file."""
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=[8])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    graph.node.insert(0, helper.make_node("Constant", [], ["stolen"], value=tensor))


def without_attributes(operator):
    def edit(graph):
        switch_rotations(64)(graph)
        del next(node for node in graph.node if node.op_type == operator).attribute[:]

    return edit


def without_inputs(graph):
    for node in graph.node:
        if node.op_type == "MatMul":
            del node.input[1:]


GRAPHS = {
    "is damaged: a node is not as it must be: 'else_branch'": without_attributes("If"),
    "is damaged: a node is not as it must be: list index": without_inputs,
    "uses local_window_size=0": with_attributes(local_window_size=0),
    "weights in a node's attribute": weights_in_an_attribute,
    "not token ids": embeddings_as_input,
    "'past_conv.0': a state other": recurrent_state,
    "keys and values are float16": half_precision_cache,
    "its attention is MultiHeadAttention": another_attention,
    "not one layer's own": shared_cache,
    "uses attention_bias": with_input(10, "bias"),
    "uses head_sink": with_input(11, "sink"),
    "uses k_scale": with_input(12, "scale"),
    "uses q_norm_weight": with_input(14, "norm"),
    "uses smooth_softmax=1": with_attributes(smooth_softmax=1),
    "uses causal=0": with_attributes(causal=0),
    "uses invented=3": with_attributes(invented=3),
    "uses k_quant_type=b'PER_TENSOR'": with_attributes(k_quant_type="PER_TENSOR"),
    "its attention has": with_attributes(num_heads=1),
    "'attention_mask' for more than the length": mask_of_its_own,
    "a condition that is not known": unknown_condition,
    "not a table that stands in the graph": rotations_that_are_computed,
}


@pytest.mark.parametrize("match", GRAPHS)
def test_graphs_of_what_cannot_run(folder, match):
    edit_graph(folder, GRAPHS[match])
    refuse(folder, match)


def test_context_ends_where_rotations_would_switch(folder):
    edit_graph(folder, switch_rotations(64))
    session = open_session(folder)
    assert session.capacity == 64


@pytest.mark.parametrize("location", ["../weights", "/etc/passwd", "a/b", ".."])
def test_weights_outside_the_folder(folder, location):
    def move(graph):
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location

    edit_graph(folder, move)
    refuse(folder, "not a file beside it")


DAMAGED = {
    "is damaged": (f"{MODEL_NAME}.data", lambda content: content[:-100]),
    f"{MODEL_NAME}.data is missing": (f"{MODEL_NAME}.data", None),
    "tokenizer.json is missing": ("tokenizer.json", None),
    "model.onnx is missing": (MODEL_NAME, None),
    "is not an ONNX model|not a graph": (MODEL_NAME, lambda content: b"no graph"),
    "not valid JSON": (CONFIG_NAME, lambda content: b"{"),
    "does not hold an object": (CONFIG_NAME, lambda content: b"[]"),
}


@pytest.mark.parametrize("match", DAMAGED)
def test_missing_and_damaged_files(folder, match):
    name, change = DAMAGED[match]
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    is_damage = match.endswith(("damaged", "missing"))
    refuse(folder, match, BundleDamagedError if is_damage else BundleError)


@pytest.mark.parametrize("cut", range(0, 20_000, 2_777))
def test_a_graph_cut_short_is_an_error_and_no_crash(folder, cut):
    path = folder / MODEL_NAME
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BundleError):
        open_session(folder)


def test_without_onnx_the_message_says_what_to_install(folder, monkeypatch):
    def absent(path, config):
        raise BundleError(f"{path}: opening it needs onnx: {folder_module.how_to_install('genai')}")

    monkeypatch.setattr(folder_module, "_read_graph", absent)
    refuse(folder, r"needs onnx: .*\[genai\]")


def test_weights_of_a_wrong_shape_are_named(folder):
    def cut(graph):
        node = next(n for n in graph.node if n.op_type == "SimplifiedLayerNormalization")
        node.input[1] = constant(graph, "short", np.ones(3, np.float32))

    edit_graph(folder, cut)
    with pytest.raises(BundleError, match=r"model\.onnx"):
        open_session(folder)
