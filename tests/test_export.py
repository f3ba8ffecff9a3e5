import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from checkpoints import save_weights, write_checkpoint
from coordgen_rs.bundle import Bundle
from coordgen_rs.errors import CheckpointError, ExportError, OptionError, UnsupportedModelError
from coordgen_rs.export import export_checkpoint
from coordgen_rs.export.config import parse_config
from coordgen_rs.export.llama2c_tokenizer import convert_tokenizer
from coordgen_rs.export.quantize import BLOCK_SIZE, quantize_rows
from graph_runner import HIDDEN, GraphRunner
from reference import forward, load_checkpoint

SHARED = Path(os.environ.get("COORDGEN_SHARED", Path(__file__).parents[2] / "shared")) / "models"
STORIES, TINY_STORIES = SHARED / "stories260K", SHARED / "TinyStories-656K"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="no shared models here")

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN_05B: dict[str, Any] = {
    "family": "qwen2",
    "hidden": 896,
    "ffn": 4864,
    "heads": 14,
    "kv_heads": 2,
    "vocab": 151_936,
    "rope_theta": 1e6,
}
QWEN_15B = {**QWEN_05B, "hidden": 1536, "ffn": 8960, "heads": 12, "vocab": 512}
LLAMA_1B: dict[str, Any] = {
    "hidden": 2048,
    "ffn": 8192,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 64,
    "vocab": 512,
    "rope_theta": 5e5,
    "rope_scaling": {**LLAMA3_SCALING, "original_max_position_embeddings": 8192},
}
LLAMA_3B = {**LLAMA_1B, "hidden": 3072, "heads": 24, "head_dim": 128}


def exported(checkpoint: Path, out: Path, **options: Any) -> Bundle:
    export_checkpoint(checkpoint, out, **options)
    bundle = Bundle.open(out)
    bundle.verify()
    return bundle


def sums(bundle: Bundle) -> dict[str, str]:
    return {name: record.sha256 for name, record in bundle.manifest.files.items()}


def tokens(count: int, vocab: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, vocab, count)


# What the graphs compute


@needs_shared
def test_tiny_stories_logits_equal_a_numpy_forward_pass(tmp_path):
    bundle = exported(TINY_STORIES, tmp_path / "out")
    text = "Once upon a time there was a little dog. He liked to play in the garden with Lily."
    ids = Tokenizer.from_file(str(bundle.file("tokenizer.json"))).encode(text).ids
    expected = forward(*load_checkpoint(TINY_STORIES), ids)
    np.testing.assert_allclose(GraphRunner(bundle).feed_all(ids, 32), expected, atol=1e-4)


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
    np.testing.assert_allclose(runner.feed_all(ids, 64), expected, atol=1e-4)


def test_new_style_rope_parameters_mean_the_same(tmp_path):
    scaling = {"rope_scaling": LLAMA3_SCALING, "rope_theta": 5e5}
    parameters = {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 5e5}, "rope_theta": None}
    old = write_checkpoint(tmp_path / "old", **scaling)
    new = write_checkpoint(tmp_path / "new", **parameters)
    frequencies = [
        exported(path, tmp_path / f"{path.name}-out").manifest.inv_freq for path in (old, new)
    ]
    assert frequencies[0] == frequencies[1]


def dequantized(matrix: np.ndarray, bits: int) -> np.ndarray:
    """What the quantised matrix stands for, written out block by block."""
    result = np.zeros_like(matrix)
    for row, start in itertools.product(
        range(matrix.shape[0]), range(0, matrix.shape[1], BLOCK_SIZE)
    ):
        block = matrix[row, start : start + BLOCK_SIZE]
        if bits == 8:
            scale = max(block, key=abs) / -128
            low, high, zero = -128, 127, 0
        else:
            scale = (max(block.max(), 0) - min(block.min(), 0)) / 15
            low, high, zero = 0, 15, np.rint(-min(block.min(), 0) / scale) if scale else 0
        values = np.clip(np.rint(block / scale) + zero, low, high) if scale else block
        result[row, start : start + BLOCK_SIZE] = (values - zero) * scale
    return result


