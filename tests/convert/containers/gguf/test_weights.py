"""Weights of GGUF files that products read: each tensor keeps its own bytes and values."""

import numpy as np
import onnx
import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from answers import tokens_of
from checkpoints import exported, write_checkpoint
from coordgen_rs import generate, open_session, plain
from coordgen_rs.bundle.layers import num_bytes
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from dequantized import rounded_to_8_bits
from gemma4 import write_gemma4
from gguf_files import write_gguf
from graph_runner import GraphRunner, tokens
from hybrids import write_hybrid
from mixtures import write_mixture
from reference import forward, load_checkpoint

SIZES = {"hidden": 256, "ffn": 512, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 100}
FLOATS = ("F32", "F16", "BF16")


def mixed(most, embedding, **others):
    """Types by parts of tensors' names; of others than the named ones it is `most`."""
    named = {name.replace("__", "."): weight_type for name, weight_type in others.items()}
    return {"token_embd": embedding, **named, "attn": most, "ffn": most}


FILES = {
    "Q4_K_M": mixed("Q4_K", "Q6_K", blk__0__attn_v="Q6_K", blk__0__ffn_down="Q6_K"),
    "Q5_K_M": mixed("Q5_K", "Q6_K", attn_v="Q6_K", blk__1__ffn_down="Q6_K"),
    "Q3_K_M": mixed("Q3_K", "Q5_K", attn_v="Q5_K", attn_output="Q4_K", ffn_down="Q4_K"),
    "Q2_K": mixed("Q2_K", "Q4_K", attn_v="Q4_K", ffn_down="Q3_K"),
    "IQ4_XS": mixed("IQ4_XS", "Q8_0", attn_v="Q5_K", ffn_up="IQ4_NL"),
    "Q5_0": mixed("Q5_0", "Q5_0", attn_v="Q5_1", ffn_gate="Q5_1"),
    "MXFP4": mixed("MXFP4", "F16", attn_v="F16", attn_k="Q8_0"),
    "F16": mixed("F16", "F16", attn_k="Q5_1"),
    "BF16": mixed("BF16", "BF16"),
    "F32": mixed("F32", "F32"),
    "Q4_0": mixed("Q4_0", "Q4_0", attn_v="Q4_1", ffn_down="Q8_0"),
    "TQ2_0": mixed("TQ2_0", "TQ2_0", ffn_down="TQ1_0", attn_v="Q6_K"),
}


class Case:
    """A model as a GGUF file, what its tensors stand for, and its bundle."""

    def __init__(self, folder, types, sizes=SIZES):
        self.checkpoint = write_checkpoint(folder / "model", **sizes)
        self.file = write_gguf(folder / "model.gguf", self.checkpoint, types)
        self.folder, self.source = folder / "bundle", open_checkpoint(self.file)
        self.bundle = exported(self.file, self.folder, weights="keep")


@pytest.fixture(scope="module", params=FILES)
def case(request, tmp_path_factory):
    return Case(tmp_path_factory.mktemp("mixed"), FILES[request.param])


def test_all_tensors_are_kept_and_take_no_more_than_in_the_file(case):
    kept = case.bundle.manifest.kept
    assert all(it.is_exact for it in kept)
    held = sum(
        num_bytes(it.blocks.weight_type, *it.shape)
        for it in case.source.tensors.values()
        if len(it.shape) == 2
    )
    stored = [it for it in case.folder.iterdir() if it.suffix in (".weights", ".bin")]
    aligned = sum(it.stat().st_size for it in stored)
    assert held <= aligned <= held + 40 * 4096  # tensors begin at whole pages


def test_rows_of_the_embedding_are_the_files(case):
    expected = case.source.tensors["model.embed_tokens.weight"].load()
    numbers = np.array([99, 3, 3, 17], np.uint32)
    np.testing.assert_array_equal(case.bundle.embedding()[numbers], expected[numbers])


