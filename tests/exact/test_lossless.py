"""The one promise: whatever is drafted, the tokens are those of plain greedy decoding."""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import DraftModel, Sampling, Stats, Tokenizer, generate, make_drafter, plain
from coordgen_rs.lab.check import SideBranchDrafter
from corpus import HELD_OUT_SEEDS, TASKS, example
from scripted import SCRIPTS, ScriptedDrafter, chain, right_to_the_full_width

WEIGHTS = ("fp32", "int8", "int4")
STORIES = (
    "Once upon a time",
    "Lily and Tom went to the park. Lily and Tom saw a dog. Tom said",
    "The big red ball",
    "",
)


ALL_SOURCES = (
    "automaton",
    "resumed-copy",
    "earlier-requests",
    "prompt-lookup",
    "calibration",
    "reuse",
    "lookup-table",
    "common-phrases",
    "respelling",
)
LOOKUPS = ("auto", "prompt-lookup", ALL_SOURCES)
METHODS = ("sam", "token-recycling", "diaa")


def assert_lossless(
    session, prompt, max_new_tokens, drafts=(*LOOKUPS, *METHODS), model=None, commit="auto"
):
    expected = tokens_of(plain(session, prompt, max_new_tokens=max_new_tokens))
    for draft in drafts:
        used = model if draft in ("auto", "blend", "edgellm") else None
        drafter = make_drafter(session, draft, commit, draft_model=used)
        got = tokens_of(generate(session, prompt, max_new_tokens=max_new_tokens, drafter=drafter))
        assert got == expected, f"draft {draft} after a prompt of {len(prompt)} tokens"
    return expected


@pytest.mark.parametrize("weights", WEIGHTS)
def test_embedded_model_says_the_same_with_and_without_drafts(session_of, weights):
    session = session_of("embedded", weights)
    model = DraftModel(session_of("embedded-draft", weights))
    tokenizer = Tokenizer.of(session.bundle)
    for index in range(80):
        made = example(TASKS[index % len(TASKS)], HELD_OUT_SEEDS[index])
        prompt = tokenizer.encode(made.prompt)
        if index % 10:
            assert len(assert_lossless(session, prompt, 40, LOOKUPS)) > 0
        else:
            drafts = (*LOOKUPS, *METHODS, "edgellm", "blend")
            assert len(assert_lossless(session, prompt, 40, drafts, model)) > 0


def answered_beside(session, prompt, answer, commit):
    """The answer, drafted behind a wrong first path in every step, and the steps that it took."""
    text, stats = np.array([prompt[-1], *answer], np.uint32), Stats()
    drafter = make_drafter(session, (), commit)
    beside = SideBranchDrafter(drafter, text, session.vocab_size)
    steps = generate(session, prompt, max_new_tokens=len(answer), drafter=beside, stats=stats)
    return tokens_of(steps), stats.steps


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize(("weights", "task"), list(zip((*WEIGHTS, "int8"), TASKS, strict=True)))
def test_both_ways_to_commit_say_the_same_as_plain_decoding(session_of, weights, task, commit):
    session = session_of("embedded", weights)
    assert commit in session.exact_commits
    model = DraftModel(session_of("embedded-draft", weights))
    prompt = Tokenizer.of(session.bundle).encode(example(task, HELD_OUT_SEEDS[500]).prompt)
    drafts = (*LOOKUPS, *METHODS, "edgellm", "blend")
    answer = assert_lossless(session, prompt, 40, drafts, model, commit)
    assert answered_beside(session, prompt, answer, commit)[0] == answer


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize("form", ["f16", "q8"])
@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_keys_and_values_in_fewer_bits_say_the_same_with_and_without_drafts(
    session_of, weights, form, commit
):
    session = session_of("embedded", weights, kv_cache=form)
    assert commit in session.exact_commits
    assert session.is_exact_after_prefill
    model = DraftModel(session_of("embedded-draft", weights, kv_cache=form))
    drafts = (*LOOKUPS, *METHODS, "edgellm", "blend")
    for index in range(12):
        made = example(TASKS[index % len(TASKS)], HELD_OUT_SEEDS[600 + index])
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


def penalised_greedily(session, prompt, penalty, max_new_tokens):
    """Greedy decoding with a repetition penalty, as Hugging Face's processor has it."""
    session.rewind(0)
    session.prefill(prompt[:-1])
    text, inputs = prompt.tolist(), session.step_inputs[0]
    while len(text) < len(prompt) + max_new_tokens:
        inputs.fill_chain(np.array(text[-1:], np.uint32), session.length)
        scores = session.step(inputs)[0].copy()
        session.commit(np.zeros(1, np.uint32))
        seen = np.unique(text)
        factor = np.float32(penalty)
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
        text.append(int(scores.argmax()))
        if text[-1] in session.end_token_ids:
            break
    return text[len(prompt) :]


