"""A real instruct model from a GGUF file says the same with and without drafts."""

import json
import os

import jsonschema
import pytest

from answers import tokens_of
from checkpoints import exported
from coordgen_rs import (
    DraftModel,
    JsonSchema,
    Tokenizer,
    Vocabulary,
    generate,
    make_drafter,
    open_session,
    plain,
)
from corpus import HELD_OUT_SEEDS, TASKS, example
from grammar_schemas import FOLLOWED
from real_model import GGUF, QUESTIONS, chat, needs_real_model

pytestmark = needs_real_model

SOURCES = ("automaton", "earlier-requests", "prompt-lookup", "calibration", "reuse", "lookup-table")
MODES = ("auto", "automaton", "prompt-lookup", "sam", "token-recycling", "diaa", SOURCES)


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory):
    """The bundle of a kind of weights, exported once."""
    folder, made = tmp_path_factory.mktemp("smollm2"), {}

    def bundle(weights):
        if weights not in made:
            made[weights] = exported(GGUF, folder / weights, weights=weights, context=2048).path
        return made[weights]

    return bundle


def assert_lossless(session, prompts, max_new_tokens, modes=MODES, model=None):
    """Every mode gives the tokens of plain decoding; returns the answers' texts."""
    tokenizer, texts = Tokenizer.of(session.bundle), []
    # One drafter a mode for all prompts: what it learned from one must not change the next.
    drafters = {
        mode: make_drafter(
            session, mode, draft_model=model if mode in ("edgellm", "blend") else None
        )
        for mode in modes
    }
    for prompt in prompts:
        ids = tokenizer.encode(prompt)
        expected = tokens_of(plain(session, ids, max_new_tokens=max_new_tokens))
        for mode, drafter in drafters.items():
            steps = generate(session, ids, max_new_tokens=max_new_tokens, drafter=drafter)
            assert tokens_of(steps) == expected, f"{mode} after {prompt[-80:]!r}"
        texts.append(tokenizer.decode(expected))
    return texts


def test_short_answers_are_the_same_with_lookups_and_published_methods(bundle_of):
    session = open_session(bundle_of("keep"))
    prompts, modes = (
        [chat(question) for question in QUESTIONS[:4]],
        ("auto", "sam", "diaa", SOURCES),
    )
    answers = assert_lossless(session, prompts, 10, modes)
    assert "Basel" in answers[2]  # which other words depends on how a processor rounds


def test_a_call_of_a_tool_follows_its_schema_with_and_without_drafts(bundle_of):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    session = open_session(bundle_of("keep"))
    tokenizer = Tokenizer.of(session.bundle)
    vocabulary = Vocabulary(tokenizer, session.vocab_size, session.end_token_ids)
    prompt = tokenizer.encode(chat(f"{QUESTIONS[2]} Answer as JSON."))
    schema = FOLLOWED["one of several tools"]
    asked = {"grammar": vocabulary.matcher(JsonSchema(schema)), "max_new_tokens": 60}
    expected = tokens_of(plain(session, prompt, **asked))
    jsonschema.validate(json.loads(tokenizer.decode(expected)), schema)
    for mode in ("auto", "diaa", SOURCES):
        drafter = make_drafter(session, mode)
        assert tokens_of(generate(session, prompt, drafter=drafter, **asked)) == expected, mode


@pytest.mark.real_full
@pytest.mark.parametrize("weights", ["keep", "int8", "int4", "fp32"])
def test_40_answers_are_the_same_in_every_mode(bundle_of, weights):
    threads = int(os.environ["COORDGEN_THREADS"])  # one number a process, so make runs two
    session = open_session(bundle_of(weights), threads=threads)
    prompts = [
        chat(example(TASKS[index % len(TASKS)], HELD_OUT_SEEDS[index]).prompt)
        for index in range(40)
    ]
    assert len(assert_lossless(session, prompts, 32)) == 40
    model = DraftModel(open_session(bundle_of("int4"), threads=threads))
    assert_lossless(session, prompts[:4], 32, ("edgellm", "blend"), model)