def assert_logits_are_near(case):
    """Those of a text are near those of a forward pass with the file's weights; both."""
    config, matrices = load_checkpoint(case.checkpoint)
    tensors = case.source.tensors
    matrices |= {name: tensor.load() for name, tensor in tensors.items()}
    matrices["lm_head.weight"] = matrices["model.embed_tokens.weight"]

    def as_read(x, name):
        known = "model.embed_tokens" if name == "lm_head" else name
        is_float = tensors[f"{known}.weight"].stored_type in FLOATS
        return x if is_float else rounded_to_8_bits(x, name)

    ids = tokens(40, config["vocab_size"])
    expected = forward(config, matrices, ids, as_read)
    logits = GraphRunner(case.bundle).feed_all(ids, 8)
    off = np.sqrt(np.mean((logits - expected) ** 2, -1) / np.mean(expected**2, -1))
    # An activation between two steps may be rounded to the other one, in the last bit of a sum:
    # then its row and those behind it are off by a rounding; before it there is nothing.
    assert off.max() < 5e-2
    assert np.quantile(off, 0.1) < 1e-5
    return ids, logits


def test_logits_are_near_those_of_a_forward_pass_with_the_files_weights(case):
    ids, logits = assert_logits_are_near(case)
    for width in case.bundle.manifest.widths:
        assert np.array_equal(GraphRunner(case.bundle).feed_all(ids, width), logits), width


def test_drafts_change_no_token(case):
    prompt = tokens(30, SIZES["vocab"]).astype(np.uint32)
    with_drafts, without = (
        tokens_of(how(open_session(case.folder), prompt, max_new_tokens=24))
        for how in (generate, plain)
    )
    assert len(without) >= 4
    assert with_drafts == without


def test_a_type_that_products_do_not_read_is_rounded_and_named(tmp_path):
    case = Case(tmp_path, mixed("Q4_K", "IQ3_S", ffn_down="IQ3_S", attn_v="IQ3_S"))
    assert {(it.type, it.num_tensors, it.is_exact) for it in case.bundle.manifest.kept} == {
        ("F32", 5, True),
        ("Q4_K", 10, True),
        ("IQ3_S", 5, False),
    }
    assert case.bundle.manifest.embedding.dtype == "Q8_0"
    expected = case.source.tensors["model.embed_tokens.weight"].load()
    rows = case.bundle.embedding()[np.arange(SIZES["vocab"], dtype=np.uint32)]
    assert 0 < np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2)) < 0.01
    logits = GraphRunner(case.bundle).feed_all(tokens(20, SIZES["vocab"]), 8)
    assert np.isfinite(logits).all()


def mean_distance(folder, file):
    """How far logits of kept weights are from those of the same numbers in float32, in spreads."""
    ids, logits = tokens(40, 1536), {}
    for weights in ("keep", "fp32"):
        bundle = exported(file, folder / weights, weights=weights, decode_rows=8)
        logits[weights] = GraphRunner(bundle).feed_all(ids, 8)
    return np.abs(logits["keep"] - logits["fp32"]).mean() / logits["fp32"].std()


@pytest.mark.parametrize(("types", "other"), [("Q8_0", "Q5_1"), ("Q4_0", "Q8_0"), ("F16", "BF16")])
def test_kept_experts_are_the_files(tmp_path, types, other):
    """Also where layers differ in the types of their parts."""
    sizes = {"moe_intermediate_size": 64, "mlp_only_layers": []}
    checkpoint = write_mixture(tmp_path / "model", "qwen3_moe", **sizes)
    of_parts = {"blk.2.ffn_down_exps": other, "ffn_gate_exps": types, "ffn_down_exps": types}
    file = write_gguf(tmp_path / "model.gguf", checkpoint, of_parts)
    # Activations are rounded to 8 bits where weights are integers.
    assert mean_distance(tmp_path, file) <= (1e-5 if types == "F16" else 0.1)
    experts = exported(file, tmp_path / "bundle", weights="keep").manifest.experts
    assert [region.types for region in experts.layers] == [
        [types, "F32", other if layer == 2 else types] for layer in range(4)
    ]


@pytest.mark.parametrize("types", ["Q8_0", "Q5_1", "F16"])
def test_kept_value_heads_are_the_files(tmp_path, types):
    """Of 6 value heads of 16, two are in a block of 32 columns."""
    sizes = {"linear_num_value_heads": 6, "linear_value_head_dim": 16}
    checkpoint = write_hybrid(tmp_path / "model", "qwen3_5", **sizes)
    parts = ("attn", "ssm_alpha", "ssm_beta", "ssm_out")
    file = write_gguf(tmp_path / "model.gguf", checkpoint, dict.fromkeys(parts, types))
    assert mean_distance(tmp_path, file) <= (1e-5 if types == "F16" else 0.1)


