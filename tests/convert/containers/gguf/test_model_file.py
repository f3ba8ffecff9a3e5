"""A GGUF file exports as the same model's safetensors do, and keeps what it holds."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import exported, sums, write_checkpoint
from coordgen_rs import Bundle, generate, open_session, plain
from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.cli.main import main as coordgen
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.gguf.header import GgufHeader, read_header
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.families.checkpoint import open_checkpoint, read_metadata
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.table import gguf_family_of
from coordgen_rs.convert.families.tensors import gguf_tensors
from coordgen_rs.errors import (
    BundleError,
    ChatTemplateError,
    CheckpointError,
    OptionError,
    UnsupportedModelError,
)
from gguf_files import parsed_metadata, write_gguf
from mixtures import write_mixture

PROMPT = np.frombuffer(b"once upon a time there was once upon", np.uint8).astype(np.uint32) - 28


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    return write_checkpoint(folder / "model", hidden=64, ffn=96, heads=4, kv_heads=2, head_dim=32)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weights", ["fp32", "int4", "keep"])
def test_files_of_floats_give_the_weights_of_the_safetensors(tmp_path, family, tied, weights):
    checkpoint = write_checkpoint(tmp_path / "model", family=family, tied=tied, head_dim=32)
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    from_gguf = exported(file, tmp_path / "a", weights=weights)
    from_safetensors = exported(
        checkpoint, tmp_path / "b", weights="fp32" if weights == "keep" else weights
    )
    expected, found = sums(from_safetensors), sums(from_gguf)
    assert {name: found[name] for name in found if name != "tokenizer.json"} == {
        name: expected[name] for name in expected if name != "tokenizer.json"
    }
    assert from_gguf.manifest.model == from_safetensors.manifest.model
    assert from_gguf.manifest.inv_freq == from_safetensors.manifest.inv_freq


@pytest.mark.parametrize(
    "types",
    ["Q4_0", "Q8_0", "Q4_1", "Q5_1", "F16", "BF16", {"attn_q": "Q4_0", "attn_k": "Q8_0"}],
    ids=str,
)
def test_kept_weights_answer_alike_with_and_without_drafts(tmp_path, checkpoint, types):
    file = write_gguf(tmp_path / "model.gguf", checkpoint, types)
    export_checkpoint(file, tmp_path / "bundle", context=128, prefill_rows=32)
    with_drafts, without = (
        [
            token
            for step in how(open_session(tmp_path / "bundle"), PROMPT, max_new_tokens=24)
            for token in step.token_ids
        ]
        for how in (generate, plain)
    )
    assert len(without) >= 4
    assert with_drafts == without


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "F16", "BF16"])
def test_exact_types_give_the_logits_of_their_float32_values(tmp_path, checkpoint, name):
    file = write_gguf(tmp_path / "model.gguf", checkpoint, name)
    logits = {}
    for weights in ("keep", "fp32"):
        out = tmp_path / weights
        export_checkpoint(file, out, weights=weights, context=128, prefill_rows=32)
        rows = []
        open_session(out).prefill(PROMPT, on_logits=lambda it, r=rows: r.append(it + 0))
        logits[weights] = np.concatenate(rows)
    spread = logits["fp32"].std()
    # Activations are rounded to 8 bits where weights are integers.
    most = 0.1 if name.startswith("Q") else 0
    assert np.abs(logits["keep"] - logits["fp32"]).mean() <= most * spread


_MIXED = {"attn_v": "Q5_1", "ffn_up": "Q5_0", "attn": "Q4_0", "ffn": "Q4_0"}
_WITH_FLOATS = {"attn_k": "F32", "ffn_gate": "F16", "attn": "Q4_1", "ffn": "Q8_0"}


@pytest.mark.parametrize(
    ("weights", "types"),
    [
        *((weights, "Q4_0") for weights in ("keep", "fp32", "int8", "int4")),
        *(("keep", types) for types in (_MIXED, _WITH_FLOATS)),
    ],
    ids=str,
)
def test_what_weights_take_is_told_before_they_are_written(tmp_path, weights, types):
    wide = write_checkpoint(tmp_path / "model", hidden=512, ffn=512, heads=4, kv_heads=2)
    file, out = write_gguf(tmp_path / "model.gguf", wide, types), tmp_path / "bundle"
    told = export_checkpoint(file, out, weights=weights, context=128, prefill_rows=32)[weights]
    taken = sum(
        path.stat().st_size for path in out.iterdir() if path.suffix in (".weights", ".bin")
    )
    assert told <= taken <= told + 64_000  # tensors begin at whole pages


def test_manifest_and_info_say_what_was_kept(tmp_path, checkpoint, capsys):
    types = {"attn": "Q4_0", "ffn_up": "NVFP4", "ffn": "Q4_1"}
    file = write_gguf(tmp_path / "model.gguf", checkpoint, types)
    assert coordgen(["export", str(file), str(tmp_path / "bundle")]) == 0
    said = capsys.readouterr().err
    assert coordgen(["info", str(tmp_path / "bundle")]) == 0
    shown = capsys.readouterr().out
    for line in (
        "kept: 8 Q4_0 tensors, exactly",
        "kept: 4 Q4_1 tensors, exactly",
        "kept: 2 NVFP4 tensors, as the nearest 8-bit integers",
    ):
        assert line in said
        assert line in shown
    assert "weights: keep" in shown


def test_a_type_is_kept_exactly_also_where_its_neighbours_are_not(tmp_path, checkpoint):
    types = {"attn_q": "Q4_1", "attn_k": "Q4_1", "attn_v": "NVFP4", "ffn_down": "Q4_1"}
    file = write_gguf(tmp_path / "model.gguf", checkpoint, types)
    kept = exported(file, tmp_path / "bundle", weights="keep").manifest.kept
    assert {(it.type, it.num_tensors, it.is_exact) for it in kept if it.type != "F32"} == {
        ("Q4_1", 6, True),
        ("NVFP4", 2, False),
    }


def test_a_gguf_file_is_known_by_its_first_bytes_where_its_name_does_not_say(tmp_path, checkpoint):
    named = write_gguf(tmp_path / "model.gguf", checkpoint)
    unnamed = named.rename(tmp_path / "sha256-0123")
    assert open_checkpoint(unnamed).is_gguf


def test_a_tokenizer_of_another_model_is_refused(tmp_path, checkpoint):
    file, given = write_gguf(tmp_path / "model.gguf", checkpoint), tmp_path / "tokenizer.json"
    own = json.loads((checkpoint / "tokenizer.json").read_text())
    given.write_text(json.dumps(own))
    assert json.loads(open_checkpoint(file, given).read_tokenizer()) == own
    ids = own["model"]["vocab"]
    own["model"]["vocab"] = {token: (number + 1) % len(ids) for token, number in ids.items()}
    given.write_text(json.dumps(own))
    with pytest.raises(CheckpointError, match=r"another model's: \d+ of \d+ tokens differ"):
        open_checkpoint(file, given).read_tokenizer()
    own["model"]["vocab"] = ids | {"<new>": 999_999}
    given.write_text(json.dumps(own))
    with pytest.raises(CheckpointError, match=r"another model's: it has the token id 999999"):
        open_checkpoint(file, given).read_tokenizer()


def test_a_path_that_is_no_checkpoint_says_what_it_is(tmp_path, checkpoint):
    of_the_hub = "a model of the Hugging Face Hub is called hf:OWNER/NAME"
    with pytest.raises(CheckpointError, match=f"nowhere does not exist; {of_the_hub}"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no config"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(CheckpointError, match=r"notes\.txt is no GGUF file; give one, or a dir"):
        open_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(CheckpointError, match=f"is an address; {of_the_hub}"):
        open_checkpoint(Path("https://example.org/a/model"))
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    with pytest.raises(CheckpointError, match=r"give the file, .*model\.gguf"):
        open_checkpoint(tmp_path)
    with pytest.raises(BundleError, match=r"model\.gguf is not a bundle: .*open_session convert"):
        Bundle.open(file)
    with pytest.raises(BundleError, match="nowhere does not exist"):
        Bundle.open(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"hf:some/model is not a bundle: .* fetch and convert"):
        Bundle.open("hf:some/model")


def test_a_bundle_is_no_checkpoint_and_says_so(bundle_of):
    with pytest.raises(CheckpointError, match="is a bundle: give the checkpoint"):
        open_checkpoint(bundle_of("embedded-draft", "fp32"))


def test_float32_of_other_checkpoints_is_not_called_kept(tmp_path, checkpoint):
    with pytest.raises(OptionError, match="'keep', but all weights are float32: take fp32"):
        export_checkpoint(checkpoint, tmp_path / "bundle", weights="keep")


YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UnsupportedModelError, "architecture 'mamba'"),
        ({"split.count": 3}, CheckpointError, "is not the first of its 3 parts"),
        ({"llama.block_count": None}, CheckpointError, r"llama\.block_count is None"),
        ({"llama.block_count": 5}, CheckpointError, "has no tensor model.layers.2"),
        ({"llama.block_count": 1}, UnsupportedModelError, r"tensor blk\.1\..* is not one"),
        ({"llama.block_count": 1 << 31}, CheckpointError, "block_count is 2147483648"),
        ({"llama.attention.head_count": 0}, CheckpointError, "head_count is 0"),
        ({"llama.attention.head_count": "x"}, CheckpointError, "expected a number"),
        ({"llama.expert_count": 8}, UnsupportedModelError, "mixtures of experts"),
        ({"llama.attn_logit_softcapping": 50.0}, UnsupportedModelError, "attn_logit_softcapping"),
        ({"llama.final_logit_softcapping": 9.0}, UnsupportedModelError, "final_logit_softcapping"),
        (
            {"llama.rope.scaling.type": "dynamic"},
            UnsupportedModelError,
            "scaling.type is 'dynamic'",
        ),
        (YARN | {"llama.rope.scaling.factor": "x"}, CheckpointError, "factor is 'x'"),
        (
            YARN | {"llama.rope.scaling.yarn_ext_factor": 0.5},
            UnsupportedModelError,
            "yarn_ext_factor is 0.5, which is not supported beside yarn",
        ),
        (
            YARN | {"llama.rope.scaling.yarn_attn_factor": 1.0},
            UnsupportedModelError,
            "yarn_attn_factor is 1, where yarn's other figures give 1.13863",
        ),
        (
            YARN | {"llama.attention.temperature_scale": 0.1},
            UnsupportedModelError,
            r"attention\.temperature_scale = 0.1 is not supported in llama",
        ),
        ({"llama.attention.head_count_kv": [2, 0]}, UnsupportedModelError, "layers that differ"),
        ({"llama.attention.head_count_kv": ["2", "2"]}, CheckpointError, "expected a number"),
        (
            {"general.architecture": "nemotron_h"},
            UnsupportedModelError,
            "architecture 'nemotron_h' is not supported",
        ),
        ({"tokenizer.ggml.eos_token_id": [1]}, CheckpointError, r"eos_token_id \[1\] is not"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModelError, "model is 'bert'"),
        ({"tokenizer.ggml.tokens": None}, CheckpointError, r"ggml\.tokens is missing"),
        ({"tokenizer.ggml.scores": None}, CheckpointError, r"ggml\.scores is missing"),
        ({"tokenizer.ggml.scores": [0.5, 1.5]}, CheckpointError, "scores do not agree"),
        ({"tokenizer.ggml.token_type": [1]}, CheckpointError, "has no type"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "secret"},
            UnsupportedModelError,
            "pre is 'secret', which is not known: coordgen export takes .* --tokenizer",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(tmp_path, checkpoint, metadata, error, message):
    file = write_gguf(tmp_path / "model.gguf", checkpoint, metadata=metadata)
    with pytest.raises(error, match=message):
        export_checkpoint(file, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.context_length": 0}, "context_length is 0, expected 1 to"),
        ({"llama.rope.freq_base": 0.5}, r"rope\.freq_base is 0.5, expected 1 to"),
        ({"llama.attention.layer_norm_rms_epsilon": 2.0}, "layer_norm_rms_epsilon is 2.0"),
        ({"llama.attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported"),
        ({"llama.attention.head_count_kv": 3}, "heads over 3 key/value heads"),
        ({"tokenizer.ggml.eos_token_id": 999}, r"tokenizer\.ggml\.eos_token_id 999 is not in"),
    ],
    ids=str,
)
def test_errors_name_the_file_and_its_keys(tmp_path, checkpoint, metadata, message):
    file = write_gguf(tmp_path / "model.gguf", checkpoint, metadata=metadata)
    with pytest.raises(CheckpointError, match=rf"^{file}: .*{message}") as raised:
        open_checkpoint(file)
    assert "config.json" not in str(raised.value)


_YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}


@pytest.mark.parametrize(
    ("architecture", "key", "options"),
    [
        ("granite", "attention.scale", {}),
        ("qwen3", "rope.scaling.yarn_beta_fast", _YARN),
        ("qwen3", "rope.scaling.yarn_beta_slow", _YARN),
        ("qwen3", "rope.scaling.yarn_log_multiplier", _YARN),
    ],
)
def test_errors_name_keys_of_which_fields_are_computed(architecture, key, options):
    with pytest.raises(CheckpointError, match=rf"^x\.gguf: {key} is nan, expected "):
        parsed_header(architecture, **options, **{key: math.nan})


def test_sizes_may_be_told_for_each_layer_where_they_are_the_same(tmp_path, checkpoint):
    keys = ("llama.attention.head_count", "llama.feed_forward_length")
    plain = write_gguf(tmp_path / "a.gguf", checkpoint)
    values = read_header(plain).metadata
    listed = {key: [values[key]] * 2 for key in keys}
    file = write_gguf(tmp_path / "b.gguf", checkpoint, metadata=listed)
    assert open_checkpoint(file).config == open_checkpoint(plain).config
    for key in keys:
        other = {**listed, key: [values[key], 2 * values[key]]}
        file = write_gguf(tmp_path / "c.gguf", checkpoint, metadata=other)
        with pytest.raises(UnsupportedModelError, match=f"{key} is .*: layers that differ"):
            open_checkpoint(file)
        other = {**listed, key: [values[key]] * 3}
        file = write_gguf(tmp_path / "c.gguf", checkpoint, metadata=other)
        with pytest.raises(CheckpointError, match=f"{key} has 3 entries"):
            open_checkpoint(file)


MESSAGES = [{"role": "user", "content": "Is a lion an animal?"}]


def test_a_template_s_name_is_the_template_or_none(tmp_path, checkpoint):
    named = {"tokenizer.chat_template": "chatml"}
    file = write_gguf(tmp_path / "a.gguf", checkpoint, metadata=named)
    assert open_checkpoint(file).read_chat().template().render(MESSAGES) == (
        "<|im_start|>user\nIs a lion an animal?<|im_end|>\n<|im_start|>assistant\n"
    )
    named = {"tokenizer.chat_template": "vicuna"}
    file = write_gguf(tmp_path / "b.gguf", checkpoint, metadata=named)
    with pytest.raises(ChatTemplateError, match="holds 'vicuna', which is no template"):
        open_checkpoint(file).read_chat().template().render(MESSAGES)


def test_biases_that_no_graph_adds_are_refused(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "model", family="qwen2", head_dim=32)
    config = checkpoint / "config.json"
    config.write_text(config.read_text().replace("Qwen2ForCausalLM", "LlamaForCausalLM"))
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\..*_proj\.bias is a bias"):
        open_checkpoint(file)


def open_reshaped(path: Path, layer: int = 0, **shapes: tuple[int, ...]) -> None:
    """Read a file whose header would tell of other shapes, by parts of a layer's names."""
    header = read_header(path)
    tensors = dict(header.tensors)
    for part, shape in shapes.items():
        name = f"blk.{layer}.{part}.weight"
        tensors[name] = replace(tensors[name], shape=shape)
    metadata = GgufMetadata(GgufHeader(path, header.metadata, tensors))
    gguf_tensors(metadata, gguf_family_of(metadata)[1], read_metadata(metadata))


