"""A grammar behind thinking: thinking is free, the answer is held, and drafts change nothing."""

import json
import random

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")

from coordgen_rs import JsonSchema, Model, Regex, Vocabulary
from coordgen_rs.text.grammar.kinds import AfterThinking
from coordgen_rs.text.thinking import CHANNELS, Thinking, ThinkingMarks, marks_of

END = 1
SCHEMA = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
TAGS = marks_of("</think>")
SHORT = ThinkingMarks("<", ".", ())
"""Marks that a model of stories says by itself."""


def allowed(matcher):
    bits = np.unpackbits(matcher.words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def ids(tokenizer, text):
    return tokenizer.encode(text, special_tokens=False).tolist()


@pytest.mark.parametrize("marks", [TAGS, CHANNELS, SHORT, marks_of("[/THINK]")])
@pytest.mark.parametrize("is_open", [False, True])
def test_thinking_is_free_and_the_answer_held(vocabulary, tokenizer, marks, is_open):
    if marks is CHANNELS and is_open:
        return
    matcher = vocabulary.matcher(AfterThinking(SCHEMA, Thinking(marks, is_open)))
    inner = Vocabulary(tokenizer, tokenizer.vocab_size, [END]).matcher(SCHEMA)
    matcher.begin()
    assert is_open or not matcher.after([])
    for token in [] if is_open else ids(tokenizer, marks.begin):
        matcher.after([])
        assert token in allowed(matcher)
        assert not matcher.extend([token])
    for token in ids(tokenizer, "Any words { at all"):
        matcher.after([])
        assert allowed(matcher) == set(range(tokenizer.vocab_size)) - {END}
        assert not matcher.extend([token])
    for token in ids(tokenizer, marks.end) + (
        ids(tokenizer, marks.between + marks.header) if marks.header else []
    ):
        matcher.after([])
        assert token in allowed(matcher)
        assert not matcher.extend([token])
    inner.begin()
    inner.after([])
    matcher.after([])
    gap = ids(tokenizer, "\n\n")
    assert allowed(matcher) - allowed(inner) <= set(gap)
    assert allowed(matcher) >= allowed(inner)
    assert not matcher.extend(ids(tokenizer, '{"a": 5'))
    matcher.extend(ids(tokenizer, "}"))
    assert matcher.after([])


def test_without_thinking_the_answer_is_held_from_its_first_token(vocabulary, tokenizer):
    matcher = vocabulary.matcher(AfterThinking(SCHEMA, Thinking(TAGS)))
    matcher.begin()
    matcher.after([])
    first, begin = ids(tokenizer, '{"a": 1}'), ids(tokenizer, "<think>")
    assert {first[0], begin[0]} <= allowed(matcher)
    assert ids(tokenizer, "x")[-1] not in allowed(matcher)
    assert not matcher.extend(first[:1])
    matcher.after([])
    assert begin[0] not in allowed(matcher)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_an_answer_may_begin_as_the_mark_of_thinking_does(vocabulary, tokenizer, kept):
    grammar = Regex("<[a-s]>|<thi")
    matcher = vocabulary.matcher(AfterThinking(grammar, Thinking(TAGS)))
    inner = Vocabulary(tokenizer, tokenizer.vocab_size, [END]).matcher(grammar)
    begin = ids(tokenizer, "<think>")
    assert begin[:3] == ids(tokenizer, "<th"), "a mark of several tokens"
    for said in (ids(tokenizer, "<a>"), ids(tokenizer, "<thi")):
        matcher.begin()
        inner.begin()
        matcher.extend(said[:kept])
        inner.extend(said[:kept])
        for num in range(len(said[kept:]) + 1):
            path = said[kept : kept + num]
            is_complete = inner.after(path)
            given = [*said[:kept], *path]
            assert matcher.after(path) == (is_complete and given != begin[: len(given)])
            goes_on = {begin[len(given)]} if given == begin[: len(given)] else set()
            assert allowed(matcher) == allowed(inner) | goes_on


def test_masks_after_going_along_paths_are_those_of_going_straight(vocabulary, tokenizer):
    grammar = AfterThinking(Regex("[a-f]{3,9}"), Thinking(SHORT, is_open=True))
    matcher = vocabulary.matcher(grammar)
    straight = matcher.another()
    chosen = random.Random(5)
    for _ in range(20):
        matcher.begin()
        straight.begin()
        said = ids(tokenizer, "so it is") + ids(tokenizer, ".")[-1:] + ids(tokenizer, "abcdef")
        given = 0
        while given < len(said):
            ahead = said[given : given + chosen.randrange(1, 6)]
            for num in range(len(ahead) + 1):
                matcher.after(ahead[:num])
                straight.begin()
                straight.extend(said[: given + num])
                straight.after([])
                assert allowed(matcher) == allowed(straight)
            kept_nodes = matcher.possible([0, *ahead, END], [0, *range(len(ahead) + 1)])
            assert kept_nodes == [True] * (len(ahead) + 1) + [False]
            kept = ahead[: chosen.randrange(1, len(ahead) + 1)]
            matcher.extend(kept)
            given += len(kept)


@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.2, "seed": 3}])
def test_drafts_change_no_token_of_thinking_and_answer(bundle_of, sampled):
    prompt = "The lamp of the Tormel mill is red. The lamp of the Tormel mill is"
    for is_open in (True, False):
        grammar = AfterThinking(SCHEMA, Thinking(SHORT, is_open))
        with Model.open(bundle_of("embedded", "fp32")) as model:
            answers = [
                model.generate(
                    prompt,
                    max_new_tokens=90,
                    grammar=grammar,
                    drafts=drafts,
                    prediction='red. {"a": 5}',
                    **sampled,
                )
                for drafts in (True, False)
            ]
        assert answers[0].token_ids == answers[1].token_ids
        text = answers[0].text
        if answers[0].finish_reason == "grammar":
            json.loads(text[text.index(".") + 1 :] if is_open or text.startswith("<") else text)
