"""What exported graphs compute, and what must not change a bit of it."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from checkpoints import (
    LLAMA3_SCALING,
    ROOT,
    TINY_STORIES,
    exported,
    needs_shared,
    save_weights,
    write_checkpoint,
)
from coordgen_rs import open_session
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.convert.quantize import quantize_rows
from dequantized import dequantized, rounded_to_8_bits
from graph_runner import GraphRunner, tokens
from reference import forward, load_checkpoint

# What the graphs compute


@needs_shared
def test_tiny_stories_logits_equal_a_numpy_forward_pass(tmp_path):
    bundle = exported(TINY_STORIES, tmp_path / "out")
    text = "Once upon a time there was a little dog. He liked to play in the garden with Lily."
    ids = Tokenizer.from_file(str(bundle.file("tokenizer.json"))).encode(text).ids
    expected = forward(*load_checkpoint(TINY_STORIES), ids)
    np.testing.assert_allclose(GraphRunner(bundle).feed_all(ids, 32), expected, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"family": "qwen2"},
        {"tied": False},
        {"kv_heads": 1},
        {"kv_heads": 4},
        {"head_dim": 24, "ffn": 100},
        {"rope_scaling": LLAMA3_SCALING, "rope_theta": 5e5},
    ],
    ids=str,
)
def test_logits_equal_a_numpy_forward_pass(tmp_path, options):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **options)
    runner = GraphRunner(exported(checkpoint, tmp_path / "out", prefill_rows=64))
    ids = tokens(100, 128)
    expected = forward(*load_checkpoint(checkpoint), ids)
    np.testing.assert_allclose(runner.feed_all(ids, 64), expected, atol=1e-3)


def test_new_style_rope_parameters_mean_the_same(tmp_path):
    scaling = {"rope_scaling": LLAMA3_SCALING, "rope_theta": 5e5}
    parameters = {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 5e5}, "rope_theta": None}
    old = write_checkpoint(tmp_path / "old", **scaling)
    new = write_checkpoint(tmp_path / "new", **parameters)
    frequencies = [
        exported(path, tmp_path / f"{path.name}-out").manifest.inv_freq for path in (old, new)
    ]
    assert frequencies[0] == frequencies[1]


@pytest.mark.parametrize(("weights", "bits"), [("int8", 8), ("int4", 4)])
def test_quantised_logits_are_near_a_dequantised_forward_pass(tmp_path, weights, bits):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", family="qwen2", ffn=100)
    config, matrices = load_checkpoint(checkpoint)
    for name, matrix in matrices.items():
        if "_proj.weight" in name or name == "lm_head.weight":
            of_it = 8 if name == "lm_head.weight" else bits
            blocks = quantize_rows(matrix, of_it, name)
            matrices[name] = dequantized(blocks, of_it)[:, : matrix.shape[1]]
    embedding = matrices["model.embed_tokens.weight"]
    matrices["model.embed_tokens.weight"] = embedding.astype(np.float16).astype(np.float32)
    ids = tokens(40, 128)
    expected = forward(config, matrices, ids, rounded_to_8_bits)
    logits = GraphRunner(exported(checkpoint, tmp_path / "out", weights=weights)).feed_all(ids, 8)
    assert np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2)) < 2e-3


# What must not change a bit


@pytest.fixture(scope="module", params=["fp32", "int8", "int4"])
def any_bundle(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("any")
    checkpoint = write_checkpoint(path / "checkpoint", family="qwen2", ffn=100)
    return exported(checkpoint, path / "out", weights=request.param, context=256)


def assert_rows_equal_at_every_width(bundle: Bundle, vocab: int) -> None:
    ids = tokens(150, vocab)
    expected = GraphRunner(bundle).feed_all(ids, 1)
    for width in bundle.manifest.widths:
        logits = GraphRunner(bundle).feed_all(ids, width)
        assert np.array_equal(logits, expected), width


def test_rows_are_bit_equal_at_every_width(any_bundle):
    assert_rows_equal_at_every_width(any_bundle, 128)


def test_rows_are_bit_equal_on_one_and_two_threads(any_bundle):
    code = """
