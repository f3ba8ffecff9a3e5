"""Weights of a GGUF file that products read as they are: the file's own bytes, row by row."""

import json

import numpy as np
import onnx
import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import exported, write_checkpoint
from coordgen_rs.convert.containers.gguf.header import read_header
from dequantized import blocks_of_panels, dequantized_as, rounded_to_8_bits
from gguf_files import neighbours, write_gguf
from graph_runner import GraphRunner, tokens
from reference import forward, load_checkpoint

SIZES = {"hidden": 96, "ffn": 160, "heads": 4, "kv_heads": 1, "head_dim": 8, "vocab": 100}
"""Rows of whole blocks, and numbers of rows that are no whole panels: 8, 32, 100."""
GATE_UP = ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up")
PARTS = {
    "qkv": tuple((f"self_attn.{it}_proj", f"attn_{it}") for it in "qkv"),
    "attention_out": (("self_attn.o_proj", "attn_output"),),
    "gate_up": GATE_UP,
    "down": (("mlp.down_proj", "ffn_down"),),
}
MIXED = {"attn_q": "Q4_0", "attn_k": "Q8_0", "attn_v": "Q4_1", "ffn_gate": "Q8_0", "ffn": "Q4_1"}
MIXED |= {"attn_output": "Q8_0"}
TWO_ALIKE = {"attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q8_0", "attn_output": "Q4_0"}
TWO_ALIKE |= {"ffn": "Q4_0"}
KINDS = ["Q4_0", "Q4_1", "Q8_0", MIXED, TWO_ALIKE]


class Case:
    """A model as a GGUF file, and its bundle."""

    def __init__(self, folder, types, family):
        self.checkpoint = write_checkpoint(folder / "model", family=family, **SIZES)
        file = write_gguf(folder / "model.gguf", self.checkpoint, types)
        self.bundle = exported(file, folder / "bundle", weights="keep")
        self.config = json.loads((self.checkpoint / "config.json").read_text())
        self._header, self._content = read_header(file), np.fromfile(file, np.uint8)

    def stored(self, name, heads=None):
        """The type of a tensor, and its rows in blocks in the order of Hugging Face.

        `heads` is given for rows that the file has in another order.
        """
        tensor = self._header.tensors[name]
        outputs, columns = tensor.shape
        raw = self._content[tensor.offset : tensor.offset + tensor.num_bytes]
        blocks = raw.reshape(outputs, columns // 32, -1)
        if heads is not None:
            order = neighbours(np.arange(outputs)[:, None], heads)[:, 0]
            blocks = blocks[np.argsort(order)]
        return tensor.type.name, blocks

    def stored_parts(self):
        """Each product's name in the graph, and its tensors: their name, type and blocks."""
        rotates = self.config["model_type"] == "llama"
        heads = {"attn_q": SIZES["heads"], "attn_k": SIZES["kv_heads"]} if rotates else {}
        for layer in range(2):
            for product, parts in PARTS.items():
                yield (
                    f"layer_{layer}.{product}",
                    [
                        (
                            f"model.layers.{layer}.{part}.weight",
                            *self.stored(f"blk.{layer}.{name}.weight", heads.get(name)),
                        )
                        for part, name in parts
                    ],
                )


@pytest.fixture(scope="module", params=KINDS, ids=["Q4_0", "Q4_1", "Q8_0", "mixed", "two-alike"])
def types(request):
    return request.param


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def case(request, types, tmp_path_factory):
    return Case(tmp_path_factory.mktemp("panels"), types, request.param)


def segments_of(bundle):
    """Each product's name, and its segments: their type and blocks."""
    file = bundle.file(bundle.manifest.blocks[0].graphs[1])
    graph = onnx.load(file, load_external_data=False).graph
    places = {
        it.name: {each.key: each.value for each in it.external_data} for it in graph.initializer
    }
    for node in graph.node:
        if node.op_type == "Product":
            given = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
            segments = []
            kinds = given["types"].decode().split(",")
            weights = node.input[-len(kinds) :]
            for name, kind, outputs in zip(weights, kinds, given["sizes"], strict=True):
                place = places[name]
                panels = np.fromfile(
                    bundle.file(place["location"]),
                    np.uint8,
                    int(place["length"]),
                    offset=int(place["offset"]),
                )
                segments.append((kind, blocks_of_panels(kind, panels, outputs, given["columns"])))
            yield node.name, segments


def test_each_tensor_comes_back_bit_for_bit(case):
    found = dict(segments_of(case.bundle))
    expected = dict(case.stored_parts())
    assert {name.rpartition("/")[2] for name in found} >= expected.keys()
    for name, tensors in expected.items():
        rows = [block for _, blocks in found[name] for block in blocks]
        wanted = [block for *_, blocks in tensors for block in blocks]
        assert len(rows) == len(wanted)
        assert all(map(np.array_equal, rows, wanted)), name


def test_neighbours_of_one_type_are_one_segment(case, types):
    kinds = [kind for kind, _ in dict(segments_of(case.bundle))["layer_0.qkv"]]
    if isinstance(types, str):
        assert kinds == [types]
    else:
        assert kinds == (["Q4_0", "Q8_0", "Q4_1"] if types is MIXED else ["Q4_0", "Q8_0"])


def test_logits_are_near_those_of_a_forward_pass_with_the_files_weights(case, types):
    config, matrices = load_checkpoint(case.checkpoint)
    for _, tensors in case.stored_parts():
        for name, kind, blocks in tensors:
            matrices[name] = dequantized_as(kind, blocks)
    is_head_kept = isinstance(types, str)
    if is_head_kept:
        embedding = dequantized_as(*case.stored("token_embd.weight"))
        matrices |= dict.fromkeys(["model.embed_tokens.weight", "lm_head.weight"], embedding)

    def as_read(x, name):
        return rounded_to_8_bits(x, name) if is_head_kept or name != "lm_head" else x

    ids = tokens(40, SIZES["vocab"])
    expected = forward(config, matrices, ids, as_read)
    logits = GraphRunner(case.bundle).feed_all(ids, 8)
    off = np.sqrt(np.mean((logits - expected) ** 2, -1) / np.mean(expected**2, -1))
    # An activation between two steps may be rounded to the other one, in the last bit of a sum:
    # then its row and those behind it are off by a rounding; before it there is nothing.
    assert off.max() < 5e-2
    assert np.quantile(off, 0.1) < 1e-5
    for width in case.bundle.manifest.widths:
        assert np.array_equal(GraphRunner(case.bundle).feed_all(ids, width), logits), width


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_calibrated_weights_take_the_place_of_the_files(tmp_path, name):
    checkpoint = write_checkpoint(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("once upon a time there was a dog " * 9)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, name)
    plain, calibrated = (
        dict(
            segments_of(
                exported(
                    file, tmp_path / f"int4-{given is None}", weights="int4", calibration=given
                )
            )
        )
        for given in (None, text)
    )
    for product, segments in plain.items():
        assert [kind for kind, _ in segments] == ["Q4_1"]
        [(kind, blocks)] = calibrated[product]
        assert kind == "Q4_1"
        # What 4 bits hold exactly leaves nothing to make good.
        assert np.array_equal(blocks, segments[0][1]) == (name == "Q4_0")
