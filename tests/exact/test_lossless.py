"""The one promise: whatever is drafted, the tokens are those of plain greedy decoding."""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    DraftModel,
    Sampling,
    Stats,
    Tokenizer,
    draft_methods,
    generate,
    make_drafter,
    plain,
)
from coordgen_rs.lab.check import SideBranchDrafter
from corpus import HELD_OUT_SEEDS, TASKS, example
from scripted import SCRIPTS, ScriptedDrafter, chain, right_to_the_full_width

WEIGHTS = ("fp32", "int8", "int4")
FORMS = [("fp32", "f32"), ("int8", "f32"), ("int4", "f32"), ("fp32", "f16"), ("int8", "q8")]
"""Weights, and how keys and values are held."""
STORIES = (
    "Lily and Tom went to the park. Lily and Tom saw a dog. Tom said",
    "The big red ball",
    "",
)

ALL_SOURCES = (
    *("automaton", "resumed-copy", "earlier-requests", "prompt-lookup", "calibration"),
    *("reuse", "lookup-table", "common-phrases", "respelling"),
)
LOOKUPS = ("auto", "prompt-lookup", ALL_SOURCES)
PUBLISHED = {it.name: it.needs_draft_model for it in draft_methods() if it.published}
LOOKING_UP = (
    "auto",
    "token-recycling",
    ALL_SOURCES,
    *(n for n, model in PUBLISHED.items() if not model),
)
DRAFTING = (*("auto", "blend", "edgellm-ours"), *(n for n, model in PUBLISHED.items() if model))


def assert_lossless(session, prompt, max_new_tokens, drafts=LOOKING_UP, model=None, commit="auto"):
    expected = tokens_of(plain(session, prompt, max_new_tokens=max_new_tokens))
    for draft in drafts:
        used = model if draft in DRAFTING else None
        drafter = make_drafter(session, draft, commit, draft_model=used)
        got = tokens_of(generate(session, prompt, max_new_tokens=max_new_tokens, drafter=drafter))
        assert got == expected, f"draft {draft} after a prompt of {len(prompt)} tokens"
    return expected


def answered_beside(session, prompt, answer, commit, sampling=None):
    """The answer, drafted behind a wrong first path in every step, and the steps that it took."""
    text, stats = np.array([prompt[-1], *answer], np.uint32), Stats()
    drafter = SideBranchDrafter(make_drafter(session, (), commit), text, session.vocab_size)
    options = {"max_new_tokens": len(answer), "sampling": sampling, "stats": stats}
    return tokens_of(generate(session, prompt, drafter=drafter, **options)), stats.steps


@pytest.mark.parametrize("weights", WEIGHTS)
def test_embedded_model_says_the_same_with_and_without_drafts(session_of, weights):
    session = session_of("embedded", weights)
    tokenizer = Tokenizer.of(session.bundle)
    for index in range(12):
        prompt = tokenizer.encode(example(TASKS[index % len(TASKS)], HELD_OUT_SEEDS[index]).prompt)
        assert len(assert_lossless(session, prompt, 40, LOOKUPS)) > 0


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize(
    ("weights", "form"),
    FORMS,
)
def test_both_ways_to_commit_say_the_same_as_plain_decoding(session_of, weights, form, commit):
    session = session_of("embedded", weights, kv_cache=form)
    assert commit in session.exact_commits
    assert session.is_exact_after_prefill
    model = DraftModel(session_of("embedded-draft", weights, kv_cache=form))
    drafts = (*LOOKING_UP, *DRAFTING)
    number = 2 * FORMS.index((weights, form)) + (commit == "compact")
    made = example(TASKS[number % len(TASKS)], HELD_OUT_SEEDS[600 + number])
    prompt = Tokenizer.of(session.bundle).encode(made.prompt)
    answer = assert_lossless(session, prompt, 40, drafts, model, commit)
    assert answered_beside(session, prompt, answer, commit)[0] == answer


def test_fewer_bits_are_near_to_float32_and_not_the_same(session_of):
    prompt = np.random.default_rng(5).integers(400, size=300).astype(np.uint32)
    logits = {}
    for form in ("f32", "f16", "q8"):
        session, rows = session_of("embedded", "fp32", kv_cache=form), []
        session.rewind(0)
        session.prefill(prompt, on_logits=lambda found, rows=rows: rows.append(found.copy()))
        logits[form] = np.concatenate(rows)
    far = {form: np.abs(logits[form] - logits["f32"]).mean() for form in ("f16", "q8")}
    assert 0 < far["f16"] < far["q8"] < 0.05 * logits["f32"].std()


@pytest.mark.parametrize("is_exact", [True, False])
def test_side_branches_are_committed_at_once_where_they_are_exact(
    session_of, monkeypatch, is_exact
):
    session = session_of("embedded", "fp32")
    monkeypatch.setattr(session, "is_exact_on_branches", is_exact)
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[7]).prompt)
    answer = tokens_of(plain(session, prompt, max_new_tokens=40))
    took = {
        commit: answered_beside(session, prompt, answer, commit)
        for commit in ("auto", "canonical", "compact")
    }
    assert [said for said, _ in took.values()] == [answer] * 3
    assert took["compact"][1] < took["canonical"][1]
    assert took["auto"] == took["compact" if is_exact else "canonical"]


