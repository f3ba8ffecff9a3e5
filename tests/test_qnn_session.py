"""A bundle on the HTP emulator: lossless, consistent after every ending, and clear in refusal."""

import dataclasses
import json
import platform
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from coordgen_rs import Bundle, Tokenizer, generate, make_drafter, open_session, plain, qnn
from coordgen_rs.blocks import Buffers
from coordgen_rs.check import check
from coordgen_rs.errors import BundleError, DeviceLostError, ProviderError, ShapeError
from coordgen_rs.kv_cache import QnnCache
from coordgen_rs.providers import ProviderChoice
from coordgen_rs.qnn_blocks import QnnBlocks, QnnBuffers
from coordgen_rs.qnn_options import QnnOptions, soc_named
from coordgen_rs.qnn_session import QnnSession
from qnn_bundles import PROMPT, cached_sessions, needs_emulator, tokens_of

pytestmark = needs_emulator

MODELS = ("embedded", "TinyStories-656K")
SOCS = ("8-gen-2", "8-elite")
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def session_on(tmp_path_factory):
    return cached_sessions(tmp_path_factory.mktemp("qnn"))


@pytest.fixture(scope="module")
def session(session_on):
    return session_on("TinyStories-656K", "8-gen-2")


@pytest.fixture
def prompt(session):
    return Tokenizer.of(session.bundle).encode(PROMPT)


def copied(session, folder, change):
    """A copy of a session's bundle with another manifest."""
    path = Path(shutil.copytree(session.bundle.path, folder / "copy"))
    document = json.loads((path / "manifest.json").read_text())
    change(document)
    (path / "manifest.json").write_text(json.dumps(document))
    return Bundle.open(path)


@pytest.mark.parametrize("soc", SOCS)
@pytest.mark.parametrize("name", MODELS)
def test_every_way_to_commit_gives_the_tokens_of_plain(session_on, name, soc):
    session = session_on(name, soc)
    prompt = Tokenizer.of(session.bundle).encode(PROMPT)
    report = check(session, prompt, max_new_tokens=NEW_TOKENS)
    assert report.exact_commits == ("canonical", "compact")
    assert all(item.identical for item in report.comparisons), report.comparisons
    assert any(item.what.startswith("prefill graph") for item in report.comparisons)
    assert any(item.what.startswith("side branch") for item in report.comparisons)


def test_extreme_values_of_unseen_rows_change_nothing(session):
    """Their slots are masked; with other zero points they would disturb whole columns."""
    bundle, target = session.bundle, session.bundle.manifest.qnn
    model, slots = bundle.manifest.model, bundle.manifest.slots
    outputs = []
    for extreme in (0, 255, 1, 254):
        cache = QnnCache(target.caches, model.num_kv_heads, slots, model.head_dim)
        for pair in cache.arrays:
            for array in pair:
                array[:, :, 5:] = extreme
        blocks = QnnBlocks(bundle, soc_named(target.soc), cache, QnnOptions())
        blocks.load(0, "decode")
        buffers = QnnBuffers(Buffers.empty(8, model, slots + 8), bundle, target)
        buffers.drafted.inputs.fill_chain(np.arange(8, dtype=np.uint32), 5)
        buffers.fill_mask(5)
        buffers.hidden[0][0] = bundle.embedding()[np.arange(8)]
        blocks.run(0, "decode", buffers)
        outputs.append(blocks.hidden_out(buffers).copy())
    assert all(np.array_equal(outputs[0], other) for other in outputs[1:])


def test_graphs_load_in_threads_while_others_run(session, prompt):
    expected = tokens_of(plain(session, prompt, max_new_tokens=NEW_TOKENS))
    target = session.bundle.manifest.qnn
    blocks = QnnBlocks(session.bundle, soc_named(target.soc), session.cache, QnnOptions())
    loading = threading.Thread(target=blocks.load, args=(0, "decode"))
    loading.start()
    assert tokens_of(plain(session, prompt, max_new_tokens=NEW_TOKENS)) == expected
    loading.join()
    assert blocks.is_loaded(0, "decode")
    blocks.release(0, "decode")
    assert not blocks.is_loaded(0, "decode")


def test_closing_early_leaves_exactly_the_committed_tokens(session, prompt):
    expected = tokens_of(plain(session, prompt, max_new_tokens=NEW_TOKENS))
    steps = generate(session, prompt, max_new_tokens=NEW_TOKENS)
    given = len(next(steps).token_ids)
    steps.close()
    assert session.length == len(prompt) - 1 + given
    assert tokens_of(generate(session, prompt, max_new_tokens=NEW_TOKENS)) == expected


def test_prefill_gives_the_logits_of_every_prompt_token(session, prompt):
    session.rewind(0)
    parts = []
    session.prefill(prompt, on_logits=lambda logits: parts.append(logits.copy()))
    by_chunk = np.concatenate(parts)
    session.rewind(0)
    rows = []
    for token in prompt:
        session.step_inputs[0].fill_chain(np.array([token], np.uint32), session.length)
        rows.append(session.step(session.step_inputs[0])[0].copy())
        session.commit(np.zeros(1, np.uint32))
    assert np.array_equal(by_chunk, np.array(rows))