def rounded_to_8_bits(x: np.ndarray) -> np.ndarray:
    """Activations as MatMulNBits with accuracy level 4 sees them: blocks of 32, symmetric."""
    padded = np.pad(x, [(0, 0), (0, -x.shape[1] % BLOCK_SIZE)])
    blocks = padded.reshape(len(x), -1, BLOCK_SIZE)
    scales = np.abs(blocks).max(-1, keepdims=True) / 127
    values = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0))
    return (values * scales).reshape(padded.shape)[:, : x.shape[1]]


@pytest.mark.parametrize(("weights", "bits"), [("int8", 8), ("int4", 4)])
def test_quantised_logits_are_near_a_dequantised_forward_pass(tmp_path, weights, bits):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", family="qwen2", ffn=100)
    config, matrices = load_checkpoint(checkpoint)
    for name, matrix in matrices.items():
        if "_proj.weight" in name or name == "lm_head.weight":
            matrices[name] = dequantized(matrix, 8 if name == "lm_head.weight" else bits)
    embedding = matrices["model.embed_tokens.weight"]
    matrices["model.embed_tokens.weight"] = embedding.astype(np.float16).astype(np.float32)
    ids = tokens(40, 128)
    expected = forward(config, matrices, ids, rounded_to_8_bits)
    logits = GraphRunner(exported(checkpoint, tmp_path / "out", weights=weights)).feed_all(ids, 8)
    assert np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2)) < 2e-3


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([4, 8]),
    st.integers(1, 5),
    st.integers(1, 100),
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
)
def test_quantised_weights_are_within_a_step_of_the_weights(bits, rows, columns, seed, size):
    matrix = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    matrix *= np.float32(size)
    quantized = quantize_rows(matrix, bits)
    values, zeros = quantized.values, np.full(quantized.scales.shape, 128)
    if bits == 4:
        values = np.stack([values & 15, values >> 4], -1).reshape(*values.shape[:2], -1)
        packed = quantized.zero_points
        zeros = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1)
        zeros = zeros[:, : quantized.scales.shape[1]]
    weights = (values - zeros[..., None].astype(np.float32)) * quantized.scales[..., None]
    weights = weights.reshape(rows, -1)
    step = np.abs(quantized.scales).repeat(BLOCK_SIZE, 1)[:, :columns]
    assert np.all(np.abs(weights[:, :columns] - matrix) <= step * 1.001)
    assert np.all(weights[:, columns:] == 0)


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
from coordgen_rs.bundle import Bundle
from coordgen_rs.onnx_runtime import set_threads
from graph_runner import GraphRunner
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
            [*command, threads], cwd=Path(__file__).parent, check=True, capture_output=True
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


def test_the_first_path_of_a_tree_is_bit_equal_to_plain_rows(any_bundle):
    ids = tokens(40, 128)
    plain = GraphRunner(any_bundle).feed_all(ids, 1)
    runner = GraphRunner(any_bundle)
    runner.feed_all(ids[:30], 1)
    # Rows 0 to 4 continue the text; 5 hangs off row 1, 6 off 5, 7 off the root.
    parents = [0, 0, 1, 2, 3, 1, 5, 0]
    mask = np.full((1, 1, 8, any_bundle.manifest.slots), HIDDEN, np.float32)
    mask[..., :30] = 0
    depths = []
    for row, parent in enumerate(parents):
        mask[0, 0, row, 30:] = mask[0, 0, parent, 30:]
        mask[0, 0, row, 30 + row] = 0
        depths.append(depths[parent] + 1 if row else 0)
    tree = [*ids[30:35], 5, 6, 7]
    rows = runner.run(tree, 30 + np.array(depths), mask, 8)
    assert np.array_equal(rows[:5], plain[30:35])


def test_padding_rows_do_not_matter(any_bundle):
    ids = tokens(5, 128)
    padded = GraphRunner(any_bundle).feed(ids, 16)
    runner = GraphRunner(any_bundle)
    for name, cache in runner.caches.items():
        cache.update_inplace(np.full(cache.shape(), 3.0, np.float32))
        assert runner.caches[name].numpy().max() == 3
    assert np.array_equal(runner.feed(ids, 16), padded)


