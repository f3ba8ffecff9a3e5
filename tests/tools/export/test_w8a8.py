"""Weights for integer products: how they are rounded, and models that are odd or damaged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoints import exported, save_weights, write_checkpoint
from coordgen_rs import open_session
from coordgen_rs.tools.export.cpu.w8a8 import quantize_columns
from graph_runner import GraphRunner, tokens
from reference import forward, load_checkpoint


def rounded_by_row(x: np.ndarray) -> np.ndarray:
    """Rows as their largest number and 127 steps to it have them."""
    step = np.abs(x).max(-1, keepdims=True) / 127
    return np.rint(np.divide(x, step, out=np.zeros_like(x), where=step != 0)) * step


def rounded_for(x: np.ndarray, name: str) -> np.ndarray:
    """Rows as a linear layer reads them: fine ones have what rounding left in 254 further steps."""
    rounded = rounded_by_row(x)
    if not name.endswith(("o_proj", "down_proj", "lm_head")):
        return rounded
    step = np.abs(x).max(-1, keepdims=True) / (127 * 254)
    return rounded + np.rint((x - rounded) / step) * step


@pytest.mark.parametrize(
    "options",
    [{"family": "qwen2", "ffn": 100}, {"kv_heads": 4}, {"tied": False, "head_dim": 24}],
    ids=str,
)
def test_logits_are_near_those_of_a_forward_pass_with_rounded_weights_and_rows(tmp_path, options):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **options)
    config, matrices = load_checkpoint(checkpoint)
    for name, matrix in matrices.items():
        if "_proj.weight" in name or name == "lm_head.weight":
            matrices[name] = rounded_by_row(matrix)
    embedding = matrices["model.embed_tokens.weight"]
    matrices["model.embed_tokens.weight"] = embedding.astype(np.float16).astype(np.float32)
    ids = tokens(40, 128)
    expected = forward(config, matrices, ids, rounded_for)
    logits = GraphRunner(exported(checkpoint, tmp_path / "out", weights="w8a8")).feed_all(ids, 8)
    assert np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2)) < 5e-2


def test_blocks_compute_what_one_block_does(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=3)
    ids = tokens(20, 128)
    one, three = (
        GraphRunner(exported(checkpoint, tmp_path / str(n), weights="w8a8", blocks=n))
        for n in (1, 3)
    )
    assert np.array_equal(three.feed_all(ids, 8), one.feed_all(ids, 8))


@pytest.mark.parametrize("weights", ["int4", "int8", "w8a8"])
def test_a_bundle_has_more_widths_than_one_of_floats_has(tmp_path, weights):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    widths = exported(checkpoint, tmp_path / "out", weights=weights, decode_rows=48).manifest.widths
    assert widths == [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 256]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 100),
    st.integers(1, 3),
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 1e-30, 1.0, 1e30]),
)
def test_weights_are_within_half_a_step(rows, columns, piece, seed, size):
    matrix = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    matrix *= np.float32(size)
    pieces = (matrix[start : start + piece] for start in range(0, rows, piece))
    quantized = quantize_columns(pieces, matrix.shape)
    assert quantized.values.shape == (columns, rows)
    restored = quantized.values.T * quantized.steps[:, None]
    step = quantized.steps[:, None]
    assert np.all(np.abs(restored - matrix) <= step * 0.501)
    assert size == 0 or np.all(np.abs(quantized.values).max(axis=0) == 127)


def test_an_output_without_weights_and_the_smallest_model_are_exact(tmp_path):
    sizes = {"hidden": 4, "ffn": 1, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 2}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **sizes)
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.layers.0.self_attn.o_proj.weight"][1] = 0
    weights["model.layers.0.mlp.down_proj.weight"][:] = 0
    save_weights(checkpoint, weights)
    session = open_session(exported(checkpoint, tmp_path / "bundle", weights="w8a8").path)
    assert session.widths == (1, 2, 4, 6, 8, 12, 16, 24, 32)
