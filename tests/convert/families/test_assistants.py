"""Drafters that do not fit their target, or are damaged: one line that says what is wrong."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from assistants import config_of, write_assistant
from checkpoints import write_checkpoint
from coordgen_rs import Bundle
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from gemma4 import write_gemma4

TEXT = config_of("gemma4")["text_config"]
ROTATIONS = TEXT["rope_parameters"]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_gemma4(tmp_path_factory.mktemp("target") / "target", "gemma4")


@pytest.fixture
def drafter(tmp_path):
    return write_assistant(tmp_path / "drafter", "gemma4")


def export(target, drafter, out, **options):
    options = {"context": 256, "prefill_rows": 32, "decode_rows": 8} | options
    return export_checkpoint(target, out, assistant=drafter, **options)


SLIDING = {"sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}
FULL = {"full_attention": ROTATIONS["full_attention"] | {"rope_theta": 1e5}}
BESIDE = [
    ({"architectures": ["LlamaForCausalLM"]}, r"\['LlamaForCausalLM'\] is no drafter, only"),
    ({"architectures": 7}, "architectures 7 is no drafter"),
    ({"backbone_hidden_size": 96}, "backbone_hidden_size is 96, but the target's hidden_size"),
    ({"backbone_hidden_size": "64"}, "backbone_hidden_size is '64'"),
    ({"text_config": None}, "text_config is None, expected an object"),
    ({"num_centroids": 47}, "6 of 47 centroids do not fit a vocabulary of 1536 tokens"),
    ({"num_centroids": -1}, "num_centroids is -1"),
    ({"centroid_intermediate_top_k": 49}, "49 of 48 centroids do not fit"),
    ({"use_ordered_embeddings": "yes"}, "use_ordered_embeddings is 'yes'"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
    ({"tie_word_embeddings": False}, "the checkpoint has no tensor lm_head.weight"),
]
LAYERS = [
    ({"vocab_size": 1600}, "vocab_size is 1600, but the target's vocab_size is 1536"),
    ({"head_dim": 24}, "layer 0 of the kind sliding_attention has 2 key/value heads of dim"),
    ({"global_head_dim": 64}, "layer 2 of the kind full_attention .* 64, the target's 2 of 32"),
    ({"num_key_value_heads": 4}, "has 4 key/value heads of dimension 16, the target's 2 of 16"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_hidden_layers": 4}, "num_kv_shared_layers is 3, expected all 4 layers"),
    ({"num_hidden_layers": 4, "num_kv_shared_layers": 0}, "expected an entry for each of 4 layers"),
    ({"num_kv_shared_layers": 1}, "num_kv_shared_layers is 1, expected all 3 layers"),
    ({"enable_moe_block": True}, "enable_moe_block is true, which no drafter has"),
    ({"use_double_wide_mlp": True}, "use_double_wide_mlp is true, which no drafter has"),
    (
        {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 1536},
        "hidden_size_per_layer_input is 8, expected 0",
    ),
    ({"layer_types": ["mamba"] * 3}, "layer 0 of 3 is of the kind 'mamba'"),
    ({"rope_parameters": ROTATIONS | SLIDING}, "kind sliding_attention are rotated otherwise"),
    ({"rope_parameters": ROTATIONS | FULL}, "kind full_attention are rotated otherwise than the"),
    ({"intermediate_size": 80}, "has the shape"),
]


@pytest.mark.parametrize(
    ("fields", "why"),
    [*BESIDE, *(({"text_config": TEXT | fields}, why) for fields, why in LAYERS)],
    ids=range(len(BESIDE) + len(LAYERS)),
)
def test_what_does_not_fit_is_told_in_one_line(target, drafter, tmp_path, fields, why):
    (drafter / "config.json").write_text(json.dumps(config_of("gemma4") | fields))
    with pytest.raises(CheckpointError, match=why) as raised:
        export(target, drafter, tmp_path / "out")
    told = str(raised.value)
    assert "\n" not in told
    assert len(told) < 400
    assert told.startswith(str(drafter))
    assert not (tmp_path / "out").exists()


def test_a_target_without_layers_of_its_kind_is_told(tmp_path, drafter):
    kinds = ["full_attention"] * 6
    target = write_gemma4(tmp_path / "target", "gemma4", layer_types=kinds)
    with pytest.raises(CheckpointError, match=r"layer 0 of 3 is of the kind sliding_attention, wh"):
        export(target, drafter, tmp_path / "out")


def test_targets_that_are_not_gemma_4_have_none(tmp_path, drafter):
    target = write_checkpoint(tmp_path / "target", vocab=1536)
    with pytest.raises(CheckpointError, match="it drafts for gemma4 and gemma4_unified, not for"):
        export(target, drafter, tmp_path / "out")


def test_another_tokenizer_is_told_by_its_first_token(target, drafter, tmp_path):
    path = drafter / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[200:202]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=r"has the id .*, in the target's .*: it drafts for"):
        export(target, drafter, tmp_path / "out")
    path.unlink()  # most have none: then the size of the vocabulary has to do
    export(target, drafter, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda order: np.zeros_like(order), "does not hold each of 1536 token ids once"),
        (lambda order: order - 1, "does not hold each of 1536 token ids once"),
        (lambda order: order.astype(np.float32), "token_ordering has the type F32, expected I64"),
        (lambda order: order[:-1], r"has the shape \(1535,\), expected \(1536,\)"),
    ],
)
def test_an_order_that_is_none_is_refused(target, drafter, tmp_path, change, why):
    path, name = drafter / "model.safetensors", "masked_embedding.token_ordering"
    tensors = load_file(path)
    save_file(tensors | {name: np.ascontiguousarray(change(tensors[name]))}, path)
    with pytest.raises(CheckpointError, match=why):
        export(target, drafter, tmp_path / "out")


def test_an_order_of_small_integers_is_read(target, drafter, tmp_path):
    path, name = drafter / "model.safetensors", "masked_embedding.token_ordering"
    tensors = load_file(path)
    save_file(tensors | {name: tensors[name].astype(np.int32)}, path)
    export(target, drafter, tmp_path / "out")
    tokens, chosen = Bundle.open(tmp_path / "out").assistant_clusters()
    assert (tokens.shape, chosen) == ((48, 32), 6)
    np.testing.assert_array_equal(tokens.ravel(), tensors[name])


@pytest.mark.parametrize(
    "name", ["pre_projection.weight", "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"]
)
def test_missing_weights_are_named(target, drafter, tmp_path, name):
    path = drafter / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=f"{drafter}: the checkpoint has no tensor {name}"):
        export(target, drafter, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_files_are_named(target, drafter, tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere.config\.json"):
        export(target, tmp_path / "nowhere", tmp_path / "out")
    (drafter / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        export(target, drafter, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [drafter]


def test_a_drafter_is_no_target(drafter, tmp_path):
    with pytest.raises(UnsupportedModelError, match="drafts for another model: export that one"):
        export_checkpoint(drafter, tmp_path / "out")


def test_stored_types_are_kept(tmp_path):
    """In bfloat16 as published: the drafter's weights as they are, in about as many bytes."""
    target = write_gemma4(tmp_path / "target", "gemma4")
    drafter = write_assistant(tmp_path / "drafter", "gemma4")
    for path in (target, drafter):
        file = path / "model.safetensors"
        tensors = load_file(file)
        halves = {name: it.astype(np.float16) for name, it in tensors.items() if it.dtype == "f4"}
        save_file(tensors | halves, file)
    sizes = export(target, drafter, tmp_path / "out")
    manifest = Bundle.open(tmp_path / "out").manifest
    assert manifest.weights == "keep"
    assert manifest.assistant.clusters.dtype == "F16"
    assert sizes["keep"] < 0.6 * sizes["fp32"]
    without = export_checkpoint(target, tmp_path / "alone", context=256, prefill_rows=32)
    assert 50e3 < sizes["keep"] - without["keep"] < 300e3


def test_the_command_line_exports_one_and_info_names_it(target, drafter, tmp_path, capsys):
    small = ["--context", "256", "--prefill-rows", "32", "--decode-rows", "8"]
    asked = ["export", str(target), str(tmp_path / "out"), "--assistant", str(drafter), *small]
    assert main(asked) == 0
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out")]) == 0
    assert (
        "further tokens: a drafter beside the model, 3 layers, hidden 32, that reads keys and "
        "values of layers 1, 2 and scores the tokens of 6 in 48 clusters"
    ) in capsys.readouterr().out


def test_it_is_for_cpu(target, drafter, tmp_path, capsys):
    asked = ["export", str(target), str(tmp_path / "out"), "--assistant", str(drafter)]
    assert main([*asked, "--provider", "qnn", "--soc", "8-elite"]) == 2
    assert "--assistant is for --provider cpu" in capsys.readouterr().err
