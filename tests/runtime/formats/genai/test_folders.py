"""Folders of ONNX Runtime GenAI: opened as they are, exact, and equal to what they say."""

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from answers import prompt_logits, tokens_of
from checkpoints import character_tokenizer
from coordgen_rs import (
    Model,
    OrtSession,
    Tokenizer,
    generate,
    make_drafter,
    open_bundle,
    open_session,
    plain,
)
from coordgen_rs.convert.qnn.compile import compile_bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.lab.check import check
from coordgen_rs.loading.directory import ProviderChoice
from genai_folders import (
    constant,
    edit_config,
    edit_graph,
    graphs_own_logits,
    hashes,
    prune,
    unpack,
    with_attributes,
)
from genai_model import CONFIG_NAME, MODEL_NAME

PROMPT = np.random.default_rng(4).integers(3, 90, size=150).astype(np.uint32)


def test_nothing_of_it_is_compiled(folder):
    with pytest.raises(BundleError, match="another tool's: it holds no graphs to compile"):
        compile_bundle(folder)
    (folder / CONFIG_NAME).write_text("{}", "utf-8")
    with pytest.raises(BundleError, match="does not describe a model"):
        compile_bundle(folder)


def test_answers_are_those_of_our_own_bundle_and_files_stay(written, session_of):
    before = hashes(written)
    session, own = open_session(written), session_of("embedded", "fp32")
    assert session.widths == own.widths
    assert Tokenizer.of(session.bundle).encode("a b").tolist() == (
        Tokenizer.of(own.bundle).encode("a b").tolist()
    )
    np.testing.assert_allclose(
        prompt_logits(session, PROMPT), prompt_logits(own, PROMPT), atol=1e-3
    )
    expected = tokens_of(plain(own, PROMPT, max_new_tokens=40))
    assert tokens_of(plain(session, PROMPT, max_new_tokens=40)) == expected
    assert hashes(written) == before


@pytest.mark.parametrize("draft", ["auto", "prompt-lookup", "sam", "token-recycling"])
def test_drafts_change_no_token(written, draft):
    session = open_session(written)
    for start in range(0, 90, 30):
        prompt = np.concatenate([PROMPT[start:], PROMPT[start : start + 40]])
        expected = tokens_of(plain(session, prompt, max_new_tokens=40))
        drafter = make_drafter(session, draft)
        assert tokens_of(generate(session, prompt, max_new_tokens=40, drafter=drafter)) == expected


@pytest.mark.parametrize("form", ["f32", "f16", "q8"])
def test_every_width_and_both_graphs_have_the_same_bits(written, form):
    session = open_session(written, kv_cache=form)
    assert session.cache.form == form
    report = check(session, PROMPT)
    assert report.lossless
    assert "canonical" in report.exact_commits


def test_switching_graphs_changes_no_token(written):
    folder, whole = open_bundle(written), open_session(written)
    expected = tokens_of(plain(whole, PROMPT, max_new_tokens=20))
    apart = ProviderChoice().device(folder, share_graphs=False)
    session = OrtSession(apart, preload=False, switch="sync")
    assert tokens_of(plain(session, PROMPT, max_new_tokens=20)) == expected


def test_a_step_under_the_prefill_graph_has_the_same_bits(written):
    session = open_session(written)
    session.rewind(0)
    session.prefill(PROMPT)
    inputs = session.step_inputs[1]
    inputs.fill(PROMPT[:4], np.array([0, 0, 1, 2], np.uint32), session.length)
    expected = session.step(inputs).copy()
    only_prefill = SimpleNamespace(is_streaming=False, step_graph=lambda block: "prefill")
    session.forward.run_step(inputs, only_prefill, None)
    np.testing.assert_array_equal(session.device.logits(session.forward.steps[4], 0, 4), expected)


def test_files_may_be_links_as_in_the_hubs_cache(written, tmp_path):
    folder, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    folder.mkdir()
    blobs.mkdir()
    for number, path in enumerate(written.iterdir()):
        shutil.copy(path, blobs / str(number))
        (folder / path.name).symlink_to(blobs / str(number))
    expected = tokens_of(plain(open_session(written), PROMPT, max_new_tokens=8))
    assert tokens_of(plain(open_session(folder), PROMPT, max_new_tokens=8)) == expected


def test_weights_behind_a_link_to_elsewhere_are_refused(folder, tmp_path):
    data = folder / f"{MODEL_NAME}.data"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="links to files elsewhere"):
        open_session(folder)


def partly_rotated(graph):
    """Fewer rotated dimensions than a head has."""
    tables = [item for item in graph.initializer if item.name in ("cos_cache", "sin_cache")]
    positions, pairs = tables[0].dims[0], tables[0].dims[1] // 2
    angles = np.outer(np.arange(positions), 0.5 ** np.arange(pairs)).astype(np.float32)
    for item in tables:
        graph.initializer.remove(item)
    constant(graph, "cos_cache", np.cos(angles))
    constant(graph, "sin_cache", np.sin(angles))


