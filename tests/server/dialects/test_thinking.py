"""Thinking: told apart from the answer, streamed or not, asked for, counted, and not held."""

from itertools import pairwise

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import example, given
from hypothesis import strategies as st

from coordgen_rs.generation.step import TokenLogprob
from coordgen_rs.server.dialects.reader import ContentTokens, ThinkingReader
from coordgen_rs.server.tools.calls import CallReader, Content, Thought
from coordgen_rs.text.thinking import CHANNELS, Thinking, marks_of
from fake_model import FakeSpelling

TAGS, GEMMA = marks_of("</think>"), marks_of("<|channel>thought")
MESSAGE = "<|start|>assistant<|channel|>"


def read(thinking, pieces):
    """Thinking and content of an answer that comes in pieces."""
    reader = ThinkingReader(thinking, CallReader())
    found = [one for piece in pieces for one in reader.read(piece)] + reader.end()
    assert all(one.text for one in found)
    return (
        "".join(one.text for one in found if isinstance(one, Thought)),
        "".join(one.text for one in found if isinstance(one, Content)),
    )


@pytest.mark.parametrize(
    ("thinking", "said", "told"),
    [
        (Thinking(TAGS), "<think>\nso <b>\n</think>\n\nYes.", ("so <b>", "Yes.")),
        (Thinking(TAGS), "\n<think>so</think>Yes.\n", ("so", "Yes.\n")),
        (Thinking(TAGS, is_open=True), "so\n\nand so\n</think>\n\nYes.", ("so\n\nand so", "Yes.")),
        (Thinking(TAGS, is_open=True), " cut off </thi", ("cut off </thi", "")),
        (Thinking(TAGS), "<think>\n\n</think>\n\nYes.", ("", "Yes.")),
        (Thinking(TAGS), "The tag <think> opens.</think>", ("", "The tag <think> opens.</think>")),
        (Thinking(TAGS), " <thin", ("", " <thin")),
        (None, "<think>so</think>Yes.", ("", "<think>so</think>Yes.")),
        (
            Thinking(GEMMA),
            "<|channel>thought\nso<channel|>Yes.<|channel>thought\nand<channel|> No.",
            ("soand", "Yes.No."),
        ),
        (
            Thinking(CHANNELS),
            f"<|channel|>analysis<|message|>so<|end|>{MESSAGE}final<|message|>Yes.<|return|>",
            ("so", "Yes."),
        ),
        (Thinking(CHANNELS), "<|channel|>final<|message|>Yes.", ("", "Yes.")),
        (Thinking(CHANNELS), "<|message|>Yes.", ("", "Yes.")),
        (Thinking(CHANNELS), '{"no": "header"}', ("", '{"no": "header"}')),
        (Thinking(CHANNELS), f"<|channel|>analysis<|message|>so<|end|>{MESSAGE}fi", ("so", "")),
        (Thinking(CHANNELS), f"Hi.{MESSAGE}analysis<|message|>so", ("so", "Hi.")),
        (
            Thinking(CHANNELS),
            f"Hi.\n{MESSAGE}{'final' * 80}",
            ("", f"Hi.\n{MESSAGE}{'final' * 80}"),
        ),
        (Thinking(CHANNELS), "<|start|> begins a turn.", ("", "<|start|> begins a turn.")),
        (
            Thinking(CHANNELS),
            f"<|channel|>analysis<|message|>a <|start|> b{MESSAGE}final<|message|><|start|> so.",
            ("a <|start|> b", "<|start|> so."),
        ),
        (Thinking(CHANNELS), "<|channel|>final<|message|>Hi<|start|>", ("", "Hi")),
    ],
)
def test_thinking_and_answer_are_told_apart(thinking, said, told):
    assert read(thinking, [said]) == told
    assert read(thinking, said) == told


PARTS = ["<think>", "</think>", "\n", " ", "a", "<", "think>", "</", "so ", "<|channel>thought\n"]
PARTS += ["<channel|>", "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"]
PARTS += [
    "<|start|>",
    "x" * 390,
    "<|channel|>final<|message|>",
    "<|channel|>",
    "<|message|>",
    "<|call|>",
]
PARTS += [" to=functions.f<|message|>", "<|channel|>commentary to=functions.f json<|message|>"]


@given(
    thinking=st.sampled_from(
        [Thinking(marks, is_open) for marks in (TAGS, GEMMA) for is_open in (False, True)]
        + [Thinking(CHANNELS)]
    ),
    said=st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_however_an_answer_is_cut_the_same_is_told(thinking, said, cuts):
    places = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    pieces = [said[i:j] for i, j in pairwise(places)]
    assert read(thinking, pieces) == read(thinking, [said])


@given(
    thinking=st.sampled_from(
        [Thinking(marks, is_open) for marks in (TAGS, GEMMA) for is_open in (False, True)]
        + [Thinking(CHANNELS)]
    ),
    said=st.lists(st.sampled_from([*PARTS, "é", "日\n"]), max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
@example(thinking=Thinking(CHANNELS), said="<|end|><<<think>", cuts=[])
def test_the_tokens_of_the_content_are_its_text(thinking, said, cuts):
    content = ContentTokens(ThinkingReader(thinking, CallReader()), FakeSpelling(), ())
    records = [TokenLogprob(ord(one), -1.0, ()) for one in said]
    places = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    told = [one for i, j in pairwise(places) for one in content.read(records[i:j])]
    told += content.end(is_cut=False)
    assert "".join(chr(one.token_id) for one in told) == read(thinking, [said])[1]
