"""gpt-oss: sinks, windows of alternate layers and experts in MXFP4, and drafts change nothing."""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import generate, make_drafter, open_session, plain
from gpt_oss import write_gpt_oss
from lossless import (
    COMMITS,
    DRAFTS,
    Bundles,
    check_adversarial_drafts,
    check_drafts,
    check_ends,
    prompt_of,
)
from scripted import SCRIPTS

WEIGHTS = ("fp32", "int8", "int4", "keep")
"""What is kept are experts in MXFP4, beside floats."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    def write(path, family):
        write_gpt_oss(path, packed=True, seed=3)

    made = Bundles(tmp_path_factory.mktemp("gpt-oss"), write)
    return lambda weights: made("gpt-oss", weights)


@pytest.fixture(scope="module")
def session(bundles):
    return open_session(bundles("keep"))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("commit", COMMITS)
def test_drafts_change_nothing(bundles, weights, commit):
    check_drafts(open_session(bundles(weights)), commit, 4)


@pytest.mark.parametrize("form", ["f16", "q8"])
def test_keys_and_values_in_fewer_bits_change_nothing_with_drafts(bundles, form):
    session = open_session(bundles("keep"), kv_cache=form)
    assert session.exact_commits == ("canonical", "compact")
    for seed in range(2):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, max_new_tokens=50, ignore_eos=True))
        for draft in DRAFTS:
            drafter = make_drafter(session, draft)
            steps = generate(session, prompt, max_new_tokens=50, ignore_eos=True, drafter=drafter)
            assert tokens_of(steps) == answer


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_adversarial_drafts_change_nothing(session, script, commit):
    check_adversarial_drafts(session, script, commit)


def test_an_answer_ends_at_any_of_three_ends(session, monkeypatch):
    check_ends(session, SCRIPTS, monkeypatch, places=(17, 23, 30))


def test_a_prompt_says_the_same_after_a_rewind_as_at_first(bundles, session):
    """Also where a window has moved on behind what is read again."""
    for length in (200, 130, 24, 5):
        prompt = prompt_of(11, 210)[:length]
        expected = tokens_of(plain(open_session(bundles("keep")), prompt, max_new_tokens=20))
        assert tokens_of(generate(session, prompt, max_new_tokens=20)) == expected


def test_sinks_and_biases_change_what_is_said(tmp_path):
    """That all of them are read: what is said differs without any of them."""
    from safetensors.numpy import load_file

    from checkpoints import exported, save_weights

    logits = {}
    for part in ("", "sinks", "o_proj.bias", "router.bias", "gate_up_proj_bias", "down_proj_bias"):
        source = write_gpt_oss(tmp_path / f"{part}-source", num_hidden_layers=2)
        weights = load_file(source / "model.safetensors")
        for name, values in weights.items():
            if part and name.endswith(part):
                weights[name] = np.zeros_like(values) - (50 if part == "sinks" else 0)
        save_weights(source, weights)
        exported(source, tmp_path / f"{part}-out", decode_rows=8)
        session, found = open_session(tmp_path / f"{part}-out"), []
        session.prefill(prompt_of(1), on_logits=lambda rows, found=found: found.append(rows.copy()))
        logits[part] = np.concatenate(found)
    for part, rows in logits.items():
        assert part == "" or np.abs(rows - logits[""]).max() > 0.1, part
