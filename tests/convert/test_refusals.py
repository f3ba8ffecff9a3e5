"""What exporting refuses, by name, and that it leaves nothing behind."""

import contextlib
import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoints import (
    LLAMA3_SCALING,
    STORIES,
    exported,
    needs_shared,
    save_weights,
    sums,
    write_checkpoint,
)
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.families.table import parse_config
from coordgen_rs.errors import CheckpointError, ExportError, OptionError, UnsupportedModelError
from json_values import JSON_VALUES

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
MISTRAL = {"architectures": ["MistralForCausalLM"]}
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"]}
GRANITE = {"architectures": ["GraniteForCausalLM"]}
PHI3 = {"architectures": ["Phi3ForCausalLM"]}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"]}
YARN = {"type": "yarn", "factor": 4.0}
GROWTH = {"llama_4_scaling_beta": 0.1}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "original_max_position_embeddings": 64,
}
MINISTRAL = {"architectures": ["Ministral3ForCausalLM"]}
MISTRAL3 = {"architectures": ["Mistral3ForConditionalGeneration"]}
OLMO3 = {
    "architectures": ["Olmo3ForCausalLM"],
    "layer_types": ["sliding_attention", "full_attention"],
}
GRANITE4 = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_local_experts": 0,
    "layer_types": ["attention", "attention"],
}


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
        ({"layer_types": ["full_attention"]}, "each of 2 layers"),
        (QWEN3 | {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        (QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (QWEN3 | {"attention_bias": True}, "attention_bias"),
        (QWEN3 | {"architectures": ["Qwen2MoeForCausalLM"]}, "Qwen2MoeForCausalLM"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window is 0"),
        (SMOLLM3 | {"no_rope_layers": [1, 0, 1]}, "no_rope_layers"),
        (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        (GRANITE | {"residual_multiplier": "small"}, "residual_multiplier is 'small'"),
        (GRANITE | {"logits_scaling": 0}, "logits_scaling is 0"),
        (PHI3 | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        (
            PHI3 | {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "expected 8 numbers",
        ),
        ({"head_dim": None, "hidden_size": 1}, "of dimension 0 cannot be grouped"),
        (PHI3 | {"partial_rotary_factor": 0.2}, "partial_rotary_factor leaves 3 of 16"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (GEMMA3 | {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (GEMMA3 | {"hidden_activation": "silu"}, "hidden_activation"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA3 | {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        (GEMMA3 | {"architectures": ["Gemma2ForCausalLM"]}, "Gemma2ForCausalLM"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "text_config is None"),
        (MISTRAL | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_scaling": YARN | {"factor": "x"}}, "factor is 'x'"),
        ({"rope_scaling": YARN | {"factor": 0.5}}, "factor is 0.5"),
        ({"rope_scaling": YARN | {"beta_fast": -1}}, "beta_fast is -1"),
        ({"rope_scaling": YARN | {"beta_slow": [1]}}, r"beta_slow is \[1\]"),
        ({"rope_scaling": YARN | {"mscale": "1"}}, "mscale is '1'"),
        ({"rope_scaling": YARN | {"attention_factor": 0}}, "attention_factor is 0"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "original_max_pos"),
        ({"rope_scaling": YARN, "rope_theta": 1}, "rope_theta is 1, which YaRN"),
        ({"rope_scaling": YARN | GROWTH}, "llama_4_scaling_beta = 0.1 is not supported in llama"),
        (MINISTRAL | {"rope_parameters": YARN | {"llama_4_scaling_beta": "x"}}, "beta is 'x'"),
        (MINISTRAL | {"rope_parameters": GROWTH}, "original_max_position_embeddings is None"),
        (MINISTRAL | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        (MINISTRAL | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (MINISTRAL | {"head_dim": 15}, "of dimension 15 cannot be grouped and rotated"),
        (MISTRAL3 | {"text_config": {"model_type": "mistral4"}}, "model_type 'mistral4'"),
        (MISTRAL3 | {"text_config": {"model_type": 3}}, "model_type 3, which is not supported"),
        (MISTRAL3, "text_config is None"),
        (OLMO3 | {"attention_bias": True}, "attention_bias"),
        (OLMO3 | {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        (OLMO3 | {"layer_types": ["full_attention"]}, "each of 2 layers"),
        (OLMO3 | {"sliding_window": None}, "layer_types"),
        (OLMO3 | {"rope_scaling": LONGROPE}, "longrope is not supported where layers with a"),
        (
            OLMO3 | {"rope_parameters": {"sliding_attention": YARN}},
            "an attention factor of 1.13863 is not supported in layers with a window",
        ),
        (OLMO3 | {"architectures": ["OlmoForCausalLM"]}, "OlmoForCausalLM"),
        (OLMO3 | {"architectures": ["OlmoHybridForCausalLM"]}, "OlmoHybridForCausalLM"),
        (OLMO3 | {"architectures": ["FlexOlmoForCausalLM"]}, "FlexOlmoForCausalLM"),
        (GRANITE4 | {"num_local_experts": 62}, "mlp.gate_proj.weight has the shape"),
        (
            GRANITE4 | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 96},
            "no tensor .*layers.0.mamba.in_proj",
        ),
        (GRANITE4 | {"layer_types": None}, "none of the 2 layers has attention"),
        (GRANITE4 | {"layer_types": ["attention", 7]}, "layer 1 of 2 is of the kind 7"),
        (GRANITE4 | {"layer_types": ["attention"]}, "each of 2 layers"),
        (GRANITE4 | {"attention_bias": True}, "attention_bias"),
        (GRANITE4 | {"shared_intermediate_size": 0}, "intermediate_size is 0"),
        (GRANITE4 | {"architectures": ["GraniteMoeForCausalLM"]}, "num_local_experts is 0"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"hidden_size": "many"}, "hidden_size"),
        ({"head_dim": 25_545_525_350}, "head_dim"),
        ({"head_dim": 1 << 24}, "16777216 dimensions"),
        ({"eos_token_id": 4000}, "4000"),
    ],
    ids=str,
)
def test_what_the_graphs_cannot_do_is_refused_by_name(tmp_path, options, name):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text()) | options
    (checkpoint / "config.json").write_text(json.dumps(config))
    refuse(checkpoint, tmp_path / "out", CheckpointError, name)


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
    yarn = YARN | {"beta_fast": 8, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5} | GROWTH
    changed = data.draw(st.sampled_from(sorted(yarn)))
    ministral = config | MINISTRAL | {"rope_parameters": yarn | {changed: data.draw(JSON_VALUES)}}
    with contextlib.suppress(CheckpointError):
        parse_config(ministral, {})


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_offsets": [0, float("inf")]}, r"model\.safetensors: the header holds Infinity"),
        ({"shape": [float("inf")]}, r"model\.safetensors: the header holds Infinity"),
        ({"shape": [1.5]}, r"damaged header at model\.norm\.weight: .*shape\[0\] is float 1\.5"),
        ({"shape": [2**62] * 1_000}, r"damaged header at model\.norm\.weight"),
        ({"shape": [2]}, r"damaged header at model\.norm\.weight"),
        ({"data_offsets": [4, 0]}, r"damaged header at model\.norm\.weight"),
        ({"data_offsets": [0, 4, 8]}, r"damaged header at model\.norm\.weight"),
        ({"dtype": "I16", "data_offsets": [0, 2**62]}, "truncated"),
        ({"dtype": "I64", "data_offsets": [0, 2**62]}, r"damaged header at model\.norm\.weight"),
        ({"dtype": None}, r"damaged header at model\.norm\.weight: .*dtype is NoneType"),
    ],
    ids=str,
)
def test_a_header_that_cannot_be_true_is_named(tmp_path, fields, message):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    fields = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | fields
    write_header(checkpoint, json.dumps({"model.norm.weight": fields}).encode())
    refuse(checkpoint, tmp_path / "out", CheckpointError, message)


def write_header(checkpoint: Path, header: bytes) -> None:
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (checkpoint / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "header", "index"])
@pytest.mark.parametrize("text", ["[" * 200_000, r'{"a": "\ud800"}', '{"a": 1, "a": 2}'], ids=len)
def test_hostile_json_in_a_checkpoint_is_refused_with_its_file(tmp_path, file, text):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    name = {"header": "model.safetensors", "index": "model.safetensors.index.json"}.get(file, file)
    if file == "header":
        write_header(checkpoint, text.encode())
    else:
        (checkpoint / name).write_text(text)
    refuse(checkpoint, tmp_path / "out", CheckpointError, name.replace(".", r"\."))


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_pipe_in_a_checkpoint_is_refused_not_waited_for(tmp_path, file):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / file).unlink(missing_ok=True)
    os.mkfifo(checkpoint / file)
    refuse(checkpoint, tmp_path / "out", CheckpointError, f"{file}.* is a pipe")


@pytest.mark.parametrize(
    "shard", ["/etc/passwd", "../other.safetensors", "..\\x", "C:x", "a\0b", ""]
)
def test_a_shard_outside_the_checkpoint_is_refused(tmp_path, shard):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    index = {"weight_map": {"model.norm.weight": shard}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse(checkpoint, tmp_path / "out", CheckpointError, "not a plain file name")


@pytest.mark.parametrize("value", [10**400, "1e400", 1e300, -1, True, float("nan")], ids=str)
def test_an_impossible_epsilon_is_refused(tmp_path, value):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    text = json.dumps(config | {"rms_norm_eps": "HERE"})
    text = text.replace('"HERE"', value if isinstance(value, str) else json.dumps(value))
    (checkpoint / "config.json").write_text(text)
    refuse(checkpoint, tmp_path / "out", CheckpointError, r"config\.json")


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


def test_weights_of_earlier_versions_are_refused_with_what_to_take(tmp_path, capsys):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    message = "w8a8 is gone: int8 is faster and rounds less"
    refuse(checkpoint, tmp_path / "out", OptionError, f"^weights {message}$", weights="w8a8")
    for provider in ("cpu", "qnn"):
        options = ["--provider", provider, "--weights", "w8a8"]
        assert main(["export", str(checkpoint), str(tmp_path / "out"), *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f"error: --weights {message}")


def test_a_step_wider_than_a_chunk_is_refused(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    options = {"prefill_rows": 4, "decode_rows": 32}
    message = "decode_rows is 32, expected at most prefill_rows, 4"
    refuse(checkpoint, tmp_path / "out", OptionError, message, **options)


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
from coordgen_rs.convert import export_checkpoint
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
from coordgen_rs.convert import export_checkpoint
export_checkpoint(sys.argv[1], sys.argv[2], weights=sys.argv[3])
with open("/proc/self/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""
    peak_bytes = 1024 * int(in_child(code, checkpoint, tmp_path / "out", Path(weights)))
    assert peak_bytes < 1.5 * (checkpoint / "model.safetensors").stat().st_size


def test_a_llama2c_header_that_names_millions_of_layers_is_refused_at_once(tmp_path):
    model = tmp_path / "model.bin"
    model.write_bytes(struct.pack("<7i", 4, 3, (1 << 24) - 1, 2, 1, 264, 4))
    with pytest.raises(CheckpointError, match="its header says 6174019420"):
        open_checkpoint(model)


@needs_shared
@pytest.mark.parametrize("damaged", ["stories260K.bin", "tok512.bin"])
def test_a_truncated_llama2c_file_is_named(tmp_path, damaged):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for file in ("stories260K.bin", "tok512.bin"):
        raw = (STORIES / file).read_bytes()
        (checkpoint / file).write_bytes(raw[:-100] if file == damaged else raw)
    refuse(checkpoint, tmp_path / "out", CheckpointError, damaged)