EDITS = {
    "unpacked": unpack,
    "window": with_attributes(local_window_size=40),
    "softcap": with_attributes(softcap=3.0),
    "scale": with_attributes(scale=0.3),
    "interleaved": with_attributes(rotary_interleaved=1),
    "partly-rotated": partly_rotated,
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_logits_are_those_of_the_folders_own_graph(folder, edit):
    edit_graph(folder, edit)
    session = open_session(folder)
    assert session.widths == (1, 4, 8, 16, 32)
    found, expected = prompt_logits(session, PROMPT), graphs_own_logits(folder, PROMPT)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    answer = tokens_of(plain(session, PROMPT, max_new_tokens=30))
    assert tokens_of(generate(session, PROMPT, max_new_tokens=30)) == answer


def test_pruned_head_gives_logits_of_all_rows(folder):
    expected = prompt_logits(open_session(folder), PROMPT)
    edit_graph(folder, prune)
    assert graphs_own_logits(folder, PROMPT).shape[0] == 1
    np.testing.assert_array_equal(prompt_logits(open_session(folder), PROMPT), expected)


def test_begin_token_is_put_where_only_the_config_says_so(folder):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text()) | {"post_processor": None}
    path.write_text(json.dumps(tokenizer))
    bundle = open_bundle(folder)
    bare = Tokenizer.of(bundle).encode("a b").tolist()
    token = Tokenizer.of(bundle).token(bare[-1])
    config = {"add_bos_token": True, "bos_token": {"content": token}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.of(bundle).encode("a b").tolist() == [bare[-1], *bare]


def test_end_token_may_be_a_number_or_several(folder):
    assert open_bundle(edit_config(folder, eos_token_id=7)).manifest.end_token_ids == [7]
    assert open_bundle(edit_config(folder, eos_token_id=[7, 9])).manifest.end_token_ids == [7, 9]


def test_commands_take_a_folder_where_they_take_a_bundle(written, tmp_path, coordgen):
    before = hashes(written)
    info = coordgen("info", written).out
    assert "written by: ONNX Runtime GenAI" in info
    assert "requests: take turns" in info
    checked = coordgen("check", written).out
    assert "without checksums" in checked
    assert "exact under commit: canonical" in checked
    asked = ("generate", "--model", written, "--prompt", "Once upon a time", "--compare")
    asked += ("--history", tmp_path / "history", "--max-new-tokens", 16, "--json")
    for _ in range(2):
        assert json.loads(coordgen(*asked).out)["identical"]
    assert hashes(written) == before


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_folders_of_the_model_builder(tmp_path, precision):
    pytest.importorskip("onnx_ir", reason="the model builder needs onnx_ir")
    pytest.importorskip("torch", reason="the model builder needs torch")
    transformers = pytest.importorskip("transformers", reason="the model builder needs it")
    pytest.importorskip("onnxruntime_genai", reason="the model builder is part of it")
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "initializer_range": 0.1}
    config = transformers.Qwen3Config(**sizes, **heads, **tokens, max_position_embeddings=512)
    transformers.set_seed(0)
    model = transformers.Qwen3ForCausalLM(config).float().eval()
    source, out = tmp_path / "source", tmp_path / "built"
    model.save_pretrained(source)
    (source / "tokenizer.json").write_text(json.dumps(character_tokenizer(512)))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))
    tokenizer.save_pretrained(source)
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu"]
    options = ["-i", source, "-o", out, "-p", precision, "-c", tmp_path / "cache"]
    subprocess.run([*builder, *map(str, options)], check=True, capture_output=True, timeout=600)
    before, session = hashes(out), open_session(out)
    # In 4 bits ONNX Runtime's products have other bits at other widths on some processors.
    assert session.widths == (1, 4, 8, 16, 32) or (precision == "int4" and session.widths[0] == 1)
    prompt = np.concatenate([PROMPT[:60], PROMPT[:60]])
    answer = tokens_of(plain(session, prompt, max_new_tokens=40))
    assert tokens_of(generate(session, prompt, max_new_tokens=40)) == answer
    if precision == "fp32":
        import torch

        with torch.no_grad():
            expected = model(torch.tensor(prompt.astype(np.int64))[None]).logits[0].numpy()
        np.testing.assert_allclose(prompt_logits(session, prompt), expected, atol=1e-3)
    assert hashes(out) == before


def test_requests_take_turns_and_the_model_says_why(written):
    with pytest.raises(BundleError, match=r"made for cpu, not for qnn$"):
        open_session(written, provider=ProviderChoice("qnn"))
    with Model.open(written, parallel=3) as model, Model.open(written / CONFIG_NAME) as same:
        assert model.parallel == 1
        assert "folders of other tools" in model.why_alone
        answers = model.generate_many(["Hello", "The lamp"], max_new_tokens=4)
        again = same.generate("The lamp", max_new_tokens=4)
    assert all(answer.text for answer in answers)
    assert again.token_ids == answers[1].token_ids
