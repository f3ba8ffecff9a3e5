"""GGUF files that mix types as llama-quantize does: each tensor keeps its own bytes and values."""

import numpy as np
import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import exported, write_checkpoint
from coordgen_rs import generate, open_session, plain
from coordgen_rs.bundle.panels import num_bytes
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from dequantized import rounded_to_8_bits
from gguf_files import write_gguf
from graph_runner import GraphRunner, tokens
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
    "TQ2_0": mixed("TQ2_0", "TQ2_0", ffn_down="TQ1_0", attn_v="Q6_K"),
}


class Case:
    """A model as a GGUF file, what its tensors stand for, and its bundle."""

    def __init__(self, folder, types):
        self.checkpoint = write_checkpoint(folder / "model", **SIZES)
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


def test_logits_are_near_those_of_a_forward_pass_with_the_files_weights(case):
    config, matrices = load_checkpoint(case.checkpoint)
    tensors = case.source.tensors
    matrices |= {name: tensor.load() for name, tensor in tensors.items()}
    matrices["lm_head.weight"] = matrices["model.embed_tokens.weight"]

    def as_read(x, name):
        known = "model.embed_tokens" if name == "lm_head" else name
        is_float = tensors[f"{known}.weight"].stored_type in FLOATS
        return x if is_float else rounded_to_8_bits(x, name)

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


def test_drafts_change_no_token(case):
    prompt = tokens(30, SIZES["vocab"]).astype(np.uint32)
    with_drafts, without = (
        [
            token
            for step in how(open_session(case.folder), prompt, max_new_tokens=24)
            for token in step.token_ids
        ]
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
