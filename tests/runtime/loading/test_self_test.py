"""The self-test at first opening: kept, redone when files change, and heeded."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from answers import tokens_of
from checkpoints import save_weights, write_checkpoint
from coordgen_rs import Bundle, OrtSession, generate, open_session, plain
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import (
    BlockLoadError,
    BundleDamagedError,
    BundleError,
    MemoryBudgetError,
    NonFiniteLogitsError,
    OptionError,
    ProviderError,
    ShapeError,
)
from coordgen_rs.loading import self_test
from coordgen_rs.runtime.caches.kv_cache import KvCache
from coordgen_rs.runtime.forward import Forward


@pytest.fixture
def bundle(bundle_of, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(bundle_of("embedded", "fp32"), tmp_path / "bundle"))


def records(bundle):
    return list((bundle.parent / "cache" / "coordgen_rs").glob("*.json"))


def test_result_is_kept_and_used_again(bundle, monkeypatch):
    costs = open_session(bundle).step_costs
    (record,) = records(bundle)
    kept = json.loads(record.read_text())
    assert kept["exact_widths"] == [1, 4, 8, 16, 32]
    monkeypatch.setattr(Bundle, "verify", lambda _: pytest.fail("verified again"))
    assert open_session(bundle).step_costs == costs
    assert [cost.base for cost in costs] == list(kept["step_us"].values())


def test_each_form_of_keys_and_values_is_tested_on_its_own(bundle, monkeypatch):
    forms = ("f32", "f16", "q8")
    sizes = [open_session(bundle, kv_cache=form).cache.nbytes for form in forms]
    assert len(records(bundle)) == len(forms)
    assert sizes[0] == 2 * sizes[1] > 2 * sizes[2]
    monkeypatch.setattr(Bundle, "verify", lambda _: pytest.fail("verified again"))
    for form in forms:
        assert open_session(bundle, kv_cache=form).cache.form == form


def test_heads_too_small_for_eight_bits_and_a_scale_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=1, head_dim=4)
    export_checkpoint(checkpoint, tmp_path / "out")
    with pytest.raises(OptionError, match="kv_cache is 'q8', but the model's heads have 4 numbers"):
        open_session(tmp_path / "out", kv_cache="q8")
    session = open_session(tmp_path / "out", kv_cache="f16")
    drafted, expected = (
        tokens_of(start(session, [3], max_new_tokens=40)) for start in (generate, plain)
    )
    assert drafted == expected


@pytest.mark.parametrize("context", [1, 2, 8, 23, 24])
def test_a_context_shorter_than_what_the_test_reads_is_tested_too(tmp_path, monkeypatch, context):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=1)
    export_checkpoint(checkpoint, tmp_path / "out", weights="int8", context=context)
    session = open_session(tmp_path / "out")
    assert len(session.widths) == len(session.step_costs) > 1
    assert all(cost.per_token == 0 for cost in session.step_costs)
    drafted, expected = (
        tokens_of(start(session, [3], max_new_tokens=40)) for start in (generate, plain)
    )
    assert drafted == expected
    assert len(drafted) == context


def test_steps_are_timed_behind_tokens_that_are_in_memory(bundle, monkeypatch):
    lengths = []

    def step_us(session, _):
        for array in session.cache._all:
            assert array[0, :, : session.length].any(axis=2).all()
        lengths.append(session.length)
        return dict.fromkeys(session.widths, 100.0 * len(lengths))

    monkeypatch.setattr(self_test, "_step_us", step_us)
    session = open_session(bundle)
    few, long = lengths
    assert (few, long) == (16, min(session.capacity - session.widths[-1], 1024))
    assert {cost.base for cost in session.step_costs} == {100.0}
    assert {cost.per_token for cost in session.step_costs} == {100.0 / (long - few)}


def test_nothing_that_the_test_wrote_can_be_committed(bundle):
    session = open_session(bundle)
    with pytest.raises(ShapeError):
        session.commit(np.arange(1, dtype=np.uint32))
    assert len(session.reusable_ids) == 0


def test_no_step_costs_more_than_narrower_ones_that_add_up_to_as_many_rows(
    session_of, steady_costs
):
    session, told = session_of("embedded", "fp32"), []
    timed = steady_costs(session, lambda *progress: told.append(progress))
    assert tuple(timed) == session.widths
    for width, us in timed.items():
        assert 0 < us <= min(-(-width // other) * timed[other] for other in timed if other <= width)
    assert told[0] == ("timing steps", 0, 40)


def test_rounded_costs_of_narrower_steps_add_up_to_no_less(session_of, steady_costs, monkeypatch):
    """Each step takes as long for each of its rows: rounded up for most of the widths."""
    session, now = session_of("embedded", "fp32"), [0.0]
    monkeypatch.setattr(self_test, "_clock", lambda _: lambda: now[0])
    real = OrtSession.step

    def step(session, inputs):
        now[0] += inputs.rows * 686.94e-6
        return real(session, inputs)

    monkeypatch.setattr(OrtSession, "step", step)
    timed = steady_costs(session, None)
    assert timed[1] == 686.9
    assert all(us <= width * timed[1] for width, us in timed.items())


def test_changed_file_is_verified_again(bundle):
    open_session(bundle)
    weights = bundle / "block_00.weights"
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BundleDamagedError, match=r"block_00\.weights"):
        open_session(bundle)


def test_inexact_widths_are_left_out_with_a_warning(bundle):
    open_session(bundle)
    (record,) = records(bundle)
    kept = json.loads(record.read_text())
    record.write_text(json.dumps(kept | {"exact_widths": [1, 8]}))
    with pytest.warns(UserWarning, match=r"widths \[4, 16, 32\] are not bit-equal"):
        session = open_session(bundle)
    assert [inputs.rows for inputs in session.step_inputs] == [1, 8]
    prompt = np.arange(300) % 7
    drafted = tokens_of(generate(session, prompt, max_new_tokens=20))
    assert drafted == tokens_of(plain(session, prompt, max_new_tokens=20))


def test_inexact_arithmetic_is_found(bundle, monkeypatch):
    real = OrtSession.step

    def differing(session, inputs):
        logits = real(session, inputs)
        return logits + 1e-7 if inputs.rows == 16 else logits

    monkeypatch.setattr(OrtSession, "step", differing)
    with pytest.warns(UserWarning, match=r"widths \[16\]"):
        assert 16 not in open_session(bundle).widths


def test_where_other_numbers_of_rows_are_inexact_rests_are_read_at_exact_widths(
    bundle, monkeypatch
):
    real, ran = Forward.run_chain, []

    def differing(forward, buffers, token_ids):
        real(forward, buffers, token_ids)
        ran.append(buffers.rows)
        if buffers.rows == 11:
            first = forward._cache.length
            forward._cache._all[-1][:, :, first : first + 11] ^= 1

    monkeypatch.setattr(Forward, "run_chain", differing)
    session = open_session(bundle)
    assert 11 in ran
    assert session.is_exact_after_prefill
    assert not session.is_exact_at_any_rows
    del ran[:]
    session.prefill(np.arange(11))
    assert ran == [16]
    monkeypatch.undo()
    (bundle.parent / "cache").rename(bundle.parent / "other cache")
    assert open_session(bundle).is_exact_at_any_rows


def test_rests_are_not_tried_where_blocks_are_switched(bundle):
    assert not open_session(bundle, switch="resident").is_exact_at_any_rows
    assert open_session(bundle).is_exact_at_any_rows


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", "[" * 200_000, '{"exact_widths": 3}', "\xff"),
        *({"exact_widths": []}, {"exact_widths": [4, 8]}, {"exact_widths": [1, 2]}),
        *({"step_us": {}}, {"few_tokens": "16"}, {"files": {"head.onnx": 1}}),
        {"long_step_us": {"1": -1.0, "4": 1.0, "8": 1.0, "16": 1.0, "32": 1.0}},
    ],
    ids=lambda content: str(content)[:40],
)
def test_a_record_that_cannot_be_read_or_be_true_is_replaced(bundle, content):
    open_session(bundle)
    (record,) = records(bundle)
    if isinstance(content, dict):
        content = json.dumps(json.loads(record.read_text()) | content)
    record.write_text(content)
    assert open_session(bundle).widths == (1, 4, 8, 16, 32)
    assert json.loads(record.read_text())["exact_widths"] == [1, 4, 8, 16, 32]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_whose_logits_are_not_finite_is_refused(tmp_path, value):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.norm.weight"][3] = value
    save_weights(checkpoint, weights)
    export_checkpoint(checkpoint, tmp_path / "bundle")
    with pytest.raises(NonFiniteLogitsError, match="logits are NaN or infinite"):
        open_session(tmp_path / "bundle")


def test_a_target_that_answers_otherwise_each_time_is_refused(bundle, monkeypatch):
    real, numbers = OrtSession.step, np.random.default_rng(0)
    monkeypatch.setattr(
        OrtSession, "step", lambda *of: real(*of) + numbers.random(dtype=np.float32)
    )
    with pytest.raises(ProviderError, match="gives other logits each time"):
        open_session(bundle)


@pytest.mark.parametrize(("file", "name"), [("block_00", b"hidden_out"), ("head", b"logits")])
def test_a_graph_whose_names_are_no_text_is_refused_by_its_file(bundle, capfd, file, name):
    graph = bundle / f"{file}.onnx"
    content = graph.read_bytes().replace(name, b"\xff" + name[1:])
    graph.write_bytes(content)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][graph.name]["sha256"] = hashlib.sha256(content).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises((BundleError, BlockLoadError), match=rf"{file}\.onnx does not fit"):
        open_session(bundle)
    assert capfd.readouterr().out == ""


def test_a_cache_that_does_not_fit_into_memory_is_refused(bundle, monkeypatch):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr(KvCache, "__init__", refuse)
    with pytest.raises(MemoryBudgetError, match="1024 tokens"):
        open_session(bundle)


def test_unwritable_cache_is_no_error(bundle, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert open_session(bundle).step_costs


def test_another_number_of_threads_is_refused(bundle):
    session = open_session(bundle)
    with pytest.raises(OptionError, match="threads"):
        open_session(bundle, threads=session.threads + 1)
