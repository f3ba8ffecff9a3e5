"""The self-test at first opening: kept, redone when files change, and heeded."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from coordgen_rs import Bundle, OrtSession, generate, open_session, plain
from coordgen_rs.errors import BundleDamagedError, OptionError


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
    steps = [list(start(session, prompt, max_new_tokens=20)) for start in (generate, plain)]
    tokens = [[token for step in found for token in step.token_ids] for found in steps]
    assert tokens[0] == tokens[1]


def test_inexact_arithmetic_is_found(bundle, monkeypatch):
    real = OrtSession.step

    def differing(session, inputs):
        logits = real(session, inputs)
        return logits + 1e-7 if inputs.rows == 16 else logits

    monkeypatch.setattr(OrtSession, "step", differing)
    with pytest.warns(UserWarning, match=r"widths \[16\]"):
        assert 16 not in open_session(bundle).widths


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"exact_widths": 3}', "\xff"])
def test_unreadable_record_is_replaced(bundle, content):
    open_session(bundle)
    (record,) = records(bundle)
    record.write_text(content)
    open_session(bundle)
    assert json.loads(record.read_text())["exact_widths"] == [1, 4, 8, 16, 32]


def test_unwritable_cache_is_no_error(bundle, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert open_session(bundle).step_costs


def test_another_number_of_threads_is_refused(bundle):
    session = open_session(bundle)
    with pytest.raises(OptionError, match="threads"):
        open_session(bundle, threads=session.threads + 1)