def changed_greedily(session, prompt, changes, max_new_tokens):
    """Greedy decoding with a repetition penalty, as Hugging Face's processor has it.

    Or with penalties on the answer's tokens and biases, as OpenAI defines them.
    """
    factor = np.float32(changes.get("repetition_penalty", 1))
    frequency = np.float32(changes.get("frequency_penalty", 0))
    presence = np.float32(changes.get("presence_penalty", 0))
    session.rewind(0)
    session.prefill(prompt[:-1])
    answer, inputs = list[int](), session.step_inputs[0]
    while len(answer) < max_new_tokens:
        inputs.fill_chain(np.array([*prompt[-1:], *answer][-1:], np.uint32), session.length)
        scores = session.step(inputs)[0].copy()
        session.commit(np.zeros(1, np.uint32))
        for token, bias in changes.get("logit_bias", {}).items():
            scores[token] += np.float32(bias)
        seen = np.unique([*prompt.tolist(), *answer])
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
        for token in set(answer):
            scores[token] -= np.float32(answer.count(token)) * frequency + presence
        answer.append(int(scores.argmax()))
        if answer[-1] in session.end_token_ids:
            break
    return answer


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.8},
        {"presence_penalty": -0.5, "frequency_penalty": -0.3},
        {"presence_penalty": 0.4, "logit_bias": {300: 3.0, 9: -100.0, 40: 1.5}},
    ],
    ids=str,
)
def test_penalties_and_biases_change_the_answer_alike_with_and_without_drafts(
    session_of, weights, changes
):
    session = session_of("embedded", weights)
    greedy, drawn = Sampling(0, **changes), Sampling(0.8, min_p=0.05, seed=2, **changes)
    drafters = [make_drafter(session, draft) for draft in ("auto", ALL_SOURCES)]
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[300]).prompt)
    expected = changed_greedily(session, prompt, changes, 30)
    for choice in (greedy, drawn):
        options = {"max_new_tokens": 30, "sampling": choice}
        alone = tokens_of(plain(session, prompt, **options))
        assert choice is drawn or alone == expected
        for commit in ("canonical", "compact"):
            assert answered_beside(session, prompt, alone, commit, choice)[0] == alone
        for drafter in drafters:
            assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == alone


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ["TinyStories-656K", "stories260K"])
def test_foreign_checkpoints_say_the_same_with_and_without_drafts(session_of, name, weights):
    session = session_of(name, weights)
    tokenizer = Tokenizer.of(session.bundle)
    for text in STORIES:
        prompt = tokenizer.encode(text)
        if len(prompt):
            assert_lossless(session, prompt, 80)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_answers_up_to_the_last_cache_slot_are_the_same(session_of, weights):
    session = session_of("TinyStories-656K", weights)
    prompt = Tokenizer.of(session.bundle).encode("Once upon a time there was a cat.")
    filled = np.resize(prompt, session.capacity - 40)
    for used in (filled, np.resize(prompt, session.capacity)):
        stats = Stats()
        expected = tokens_of(plain(session, used, max_new_tokens=1000, stats=stats))
        assert stats.finish_reason in ("capacity", "stop")
        assert len(expected) <= session.capacity - len(used) + 1
        assert assert_lossless(session, used, 1000) == expected


def test_empty_prompt_gives_the_published_story(session_of):
    session = session_of("stories260K", "fp32")
    tokenizer = Tokenizer.of(session.bundle)
    tokens = tokens_of(generate(session, tokenizer.encode(""), max_new_tokens=60))
    text = tokenizer.decode(tokens).strip()
    assert text.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "park. One day, she saw a big, red ball"
    )


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_adversarial_drafts_change_nothing(session_of, script, weights):
    session = session_of("embedded", weights)
    tokenizer = Tokenizer.of(session.bundle)
    for index, task in enumerate(TASKS[:2]):
        prompt = tokenizer.encode(example(task, HELD_OUT_SEEDS[1000 + index]).prompt)
        answer = tokens_of(plain(session, prompt, max_new_tokens=60))
        for limit in (index + 1, len(answer) // (index + 1)):
            drafter = ScriptedDrafter(
                make_drafter(session), lambda given, answer=answer: script(answer, given)
            )
            got = tokens_of(generate(session, prompt, max_new_tokens=limit, drafter=drafter))
            assert got == answer[:limit], f"{task}, limited to {limit}"


def test_right_drafts_are_accepted_whole(session_of):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("rag", HELD_OUT_SEEDS[7]).prompt)
    answer = tokens_of(plain(session, prompt, max_new_tokens=40))
    stats = Stats()
    drafter = ScriptedDrafter(
        make_drafter(session), lambda given: right_to_the_full_width(answer, given)
    )
    tokens_of(generate(session, prompt, max_new_tokens=40, drafter=drafter, stats=stats))
    assert stats.steps == -(-len(answer) // 32)


def test_drafts_past_the_end_token_are_not_given_out(session_of):
    session = session_of("embedded", "fp32")
    prompt = Tokenizer.of(session.bundle).encode(example("ui", HELD_OUT_SEEDS[3]).prompt)
    answer = tokens_of(plain(session, prompt, max_new_tokens=200))
    assert answer[-1] in session.end_token_ids
    stats = Stats()
    drafter = ScriptedDrafter(
        make_drafter(session), lambda given: chain([*answer[given:], *answer[:5]])
    )
    got = tokens_of(generate(session, prompt, max_new_tokens=200, drafter=drafter, stats=stats))
    assert got == answer
    assert stats.finish_reason == "stop"