def test_the_last_slot_of_the_cache_can_be_used(session):
    prompt = np.resize(np.arange(3, 40, dtype=np.uint32), session.capacity)
    session.rewind(0)
    session.prefill(prompt[:-1])
    assert len(tokens_of(plain(session, prompt, max_new_tokens=5))) == 1
    with pytest.raises(ShapeError):
        session.prefill(prompt[:2])


def test_first_opening_tests_the_widths_and_keeps_the_result(session, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    opened = open_session(session.bundle.path, provider=ProviderChoice("qnn", "8-gen-2"))
    assert isinstance(opened, QnnSession)
    assert opened.provider == "qnn"
    assert len(opened.step_costs) == len(opened.widths) == 1
    assert len(list((tmp_path / "coordgen_rs").glob("*.json"))) == 1


def test_a_device_lost_while_running_closes_the_session(session, prompt, monkeypatch):
    lost = QnnSession(session.bundle)
    steps = generate(lost, prompt, max_new_tokens=NEW_TOKENS)
    next(steps)
    length = lost.length

    def fail(*_):
        raise RuntimeError("error code 1003: the subsystem was restarted")

    with monkeypatch.context() as broken:
        broken.setattr(onnxruntime.InferenceSession, "run_with_iobinding", fail)
        with pytest.raises(DeviceLostError, match=r"block 0.*subsystem was restarted"):
            next(steps)
    assert lost.length == length
    with pytest.raises(DeviceLostError, match="the session is closed: block 0"):
        next(plain(lost, prompt))


def test_keys_without_a_common_encoding_are_warned_of_and_never_compacted(
    session, tmp_path, monkeypatch
):
    def untie(document):
        document["qnn"]["caches"][0]["key_new"]["scale"] *= 1.5

    bundle = copied(session, tmp_path, untie)
    with pytest.warns(UserWarning, match="canonical way only"):
        untied = QnnSession(bundle)
    assert untied.allowed_commits == ("canonical",)
    asked = []
    generation = sys.modules["coordgen_rs.generate"]
    monkeypatch.setattr(generation, "Drafter", lambda *_, commit, **__: asked.append(commit))
    make_drafter(untied, commit="compact")
    make_drafter(session, commit="compact")
    assert asked == ["canonical", "compact"]


def test_untied_rows_are_committed_under_the_encoding_of_the_past(session):
    layer = session.bundle.manifest.qnn.caches[0]
    wider = dataclasses.replace(layer.key, scale=2 * layer.key.scale)
    cache = QnnCache([dataclasses.replace(layer, key_new=wider)], 2, 16, 4)
    keys, values = cache.new_rows(8)[0]
    keys[:], values[:] = np.arange(8)[:, None] + 128, np.arange(8)[:, None]
    cache.ran(8)
    cache.commit(np.array([0, 3], np.uint32))
    past_keys, past_values = cache.arrays[0]
    assert past_keys[0, 0, :2, 0].tolist() == [128, 134]
    assert past_values[0, 0, :2, 0].tolist() == [0, 3]
    assert cache.length == 2


def test_bundle_for_another_chip_or_provider_is_refused(session, bundle_of):
    path = session.bundle.path
    with pytest.raises(BundleError, match="is for 8-gen-2, not for x-elite"):
        open_session(path, provider=ProviderChoice("qnn", "x-elite"))
    with pytest.raises(BundleError, match="was made for qnn, not for cpu"):
        open_session(path, provider=ProviderChoice("cpu"))
    with pytest.raises(BundleError, match="was made for cpu, not for qnn"):
        open_session(bundle_of("embedded", "fp32"), provider=ProviderChoice("qnn"))
    with pytest.raises(BundleError, match="export it with --provider qnn"):
        QnnSession(Bundle.open(bundle_of("embedded", "fp32")))


def test_a_node_that_the_htp_cannot_run_is_named(tmp_path):
    nodes = [
        helper.make_node("Abs", ["x"], ["y"], name="layer_0.abs"),
        helper.make_node("NonZero", ["y"], ["z"], name="layer_0.strange"),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 4])],
        [helper.make_tensor_value_info("z", TensorProto.INT64, None)],
    )
    path = tmp_path / "block_03.32.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    with pytest.raises(ProviderError, match=r"block_03.*layer_0\.strange \(NonZero\)"):
        qnn.qnn_session(path, soc_named("8-gen-2"))


def test_missing_backend_library_is_named(session, monkeypatch, tmp_path):
    import onnxruntime_qnn

    monkeypatch.setattr(onnxruntime_qnn, "get_qnn_htp_path", lambda: str(tmp_path / "gone.so"))
    with pytest.raises(ProviderError, match=r"gone\.so is missing"):
        QnnSession(session.bundle)


def test_an_old_c_library_is_named(monkeypatch):
    monkeypatch.setattr(qnn, "_registered", None)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
    with pytest.raises(ProviderError, match=r"needs glibc 2\.35 or newer, here is 2\.31"):
        qnn.devices()


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(qnn, "_registered", None)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(ProviderError, match=r"pip install 'coordgen-rs\[qnn\]'"):
        qnn.devices()