@pytest.mark.parametrize(
    ("types", "size"),
    [("Q8_0", 32), ("Q4_0", 32), ("Q5_1", 32), ("BF16", 32), ("Q4_K", 256), ("Q6_K", 256)],
)
def test_an_embedding_of_layers_is_kept_as_the_file_has_it(tmp_path, types, size):
    wide = {"hidden_size_per_layer_input": size}
    checkpoint = write_gemma4(tmp_path / "model", "gemma4", **wide)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, {"per_layer_token_embd": types})
    bundle = exported(file, tmp_path / "bundle", weights="keep", prefill_rows=32)
    assert bundle.manifest.per_layer.dtype == types
    rows = bundle.per_layer_embedding()[np.array([700, 3, 1535])]
    table = open_checkpoint(file).tensors["model.embed_tokens_per_layer.weight"]
    expected = np.concatenate([table.read_rows(row, row + 1) for row in (700, 3, 1535)])
    np.testing.assert_allclose(rows, expected * np.float32((size / 2) ** 0.5), rtol=1e-6)


def test_parts_of_rows_that_end_within_a_block_become_the_nearest_integers(tmp_path):
    """Of 16 numbers a layer two share a block; the values differ by half a step of their own."""
    checkpoint = write_gemma4(tmp_path / "model", "gemma4", hidden_size_per_layer_input=16)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, {"per_layer_token_embd": "Q8_0"})
    bundle = exported(file, tmp_path / "bundle", weights="keep", prefill_rows=32)
    rows = bundle.per_layer_embedding()[np.arange(1536)]
    table = open_checkpoint(file).tensors["model.embed_tokens_per_layer.weight"].load()
    scale = np.float32(16**0.5 * 2**-0.5)
    assert np.abs(rows / scale - table).max() <= np.abs(table).max() / 127


PANELS = {"hidden": 96, "ffn": 160, "heads": 4, "kv_heads": 1, "head_dim": 8, "vocab": 100}
"""Rows of whole blocks, and numbers of rows that are no whole panels: 8, 32, 100."""
MIXED = {"attn_q": "Q4_0", "attn_k": "Q8_0", "attn_v": "Q4_1", "ffn_gate": "Q8_0", "ffn": "Q4_1"}
MIXED |= {"attn_output": "Q8_0"}
TWO_ALIKE = {"attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q8_0", "attn_output": "Q4_0"}
TWO_ALIKE |= {"ffn": "Q4_0"}
KINDS = {
    "Q4_0": ("Q4_0", "Q4_0"),
    "Q4_1": ("Q4_1", "Q4_1"),
    "Q8_0": ("Q8_0", "Q8_0"),
    "mixed": (MIXED, "Q4_0,Q8_0,Q4_1"),
    "two-alike": (TWO_ALIKE, "Q4_0,Q8_0"),
}
"""Types, and those of the segments of queries, keys and values: neighbours of one type are one."""


def types_of_products(bundle):
    """By each product's name, the types of its segments."""
    file = bundle.file(bundle.manifest.blocks[0].graphs[1])
    graph = onnx.load(file, load_external_data=False).graph
    return {
        node.name.rpartition("/")[2]: onnx.helper.get_attribute_value(it).decode()
        for node in graph.node
        for it in node.attribute
        if node.op_type == "Product" and it.name == "types"
    }


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_no_whole_panels_come_back_and_neighbours_of_one_type_are_one_segment(
    tmp_path, family, kind
):
    types, segments = KINDS[kind]
    case = Case(tmp_path, types, PANELS | {"family": family})
    assert types_of_products(case.bundle)["layer_0.qkv"] == segments
    assert_logits_are_near(case)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_calibrated_weights_take_the_place_of_the_files(tmp_path, name):
    checkpoint = write_checkpoint(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("once upon a time there was a dog " * 9)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, name)
    plain, calibrated = (
        exported(file, tmp_path / f"int4-{given is None}", weights="int4", calibration=given)
        for given in (None, text)
    )
    for bundle in (plain, calibrated):
        assert {*types_of_products(bundle).values()} == {"Q4_1"}
    # What 4 bits hold exactly leaves nothing to make good.
    weights = [bundle.manifest.files["block_00.weights"] for bundle in (plain, calibrated)]
    assert (weights[0] == weights[1]) is (name == "Q4_0")