def test_blocks_compute_what_one_block_does(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=3)
    ids = tokens(20, 128)
    one = GraphRunner(exported(checkpoint, tmp_path / "one")).feed_all(ids, 8)
    bundle = exported(checkpoint, tmp_path / "two", blocks=2)
    assert [list(block.layers) for block in bundle.manifest.blocks] == [[0], [1, 2]]
    assert np.array_equal(GraphRunner(bundle).feed_all(ids, 8), one)


# What a bundle is


def test_graphs_are_small_valid_and_share_their_weights(any_bundle):
    manifest = any_bundle.manifest
    graphs = [*manifest.head.graphs.values(), *manifest.blocks[0].graphs.values()]
    for name in graphs:
        onnx.checker.check_model(str(any_bundle.file(name)))
        assert manifest.files[name].num_bytes < 20_000
    assert len([name for name in manifest.files if name.endswith(".weights")]) == 2


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({}, [1, 4, 8, 16, 32, 256]),
        ({"decode_rows": 8, "prefill_rows": 64}, [1, 4, 8, 64]),
        ({"decode_rows": 24, "prefill_rows": 4}, [1, 4, 8, 16, 24]),
        ({"decode_rows": 1, "prefill_rows": 1}, [1]),
    ],
    ids=str,
)
def test_widths_follow_the_options(tmp_path, options, widths):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", max_positions=300)
    manifest = exported(checkpoint, tmp_path / "out", **options).manifest
    assert manifest.widths == widths
    assert (manifest.context, manifest.slots) == (300, 300 + widths[-1])


def test_shards_and_one_file_give_the_same_bundle(tmp_path):
    one = write_checkpoint(tmp_path / "one")
    three = write_checkpoint(tmp_path / "three", shards=3)
    assert sums(exported(one, tmp_path / "a")) == sums(exported(three, tmp_path / "b"))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_weights_are_read_as_they_are(tmp_path, dtype):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", dtype=dtype)
    ids = tokens(20, 128)
    expected = forward(*load_checkpoint(checkpoint), ids)
    logits = GraphRunner(exported(checkpoint, tmp_path / "out")).feed_all(ids, 32)
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_a_tied_tensor_may_have_either_name(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    bundle = exported(checkpoint, tmp_path / "a")
    file = checkpoint / "model.safetensors"
    # The name of a JSON key may change if its length stays: the offsets do not move.
    old, new = b'"model.embed_tokens.weight"', b'"lm_head.weight"           '
    file.write_bytes(file.read_bytes().replace(old, new))
    assert sums(exported(checkpoint, tmp_path / "b")) == sums(bundle)


def test_end_tokens_are_those_for_generation(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    assert exported(checkpoint, tmp_path / "a").manifest.end_token_ids == [2]
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    manifest = exported(checkpoint, tmp_path / "b").manifest
    assert (manifest.end_token_ids, manifest.bos_token_id) == ([2, 5], 1)


@pytest.mark.parametrize(
    ("model", "weights"),
    [(QWEN_05B, "int8"), (QWEN_15B, "int4"), (LLAMA_1B, "fp32"), (LLAMA_3B, "int4")],
    ids=["Qwen2.5-0.5B", "Qwen2.5-1.5B", "Llama-3.2-1B", "Llama-3.2-3B"],
)
def test_known_models_pass_by_shape(tmp_path, model, weights):
    checkpoint = write_checkpoint(
        tmp_path / "checkpoint", layers=1, dtype="BF16", max_positions=32_768, **model
    )
    bundle = exported(checkpoint, tmp_path / "out", weights=weights, context=64, prefill_rows=16)
    one = GraphRunner(bundle).feed_all([3, 1, 4, 1, 5], 1)
    four = GraphRunner(bundle).feed_all([3, 1, 4, 1, 5], 4)
    assert one.shape == (5, model["vocab"])
    assert np.array_equal(one, four)
    assert np.isfinite(one).all()


# llama2.c


@needs_shared
def test_stories_tell_the_known_text_from_an_empty_prompt(tmp_path):
    bundle = exported(STORIES, tmp_path / "out")
    runner, ids = GraphRunner(bundle), [bundle.manifest.bos_token_id]
    while len(ids) < 80:
        ids.append(int(runner.feed(ids[-1:], 1).argmax()))
    text = Tokenizer.from_file(str(bundle.file("tokenizer.json"))).decode(ids)
    assert text.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "park. One day, she saw a big, red ball."
    )


def llama2c_pieces() -> list[tuple[bytes, float]]:
    raw, pieces, offset = (STORIES / "tok512.bin").read_bytes(), [], 4
    while offset < len(raw):
        score = np.frombuffer(raw, "<f4", 1, offset)[0]
        length = int(np.frombuffer(raw, "<i4", 1, offset + 4)[0])
        pieces.append((raw[offset + 8 : offset + 8 + length], float(score)))
        offset += 8 + length
    return pieces


def llama2c_encode(pieces: list[tuple[bytes, float]], text: str) -> list[int]:
    """`encode` of llama2.c's run.c."""
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    encoded = [ids[b" "]] if text else []
    for character in text:
        raw = character.encode()
        encoded += [ids[raw]] if raw in ids else [byte + 3 for byte in raw]
    while True:
        best, where = -1e10, None
        for i in range(len(encoded) - 1):
            joined = ids.get(pieces[encoded[i]][0] + pieces[encoded[i + 1]][0])
            if joined is not None and pieces[joined][1] > best:
                best, where = pieces[joined][1], (i, joined)
        if where is None:
            return [1, *encoded]
        encoded[where[0] : where[0] + 2] = [where[1]]


@needs_shared
@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.text("the andOnceuponLily ,.\n", max_size=60)))
def test_converted_tokenizer_encodes_as_llama2c_does(text):
    tokenizer = Tokenizer.from_str(convert_tokenizer(STORIES / "tok512.bin", 512))
    assert tokenizer.encode(text).ids == llama2c_encode(llama2c_pieces(), text)