import hashlib, sys
import numpy as np
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.runtime.onnx_runtime import set_threads
from graph_runner import GraphRunner, tokens
set_threads(int(sys.argv[2]))
for width in (1, 32):
    logits = GraphRunner(Bundle.open(sys.argv[1])).feed_all(np.arange(70) % 128, width)
    print(hashlib.sha256(logits.tobytes()).hexdigest())
"""
    command = [sys.executable, "-c", code, str(any_bundle.path)]
    sums = {
        line
        for threads in ("1", "2")
        for line in subprocess.run(
            [*command, threads], cwd=ROOT / "tests" / "support", check=True, capture_output=True
        ).stdout.split()
    }
    assert len(sums) == 1


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_rows_are_bit_equal_with_one_key_for_all_heads_and_one_for_each(tmp_path, kv_heads):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", kv_heads=kv_heads)
    assert_rows_equal_at_every_width(exported(checkpoint, tmp_path / "out"), 128)


@needs_shared
@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
def test_trained_rows_are_bit_equal_at_every_width(tmp_path, weights):
    bundle = exported(TINY_STORIES, tmp_path / "out", weights=weights)
    assert_rows_equal_at_every_width(bundle, 2048)


@pytest.mark.parametrize(
    ("path", "parents"),
    [([0, 1, 2, 3, 4], [-1, 0, 1, 2, 3, 1, 5, 0]), ([0, 2, 4, 6, 7], [-1, 0, 0, 2, 2, 4, 4, 6])],
    ids=["first path", "side branch"],
)
def test_rows_of_a_path_of_a_tree_are_bit_equal_to_plain_rows(any_bundle, path, parents):
    """They continue the text; other rows hang off them."""
    ids = tokens(40, 128)
    plain = GraphRunner(any_bundle).feed_all(ids, 1)
    runner = GraphRunner(any_bundle)
    runner.feed_all(ids[:30], 1)
    nodes = np.array([5, 5, 5, 6, 6, 6, 7, 7])
    nodes[path] = ids[30:35]
    rows = runner.run(nodes, parents, 8)
    assert np.array_equal(rows[path], plain[30:35])


def test_padding_rows_do_not_matter(any_bundle):
    ids = tokens(5, 128)
    padded = GraphRunner(any_bundle).feed(ids, 16)
    runner = GraphRunner(any_bundle)
    for name, cache in runner.caches.items():
        cache.update_inplace(np.full(cache.shape(), 0x40, np.uint8))
        assert runner.caches[name].numpy().max() == 0x40
    assert np.array_equal(runner.feed(ids, 16), padded)


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_blocks_compute_what_one_block_does(tmp_path, weights):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=3)
    ids = tokens(20, 128)
    one = GraphRunner(exported(checkpoint, tmp_path / "one", weights=weights)).feed_all(ids, 8)
    bundle = exported(checkpoint, tmp_path / "two", weights=weights, blocks=2)
    assert [list(block.layers) for block in bundle.manifest.blocks] == [[0], [1, 2]]
    assert np.array_equal(GraphRunner(bundle).feed_all(ids, 8), one)


def test_an_output_without_weights_and_the_smallest_model_are_exact(tmp_path):
    sizes = {"hidden": 4, "ffn": 1, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 2}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **sizes)
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.layers.0.self_attn.o_proj.weight"][1] = 0
    weights["model.layers.0.mlp.down_proj.weight"][:] = 0
    save_weights(checkpoint, weights)
    session = open_session(exported(checkpoint, tmp_path / "bundle", weights="int8").path)
    assert session.widths == (*range(1, 9), 12, 16, 24, 32)


def test_graphs_are_small_valid_and_share_their_weights(any_bundle):
    manifest = any_bundle.manifest
    graphs = [*manifest.head.graphs.values(), *manifest.blocks[0].graphs.values()]
    for name in graphs:
        onnx.checker.check_model(str(any_bundle.file(name)))
        assert manifest.files[name].num_bytes < 20_000
    assert len([name for name in manifest.files if name.endswith(".weights")]) == 2