@pytest.mark.parametrize("part", ["attn_q", "attn_k"])
def test_rows_that_are_no_whole_heads_are_told_by_the_names_of_the_file(tmp_path, checkpoint, part):
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    message = rf"^{file}: blk\.0\.{part}\.weight has no whole heads of 32 rows"
    with pytest.raises(CheckpointError, match=message):
        open_reshaped(file, **{part: (33, 64)})


@pytest.mark.parametrize(
    ("part", "shape"),
    [
        ("attn_q", (1, 128, 64)),
        ("attn_q", (2, 64, 64)),
        ("ffn_up", (1, 1, 96, 64)),
        ("attn_norm", (1, 1, 64)),
    ],
    ids=str,
)
def test_dimensions_that_a_tensor_never_has_are_refused(tmp_path, checkpoint, part, shape):
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    message = rf"^{file}: blk\.0\.{part}\.weight has the shape {re.escape(str(shape))} of F32"
    with pytest.raises(CheckpointError, match=message):
        open_reshaped(file, **{part: shape})


def test_experts_have_three_dimensions_and_convolutions_some_of_1(tmp_path):
    mixture = write_mixture(tmp_path / "model", "lfm2_moe")
    file = write_gguf(tmp_path / "model.gguf", mixture)
    stored = read_header(file).tensors
    rows, columns = stored["blk.0.shortconv.conv.weight"].shape
    for shape in ((rows, 1, columns), (rows, columns, 1)):
        open_reshaped(file, **{"shortconv.conv": shape})
    with pytest.raises(CheckpointError, match=r"shortconv\.conv\.weight has the shape"):
        open_reshaped(file, **{"shortconv.conv": (rows // 2, 2, columns)})
    experts = stored["blk.1.ffn_up_exps.weight"].shape
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up_exps\.weight has the shape"):
        open_reshaped(file, layer=1, ffn_up_exps=(1, *experts))


def with_token(checkpoint: Path, path: Path, kinds: dict[str, int], **others: object) -> Path:
    """A file with these tokens from 7 on, and their types; `others` are of its tokenizer."""
    tokens = [f"<0x{number:02X}>" for number in range(128)]
    tokens[7 : 7 + len(kinds)] = kinds
    types = [6] * 128
    types[7 : 7 + len(kinds)] = kinds.values()
    metadata = {"tokens": tokens, "token_type": types, **others}
    given = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    return write_gguf(path / "model.gguf", checkpoint, metadata=given)


@pytest.mark.parametrize(
    "kinds",
    [
        *({"<|im_end|>": kind} for kind in (1, 3, 4)),
        *({"<end_of_utterance>": kind} for kind in (1, 3, 4)),
        *({name: 3} for name in ("</s>", "<eos>", "<EOT>", "<|end_of_text|>", "<turn|>")),
    ],
    ids=str,
)
def test_a_token_ends_an_answer_by_its_name(tmp_path, checkpoint, kinds):
    opened = open_checkpoint(with_token(checkpoint, tmp_path, kinds))
    assert opened.config.end_token_ids == [2, 7]
    tokenizer = Tokenizer.from_str(opened.read_tokenizer())
    assert tokenizer.encode(*kinds, add_special_tokens=False).ids == [7]
    assert tokenizer.decode([7]) == ""


@pytest.mark.parametrize(
    "kinds",
    [{"</s>": 4}, {"<eos>": 1}, {"<|im_end|>": 5}, {"<|return|>": 3}, {"<s>": 3}],
    ids=str,
)
def test_a_text_like_an_end_and_other_controls_end_no_answer(tmp_path, checkpoint, kinds):
    file = with_token(checkpoint, tmp_path, kinds)
    assert open_checkpoint(file).config.end_token_ids == [2]


@pytest.mark.parametrize(
    ("kinds", "ends"),
    [
        ({"<|return|>": 3, "<|call|>": 3, "<|end|>": 3}, [2, 7, 8]),
        ({"<|tool_response>": 3, "</s>": 3, "<turn|>": 3}, [2, 7, 9]),
    ],
    ids=str,
)
def test_ends_that_mean_less_beside_others(tmp_path, checkpoint, kinds, ends):
    file = with_token(checkpoint, tmp_path, kinds)
    assert open_checkpoint(file).config.end_token_ids == ends


def test_a_file_may_tell_of_several_ends(tmp_path, checkpoint):
    file = with_token(checkpoint, tmp_path, {}, eos_token_ids=[2, 5, 9])
    assert open_checkpoint(file).config.end_token_ids == [2, 5, 9]
    file = with_token(checkpoint, tmp_path, {}, eos_token_ids=[2, 1 << 20])
    with pytest.raises(CheckpointError, match="1048576 is not in the vocabulary"):
        open_checkpoint(file)


@pytest.mark.parametrize(("layers", "scale"), [(26, 256**-0.5), (62, 168**-0.5)])
def test_attention_of_gemma_is_scaled_as_its_number_of_layers_says(layers, scale):
    sizes = {
        "block_count": layers,
        "context_length": 1024,
        "embedding_length": 5376,
        "feed_forward_length": 64,
        "attention.head_count": 32,
        "attention.key_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 512,
    }
    config = parsed_metadata("gemma3", sizes)
    assert config.score_scale == pytest.approx(scale)


def test_factors_of_llama_3_hold_for_the_whole_context(tmp_path):
    name = "llama.rope.scaling.original_context_length"
    checkpoint = write_checkpoint(tmp_path / "model", head_dim=32)
    plain_file = write_gguf(tmp_path / "a.gguf", checkpoint)
    header = read_header(plain_file)
    stored = header.tensors["output_norm.weight"]
    factors = replace(stored, name="rope_freqs.weight", shape=(16,))
    tensors = {**header.tensors, "rope_freqs.weight": factors}
    metadata = {**header.metadata, name: 64}
    config = read_metadata(GgufMetadata(GgufHeader(plain_file, metadata, tensors)))
    assert config.max_positions == header.metadata["llama.context_length"]


def parsed_header(architecture: str, **options: object) -> ModelConfig:
    """The configuration of a file with small sizes and these further keys."""
    sizes = {
        "block_count": 4,
        "context_length": 1024,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    given = {**sizes, **{key.replace("__", "."): value for key, value in options.items()}}
    return parsed_metadata(architecture, given)


def test_an_architecture_of_two_families_is_the_one_that_its_metadata_says():
    assert parsed_header("mistral3").family == "mistral"
    ministral = parsed_header("mistral3", attention__temperature_scale=0.5)
    assert (ministral.family, ministral.query_scaling) == ("ministral3", QueryScaling(0.5, 1024))
    assert parsed_header("olmo2").family == "olmo2"
    olmo = parsed_header("olmo2", attention__sliding_window=8)
    assert (olmo.family, olmo.window_layers) == ("olmo3", {0, 1, 2})
    pattern = [False, True, True, True]
    options = {"attention__sliding_window": 8, "attention__sliding_window_pattern": pattern}
    assert parsed_header("olmo2", **options, rope__freq_base_swa=7e4).window_layers == {1, 2, 3}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (0, "is 0, expected a whole number from 1 on"),
        (-1, "is -1, expected a whole number from 1 on"),
        (2.5, "is 2.5, expected a whole number from 1 on"),
        ("4", "is '4', expected a number"),
        ([True], "has 1 entries, expected one for each of 4 layers"),
        ([True, True, math.nan, False], "is nan in layer 2, expected true or false"),
        ([1, 1, 1, 7], "is 7 in layer 3, expected true or false"),
    ],
)
@pytest.mark.parametrize("architecture", ["olmo2", "gemma3", "gpt-oss"])
def test_a_pattern_of_windows_that_cannot_be_is_refused(architecture, pattern, message):
    experts = {"expert_count": 8, "expert_used_count": 2} if architecture == "gpt-oss" else {}
    options = {"attention__sliding_window": 8, "attention__sliding_window_pattern": pattern}
    key = rf"^x\.gguf: {architecture}\.attention\.sliding_window_pattern"
    with pytest.raises(CheckpointError, match=f"{key} {message}"):
        parsed_header(architecture, **options, **experts)
