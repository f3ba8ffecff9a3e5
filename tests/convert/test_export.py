"""What a bundle is made of, from checkpoints of every kind."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from checkpoints import LLAMA3_SCALING, STORIES, exported, needs_shared, sums, write_checkpoint
from coordgen_rs.bundle.manifest import KeptWeights
from coordgen_rs.convert.containers.llama2c import convert_tokenizer
from gemma4 import write_gemma4
from gguf_files import write_gguf
from graph_runner import GraphRunner, tokens
from reference import forward, load_checkpoint

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


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({}, [1, 4, 8, 16, 32, 256]),
        ({"decode_rows": 8, "prefill_rows": 64}, [1, 4, 8, 64]),
        ({"decode_rows": 24, "prefill_rows": 24}, [1, 4, 8, 16, 24]),
        ({"decode_rows": 1, "prefill_rows": 1}, [1]),
        *(
            ({"weights": weights, "decode_rows": 48}, [*range(1, 9), 12, 16, 24, 32, 48, 256])
            for weights in ("int8", "int4")
        ),
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
    kept = exported(checkpoint, tmp_path / "kept")
    logits = GraphRunner(kept).feed_all(ids, 32)
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    # They are the same numbers as float32, in half the bytes.
    floats = exported(checkpoint, tmp_path / "floats", weights="fp32")
    np.testing.assert_array_equal(GraphRunner(floats).feed_all(ids, 32), logits)
    assert kept.manifest.weights == "keep"
    num_tensors = len(load_file(checkpoint / "model.safetensors"))
    assert kept.manifest.kept == [KeptWeights(dtype, num_tensors, is_exact=True)]
    assert kept.manifest.embedding.dtype == dtype
    sizes = [
        sum(it.num_bytes for name, it in bundle.manifest.files.items() if name.endswith("weights"))
        for bundle in (kept, floats)
    ]
    assert sizes[0] < 0.6 * sizes[1]  # tensors begin at whole pages


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
    [(QWEN_05B, "int8"), (QWEN_15B, "int4"), (LLAMA_1B, "int4"), (LLAMA_3B, "fp32")],
    ids=["Qwen2.5-0.5B", "Qwen2.5-1.5B", "Llama-3.2-1B", "Llama-3.2-3B"],
)
def test_known_models_pass_by_shape(tmp_path, model, weights):
    checkpoint = write_checkpoint(
        tmp_path / "checkpoint", layers=1, dtype="BF16", max_positions=32_768, **model
    )
    bundle = exported(checkpoint, tmp_path / "out", weights=weights, context=64, prefill_rows=32)
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
    tokenizer = Tokenizer.from_str(convert_tokenizer(STORIES, 512))
    assert tokenizer.encode(text).ids == llama2c_encode(llama2c_pieces(), text)


def test_an_embedding_of_layers_whose_rows_are_no_whole_blocks_is_told_as_rounded(tmp_path):
    sizes = {"hidden_size_per_layer_input": 16}
    checkpoint = write_gemma4(tmp_path / "checkpoint", "gemma4", **sizes)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, {"per_layer_token_embd": "Q8_0"})
    kept = exported(file, tmp_path / "out", weights="keep").manifest.kept
    assert [it for it in kept if it.type == "Q8_0"] == [KeptWeights("Q8_0", 1, False)]
