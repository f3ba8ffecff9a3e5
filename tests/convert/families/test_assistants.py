"""Drafters that do not fit their target, or are damaged: one line that says what is wrong."""

import json
from pathlib import Path

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


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_gemma4(tmp_path_factory.mktemp("target") / "target", "gemma4")


@pytest.fixture
def drafter(tmp_path):
    return write_assistant(tmp_path / "drafter", "gemma4")


def export(target, drafter, out, **options):
    options = {"context": 256, "prefill_rows": 32, "decode_rows": 8} | options
    return export_checkpoint(target, out, assistant=drafter, **options)


FILE = Path(__file__).with_name("refused_assistants.jsonl")
REFUSED = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
"""What is changed in a drafter's config.json, or in its `text_config`, and what is told of it."""


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["told"])
def test_what_does_not_fit_is_told_in_one_line(target, drafter, tmp_path, row):
    config = config_of("gemma4") | row.get("changed", {})
    if "of_text" in row:
        config["text_config"] |= row["of_text"]
    (drafter / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=row["told"]) as raised:
        export(target, drafter, tmp_path / "out")
    told = str(raised.value)
    assert "\n" not in told
    assert len(told) < 400
    assert told.startswith(str(drafter))
    assert not (tmp_path / "out").exists()


def test_a_target_without_layers_of_its_kind_and_one_that_is_not_gemma_4_are_told(
    tmp_path, drafter
):
    kinds = ["full_attention"] * 6
    target = write_gemma4(tmp_path / "target", "gemma4", layer_types=kinds)
    with pytest.raises(CheckpointError, match=r"layer 0 of 3 is of the kind sliding_attention, wh"):
        export(target, drafter, tmp_path / "out")
    other = write_checkpoint(tmp_path / "other", vocab=1536)
    with pytest.raises(CheckpointError, match="it drafts for gemma4 and gemma4_unified, not for"):
        export(other, drafter, tmp_path / "out")


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


def test_missing_weights_and_files_are_named(target, drafter, tmp_path):
    path = drafter / "model.safetensors"
    tensors = load_file(path)
    for name in ("pre_projection", "model.norm", "model.layers.1.self_attn.q_proj"):
        save_file({key: it for key, it in tensors.items() if key != f"{name}.weight"}, path)
        with pytest.raises(
            CheckpointError, match=f"{drafter}: the checkpoint has no tensor {name}"
        ):
            export(target, drafter, tmp_path / "out")
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