@pytest.mark.parametrize(("weights", "penalty"), [*((w, 1.3) for w in WEIGHTS), ("int8", 0.8)])
def test_a_repetition_penalty_changes_the_answer_alike_with_and_without_drafts(
    session_of, weights, penalty
):
    session = session_of("embedded", weights)
    tokenizer = Tokenizer.of(session.bundle)
    sampling = Sampling(0, repetition_penalty=penalty)
    drawn = Sampling(0.8, min_p=0.05, repetition_penalty=penalty, seed=2)
    drafters = [make_drafter(session, draft) for draft in ("auto", ALL_SOURCES)]
    for index, task in enumerate(TASKS[:2]):
        prompt = tokenizer.encode(example(task, HELD_OUT_SEEDS[300 + index]).prompt)
        expected = penalised_greedily(session, prompt, penalty, 30)
        for choice in (sampling, drawn):
            options = {"max_new_tokens": 30, "sampling": choice}
            alone = tokens_of(plain(session, prompt, **options))
            assert choice is drawn or alone == expected
            for drafter in drafters:
                got = tokens_of(generate(session, prompt, drafter=drafter, **options))
                assert got == alone


def changed_greedily(session, prompt, sampling, max_new_tokens):
    """Greedy decoding with penalties on the answer's tokens and biases, as OpenAI defines them."""
    presence, frequency, biases = sampling
    session.rewind(0)
    session.prefill(prompt[:-1])
    answer, inputs = [int(prompt[-1])], session.step_inputs[0]
    while len(answer) <= max_new_tokens:
        inputs.fill_chain(np.array(answer[-1:], np.uint32), session.length)
        scores = session.step(inputs)[0].copy()
        session.commit(np.zeros(1, np.uint32))
        for token, bias in biases.items():
            scores[token] += np.float32(bias)
        for token in set(answer[1:]):
            count = np.float32(answer[1:].count(token))
            scores[token] -= count * np.float32(frequency) + np.float32(presence)
        answer.append(int(scores.argmax()))
        if answer[-1] in session.end_token_ids:
            break
    return answer[1:]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    ("presence", "frequency", "biases"),
    [(1.0, 0.0, {}), (0.0, 0.8, {}), (-0.5, -0.3, {}), (0.4, 0.3, {300: 3.0, 9: -100.0, 40: 1.5})],
)
def test_counts_and_biases_change_the_answer_alike_with_and_without_drafts(
    session_of, weights, presence, frequency, biases
):
    session = session_of("embedded", weights)
    tokenizer = Tokenizer.of(session.bundle)
    changed = {"presence_penalty": presence, "frequency_penalty": frequency, "logit_bias": biases}
    greedy, drawn = Sampling(0, **changed), Sampling(0.8, min_p=0.05, seed=2, **changed)
    drafters = [make_drafter(session, draft) for draft in ("auto", ALL_SOURCES, "diaa")]
    for index, task in enumerate(TASKS[:2]):
        prompt = tokenizer.encode(example(task, HELD_OUT_SEEDS[300 + index]).prompt)
        expected = changed_greedily(session, prompt, (presence, frequency, biases), 30)
        for choice in (greedy, drawn):
            options = {"max_new_tokens": 30, "sampling": choice}
            alone = tokens_of(plain(session, prompt, **options))
            assert choice is drawn or alone == expected
            for commit in ("canonical", "compact"):
                assert answered_beside_with(session, prompt, alone, commit, choice) == alone
            for drafter in drafters:
                got = tokens_of(generate(session, prompt, drafter=drafter, **options))
                assert got == alone


def answered_beside_with(session, prompt, answer, commit, sampling):
    """The answer by a choice of tokens, drafted behind a wrong first path in every step."""
    text = np.array([prompt[-1], *answer], np.uint32)
    drafter = SideBranchDrafter(make_drafter(session, (), commit), text, session.vocab_size)
    options = {"max_new_tokens": len(answer), "sampling": sampling}
    return tokens_of(generate(session, prompt, drafter=drafter, **options))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ["TinyStories-656K", "stories260K"])
def test_foreign_checkpoints_say_the_same_with_and_without_drafts(session_of, name, weights):
    session = session_of(name, weights)
    tokenizer = Tokenizer.of(session.bundle)
    for text in STORIES:
        prompt = tokenizer.encode(text)
        if len(prompt):
            assert_lossless(session, prompt, 120)


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
    for index, task in enumerate(TASKS):
        prompt = tokenizer.encode(example(task, HELD_OUT_SEEDS[1000 + index]).prompt)
        answer = tokens_of(plain(session, prompt, max_new_tokens=100))
        for limit in (1, 2, len(answer) // 2 or 1, 100):
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
