"""gpt-oss: what its checkpoints say, in floats and in MXFP4, and what is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints import exported
from coordgen_rs import OrtSession
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.table import parse_config
from coordgen_rs.runtime.cpu import CpuDevice
from families import (
    compare,
    needs_transformers,
    prompt_logits,
    random_model,
    tokens,
    write_safetensors,
)
from gguf_files import write_gguf
from gpt_oss import CONFIG, in_gguf, pack, rounded, write_gpt_oss

MXFP4 = {"quant_method": "mxfp4"}
FILE = Path(__file__).with_name("published.json")
PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    **json.loads(FILE.read_text("utf-8"))["gpt-oss-20b"]["config"],
}
IN_BLOCKS = "gpt-oss, context in window"
"""A miniature whose rows are whole blocks."""
ENDS = {"eos_token_id": [200_002, 199_999, 200_012]}
EXPERTS = "model.layers.1.mlp.experts"


def parsed(**options: Any) -> ModelConfig:
    return parse_config(CONFIG | options, {})


def test_the_published_configuration_is_read():
    model = parse_config(PUBLISHED, ENDS)
    assert (model.window, sorted(model.window_layers)) == (128, list(range(0, 24, 2)))
    assert (model.num_heads, model.num_kv_heads, model.head_dim) == (64, 8, 64)
    assert (model.qkv_bias, model.out_bias, model.has_sinks) == (True, True, True)
    assert model.end_token_ids == [200_002, 199_999, 200_012]
    assert model.rope_factor == pytest.approx(0.1 * np.log(32) + 1)
    experts = model.experts
    assert (experts.num, experts.chosen, experts.size) == (32, 4, 2880)
    assert (experts.gate, experts.has_biases) == ("clamped_swiglu", True)
    assert experts.layers == frozenset(range(24))


def test_what_a_configuration_leaves_out_is_that_of_the_120b_model():
    said = {name: PUBLISHED[name] for name in ("architectures",)}
    model, known = parse_config(said, {}), parse_config(PUBLISHED, {})
    assert model.inv_freq == known.inv_freq
    assert (model.window, model.window_layers) == (128, frozenset(range(0, 36, 2)))
    assert (model.experts.num, model.num_layers, model.vocab_size) == (128, 36, 201_088)


def test_the_ramp_of_its_rotation_is_not_rounded():
    whole = PUBLISHED["rope_scaling"] | {"truncate": True}
    assert parsed(rope_scaling=whole).inv_freq != parsed(rope_scaling=PUBLISHED["rope_scaling"])
    ratio = np.array(parse_config(PUBLISHED, {}).inv_freq) * 150_000 ** (np.arange(32) / 32)
    # From pair 8.09 to pair 17.4, as no rounding has it.
    assert np.allclose(ratio[:9], 1)
    assert np.allclose(ratio[18:], 1 / 32)
    ramp = (9 - 8.0929) / (17.3977 - 8.0929)
    assert ratio[9] == pytest.approx(1 - ramp * (1 - 1 / 32), rel=1e-4)


def logits_of(checkpoint: Path, out: Path, weights: str) -> Any:
    bundle = exported(checkpoint, out, weights=weights, prefill_rows=32)
    return prompt_logits(OrtSession(CpuDevice(bundle)), tokens())


def tensors_of(path: Any) -> dict[str, Tensor]:
    return open_checkpoint(path).tensors


@pytest.mark.parametrize("packed", [False, True], ids=["floats", "MXFP4"])
def test_experts_stand_one_below_the_other(tmp_path, packed):
    checkpoint = write_gpt_oss(tmp_path / "model", packed=packed, intermediate_size=64)
    write_gpt_oss(tmp_path / "floats", intermediate_size=64)
    weights = load_file(tmp_path / "floats" / "model.safetensors")
    expected = in_gguf(
        {
            name: rounded(values) if packed and values.ndim == 3 else values
            for name, values in weights.items()
        }
    )
    tensors = tensors_of(checkpoint)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        values = expected[name]
        if ".experts." in name and name.endswith(".weight"):
            values = values.reshape(-1, values.shape[-1])
        assert np.array_equal(tensor.load(), values), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_experts_in_floats_are_kept_as_they_are(tmp_path, dtype):
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    checkpoint = write_gpt_oss(tmp_path / "model", dtype=kind, num_hidden_layers=2)
    stored = load_file(checkpoint / "model.safetensors")
    tensors = tensors_of(checkpoint)
    gates = stored[f"{EXPERTS}.gate_up_proj"].swapaxes(1, 2)[:, 0::2]
    blocks = tensors[f"{EXPERTS}.gate_proj.weight"].blocks
    assert blocks.read_rows(0, 6 * 96).tobytes() == np.ascontiguousarray(gates).tobytes()


def test_blocks_in_mxfp4_reach_the_bundle_as_they_are(tmp_path):
    checkpoint = write_gpt_oss(tmp_path / "model", packed=True)
    bundle = exported(checkpoint, tmp_path / "bundle", decode_rows=8)
    types = {it.type: (it.num_tensors, it.is_exact) for it in bundle.manifest.kept}
    assert types["MXFP4"] == (12, True)
    assert all(region.types == ["MXFP4"] * 3 for region in bundle.manifest.experts.layers)


def test_a_configuration_that_packs_and_floats_that_are_none_the_less_read(tmp_path):
    """Tensors tell what is packed."""
    checkpoint = write_gpt_oss(tmp_path / "model")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"quantization_config": MXFP4}))
    assert tensors_of(checkpoint)[f"{EXPERTS}.gate_proj.weight"].stored_type == "F32"


def test_a_file_holds_the_blocks_of_a_checkpoint(tmp_path):
    packed = write_gpt_oss(tmp_path / "packed", packed=True)
    floats = write_gpt_oss(tmp_path / "floats")
    file = write_gguf(tmp_path / "model.gguf", floats, {"_exps.weight": "MXFP4"})
    expected, found = tensors_of(packed), tensors_of(file)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        rows = tensor.shape[0]
        assert np.array_equal(found[name].load(), tensor.load()), name
        if tensor.stored_type == "MXFP4":
            blocks = (it.blocks.read_rows(0, rows) for it in (tensor, found[name]))
            assert np.array_equal(*blocks), name
            assert found[name].part(7, 9).blocks.weight_type == "MXFP4"


def test_a_file_is_the_configuration_of_its_checkpoint(tmp_path):
    checkpoint = write_gpt_oss(tmp_path / "model")
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    expected, found = (open_checkpoint(it).config for it in (checkpoint, file))
    assert replace(found, max_positions=0) == replace(expected, max_positions=0)


def test_answers_of_a_file_end_at_the_ends_of_a_turn(tmp_path):
    """`<|end|>` ends one of several messages there, and an answer elsewhere."""
    ends = ("<|return|>", "<|call|>", "<|end|>", "<|endoftext|>")
    checkpoint = write_gpt_oss(tmp_path / "model", eos_token_id=100)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for number, text in zip((100, 101, 102, 103), ends, strict=True):
        vocabulary.pop(next(it for it, known in vocabulary.items() if known == number))
        tokenizer["added_tokens"].append(
            tokenizer["added_tokens"][0] | {"id": number, "content": text}
        )
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    sentence_end = vocabulary["</s>"]
    assert sorted(open_checkpoint(file).config.end_token_ids) == [sentence_end, 100, 101, 103]
    kinds = [3 if number in (100, 102, 103) else 1 for number in range(128)]
    other = {"tokenizer.ggml.token_type": kinds}
    file = write_gguf(tmp_path / "other.gguf", checkpoint, metadata=other)
    assert sorted(open_checkpoint(file).config.end_token_ids) == [100, 102, 103]


@needs_transformers
@pytest.mark.parametrize("gain", [1, 6], ids=["small", "clamped"])
def test_mxfp4_computes_what_transformers_does_with_the_same_numbers(tmp_path, gain):
    """With larger weights gates and ups reach what they are clamped to."""
    model = random_model(IN_BLOCKS)
    for layer in model.model.layers:
        experts = layer.mlp.experts
        for values in (experts.gate_up_proj, experts.down_proj):
            its_gain = gain if values is experts.gate_up_proj else 1
            values.data.copy_(values.new_tensor(rounded(its_gain * values.detach().numpy())))
    checkpoint = write_safetensors(model, tmp_path / "model")
    pack(checkpoint)
    bundle = exported(checkpoint, tmp_path / "fp32", weights="fp32", prefill_rows=32)
    result = compare(model, bundle)
    assert result.difference < 1e-4
    assert result.same_greedy
    for layer in model.model.layers:
        layer.mlp.experts.limit = 1e6
    assert (compare(model, bundle).difference > 1e-2) == (gain > 1)


@needs_transformers
def test_kept_mxfp4_is_near_to_its_numbers_in_floats(tmp_path):
    """Activations are rounded to 8 bits where weights are integers."""
    checkpoint = write_safetensors(random_model(IN_BLOCKS), tmp_path / "model")
    pack(checkpoint)
    floats, kept = (logits_of(checkpoint, tmp_path / it, it) for it in ("fp32", "keep"))
    assert 0 < np.abs(kept - floats).mean() < 0.1 * floats.std()


@pytest.mark.parametrize("weights", ["fp32", "int8", "keep"])
def test_a_file_computes_what_its_checkpoint_does(tmp_path, weights):
    packed = write_gpt_oss(tmp_path / "packed", packed=True)
    floats = write_gpt_oss(tmp_path / "floats")
    file = write_gguf(tmp_path / "model.gguf", floats, {"_exps.weight": "MXFP4"})
    both = (logits_of(it, tmp_path / f"of-{it.name}", weights) for it in (packed, file))
    assert np.array_equal(*both)


def test_experts_in_bfloat16_compute_what_the_same_numbers_do_in_floats(tmp_path):
    import ml_dtypes

    checkpoint = write_gpt_oss(tmp_path / "model", dtype=ml_dtypes.bfloat16)
    floats, kept = (logits_of(checkpoint, tmp_path / it, it) for it in ("fp32", "keep"))
    assert np.abs(kept - floats).max() < 1e-4
