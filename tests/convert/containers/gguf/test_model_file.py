"""A GGUF file exports as the same model's safetensors do, and keeps what it holds."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import exported, sums, write_checkpoint
from coordgen_rs import Bundle
from coordgen_rs.cli.main import main as coordgen
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.gguf.file import GgufHeader, read_header
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.families.checkpoint import gguf_tensors, open_checkpoint, read_metadata
from coordgen_rs.convert.families.table import gguf_family_of
from coordgen_rs.errors import (
    BundleError,
    CheckpointError,
    OptionError,
    UnsupportedModelError,
)
from gguf_files import write_gguf
from mixtures import write_mixture


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


def test_a_gguf_file_is_known_by_its_first_bytes_where_its_name_does_not_say(tmp_path, checkpoint):
    named = write_gguf(tmp_path / "model.gguf", checkpoint)
    unnamed = named.rename(tmp_path / "sha256-0123")
    assert open_checkpoint(unnamed).is_gguf


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


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UnsupportedModelError, "architecture 'mamba'"),
        ({"split.count": 3}, CheckpointError, "is not the first of its 3 parts"),
        ({"llama.block_count": 5}, CheckpointError, "has no tensor model.layers.2"),
        ({"llama.block_count": 1}, UnsupportedModelError, r"tensor blk\.1\..* is not one"),
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


@pytest.mark.parametrize(
    ("part", "shape", "message"),
    [
        ("attn_q", (33, 64), "no whole heads of 32 rows"),
        ("attn_k", (33, 64), "no whole heads of 32 rows"),
        ("attn_q", (1, 128, 64), r"the shape \(1, 128, 64\) of F32"),
        ("attn_q", (2, 64, 64), r"the shape \(2, 64, 64\) of F32"),
        ("ffn_up", (1, 1, 96, 64), r"the shape \(1, 1, 96, 64\) of F32"),
        ("attn_norm", (1, 1, 64), r"the shape \(1, 1, 64\) of F32"),
    ],
)
def test_shapes_that_a_tensor_never_has_are_refused(tmp_path, checkpoint, part, shape, message):
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    with pytest.raises(CheckpointError, match=rf"^{file}: blk\.0\.{part}\.weight has {message}"):
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