@needs_shared
@pytest.mark.parametrize("damaged", ["stories260K.bin", "tok512.bin"])
def test_a_truncated_llama2c_file_is_named(tmp_path, damaged):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for file in ("stories260K.bin", "tok512.bin"):
        raw = (STORIES / file).read_bytes()
        (checkpoint / file).write_bytes(raw[:-100] if file == damaged else raw)
    refuse(checkpoint, tmp_path / "out", CheckpointError, damaged)


# What is refused


def refuse(checkpoint: Path, out: Path, error: type[Exception], match: str, **options: Any) -> None:
    """Exporting fails with a message that has `match`, and leaves nothing beside the checkpoint."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(error, match=match):
        export_checkpoint(checkpoint, out, **options)
    assert sorted(out.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"hidden_size": "many"}, "hidden_size"),
        ({"head_dim": 25_545_525_350}, "head_dim"),
        ({"eos_token_id": 4000}, "4000"),
    ],
    ids=str,
)
def test_what_the_graphs_cannot_do_is_refused_by_name(tmp_path, options, name):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text()) | options
    (checkpoint / "config.json").write_text(json.dumps(config))
    refuse(checkpoint, tmp_path / "out", CheckpointError, name)


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_config_is_read_or_refused_by_name(data):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": [2],
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_types": ["full_attention"],
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": LLAMA3_SCALING,
        "rope_theta": 5e5,
        "vocab_size": 128,
    }
    changed = data.draw(st.sampled_from(sorted(config)))
    with contextlib.suppress(CheckpointError):
        parse_config(config | {changed: data.draw(JSON_VALUES)}, {})
    changed = data.draw(st.sampled_from(sorted(LLAMA3_SCALING)))
    scaling = LLAMA3_SCALING | {changed: data.draw(JSON_VALUES)}
    with contextlib.suppress(CheckpointError):
        parse_config(config | {"rope_scaling": scaling}, {})


def test_another_architecture_is_an_unsupported_model(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", architectures=["GPT2LMHeadModel"])
    refuse(checkpoint, tmp_path / "out", UnsupportedModelError, "GPT2LMHeadModel")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path, file):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / file).unlink()
    refuse(checkpoint, tmp_path / "out", CheckpointError, file)


def test_a_damaged_tokenizer_is_named(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "tokenizer.json").write_text('{"model": 7}')
    refuse(checkpoint, tmp_path / "out", CheckpointError, "tokenizer.json")


def test_tensors_that_are_not_used_may_have_any_type(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    weights = load_file(checkpoint / "model.safetensors")
    bundle = exported(checkpoint, tmp_path / "a")
    save_weights(checkpoint, weights | {"rotary.position_ids": np.arange(4)})
    assert sums(exported(checkpoint, tmp_path / "b")) == sums(bundle)
    save_weights(checkpoint, weights | {"model.norm.weight": np.ones(64, np.int64)})
    refuse(checkpoint, tmp_path / "out", CheckpointError, r"model\.norm\.weight has the type I64")


def test_a_missing_shard_is_named(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", shards=2)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    refuse(checkpoint, tmp_path / "out", CheckpointError, "model-00002-of-00002")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_weight_file_is_named(tmp_path, kept):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refuse(checkpoint, tmp_path / "out", CheckpointError, "model.safetensors")


def test_missing_and_misshaped_tensors_are_named(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    refuse(checkpoint, tmp_path / "out", CheckpointError, r"model\.layers\.2\.")
    (checkpoint / "config.json").write_text(json.dumps(config | {"intermediate_size": 99}))
    refuse(checkpoint, tmp_path / "out", CheckpointError, r"gate_proj\.weight .*99")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_weight_header_never_raises_anything_unnamed(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    if not path.exists():
        write_checkpoint(path / "checkpoint")
    original = (path / "checkpoint" / "model.safetensors").read_bytes()
    raw = bytearray(original)
    end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    (path / "checkpoint" / "model.safetensors").write_bytes(raw)
    try:
        export_checkpoint(path / "checkpoint", path / "out", decode_rows=1, prefill_rows=1)
    except CheckpointError:
        assert [entry.name for entry in path.iterdir()] == ["checkpoint"]
    else:
        for file in (path / "out").iterdir():
            file.unlink()
        (path / "out").rmdir()
    finally:
        (path / "checkpoint" / "model.safetensors").write_bytes(original)


@pytest.mark.parametrize(
    "options",
    [{"weights": "int3"}, {"blocks": 3}, {"blocks": 0}, {"decode_rows": 0}, {"context": 513}],
    ids=str,
)
def test_options_out_of_range_are_named(tmp_path, options):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    refuse(checkpoint, tmp_path / "out", OptionError, next(iter(options)), **options)


def test_an_existing_target_is_left_alone(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    out = tmp_path / "out"
    out.mkdir()
    exported(checkpoint, out)  # an empty directory is taken over
    before = {file: hashlib.sha256(file.read_bytes()).digest() for file in out.iterdir()}
    refuse(checkpoint, out, ExportError, "exists already")
    assert before == {file: hashlib.sha256(file.read_bytes()).digest() for file in out.iterdir()}


# What is left behind


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "layer 1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_checkpoint(checkpoint, tmp_path / "out", on_progress=interrupt)
    assert list(tmp_path.iterdir()) == [checkpoint]


def in_child(code: str, *arguments: Path) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    code = """
import resource, sys
from coordgen_rs.errors import ExportError
from coordgen_rs.export import export_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    export_checkpoint(sys.argv[1], sys.argv[2])
except ExportError as error:
    print(error)
"""
    message = in_child(code, checkpoint, tmp_path / "out")
    assert "block_00.weights cannot be written" in message
    assert list(tmp_path.iterdir()) == [checkpoint]


@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_peak_memory_is_below_one_and_a_half_checkpoints(tmp_path, weights):
    checkpoint = write_checkpoint(
        tmp_path / "checkpoint",
        hidden=1024,
        ffn=4096,
        heads=16,
        layers=4,
        vocab=32_000,
        dtype="BF16",
    )
    code = """
import sys
from coordgen_rs.export import export_checkpoint
export_checkpoint(sys.argv[1], sys.argv[2], weights=sys.argv[3])
with open("/proc/self/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""
    peak_bytes = 1024 * int(in_child(code, checkpoint, tmp_path / "out", Path(weights)))
    assert peak_bytes < 1.5 * (checkpoint / "model.safetensors").stat().st_size
