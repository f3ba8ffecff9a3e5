"""gpt-oss: sinks, windows of alternate layers and experts in MXFP4, and drafts change nothing."""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import OrtSession, Stats, generate, make_drafter, open_session, plain
from coordgen_rs.tools.check import SideBranchDrafter
from coordgen_rs.tools.export import export_checkpoint
from gpt_oss import write_gpt_oss
from scripted import SCRIPTS, ScriptedDrafter

ALL_SOURCES = ("automaton", "resumed-copy", "prompt-lookup", "calibration", "reuse", "lookup-table")
DRAFTS = ("auto", "sam", "token-recycling", "diaa", ALL_SOURCES)
WEIGHTS = ("fp32", "int8", "int4", "keep")
"""What is kept are experts in MXFP4, beside floats."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("gpt-oss"), {}
    source = write_gpt_oss(folder / "source", packed=True, seed=3)

    def bundle(weights):
        if weights not in made:
            made[weights] = folder / weights
            export_checkpoint(source, made[weights], weights=weights, blocks=2, context=1024)
        return made[weights]

    return bundle


@pytest.fixture(scope="module")
def session(bundles):
    return open_session(bundles("keep"))


def prompt_of(seed, length=90):
    """Text that repeats parts of itself, so that lookups find some."""
    random = np.random.default_rng(seed)
    part = random.integers(3, 128, length // 3)
    return np.concatenate([part, random.integers(3, 128, length // 3), part]).astype(np.uint32)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("commit", ["canonical", "compact"])
def test_drafts_change_nothing(bundles, weights, commit):
    session = open_session(bundles(weights))
    assert session.exact_commits == ("canonical", "compact")
    assert session.is_exact_after_prefill
    assert session.is_exact_at_any_rows
    options = {"max_new_tokens": 60, "ignore_eos": True}
    for seed in range(4):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, **options))
        for draft in DRAFTS:
            drafter = make_drafter(session, draft, commit)
            assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == answer
        text = np.array([prompt[-1], *answer], np.uint32)
        beside = SideBranchDrafter(make_drafter(session, (), commit), text, session.vocab_size)
        assert tokens_of(generate(session, prompt, drafter=beside, **options)) == answer


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


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_adversarial_drafts_change_nothing(session, script, commit):
    for seed in range(3):
        prompt = prompt_of(seed, 40)
        answer = tokens_of(plain(session, prompt, max_new_tokens=50))
        for limit in (1, 2, len(answer) // 2 or 1, 50):
            drafter = ScriptedDrafter(
                make_drafter(session, "auto", commit),
                lambda given, answer=answer: script(answer, given),
            )
            got = tokens_of(generate(session, prompt, max_new_tokens=limit, drafter=drafter))
            assert got == answer[:limit]


def test_an_answer_ends_at_any_of_three_ends(session, monkeypatch):
    """Also where drafts go on behind it."""
    for seed in range(3):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, max_new_tokens=40, ignore_eos=True))
        ends = (answer[17], answer[23], answer[30])
        monkeypatch.setattr(OrtSession, "end_token_ids", ends)
        expected = answer[: min(answer.index(end) for end in ends) + 1]
        for script in SCRIPTS:
            drafter = ScriptedDrafter(
                make_drafter(session),
                lambda given, answer=answer, script=script: script(answer, given),
            )
            stats = Stats()
            steps = generate(session, prompt, max_new_tokens=40, drafter=drafter, stats=stats)
            assert tokens_of(steps) == expected
            assert stats.finish_reason == "stop"


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
