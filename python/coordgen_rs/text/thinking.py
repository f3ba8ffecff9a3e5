"""How models mark their thinking, and where an answer stands in it when it begins.

In: a chat template's source, a tokenizer, and tokens of a prompt or an answer. Out: the marks of
the model, if it thinks, whether the prompt has opened or closed its thinking already, and how much
of an answer is thinking. What a model says is split elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from coordgen_rs.text.tokenizer import Tokenizer

_TAIL = 32
"""Tokens at the end of a prompt that may open or close thinking."""


@dataclass(frozen=True)
class ThinkingMarks:
    """The marks of one family of models.

    Attributes:
        begin: Stands before thinking.
        end: Stands behind it.
        tokens: Those that are special tokens of some tokenizers: the text is to show them.
        header: Stands before an answer; "" where nothing does.
        between: Stands between `end` and `header`.
        is_repeated: Whether a model may go on thinking within its answer.
    """

    begin: str
    end: str
    tokens: tuple[str, ...]
    header: str = ""
    between: str = ""
    is_repeated: bool = False


@dataclass(frozen=True)
class Thinking:
    """The thinking of one answer.

    Attributes:
        marks: The marks that it is between.
        is_open: Whether the prompt ends within it: the answer begins with thinking.
    """

    marks: ThinkingMarks
    is_open: bool = False


def _tags(begin: str, end: str) -> ThinkingMarks:
    return ThinkingMarks(begin, end, (begin, end))


CHANNELS = ThinkingMarks(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
    header="<|channel|>final<|message|>",
    between="<|start|>assistant",
)
"""gpt-oss, whose messages have channels (harmony)."""

_FAMILIES = {
    "<|channel|>analysis": CHANNELS,
    "<|channel>thought": ThinkingMarks(  # Gemma 4
        "<|channel>thought\n", "<channel|>", ("<|channel>", "<channel|>"), is_repeated=True
    ),
    "</think>": _tags("<think>", "</think>"),  # Qwen3, SmolLM3, DeepSeek R1, ..
    "[/THINK]": _tags("[THINK]", "[/THINK]"),  # Magistral
    "</seed:think>": _tags("<seed:think>", "</seed:think>"),  # Seed-OSS
    "<|END_THINKING|>": _tags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    "Here is my thought process:": ThinkingMarks(  # Granite 3.2
        "Here is my thought process:", "Here is my response:", ()
    ),
}
"""The marks by what chat templates say that know of them."""


def marks_of(template: str) -> ThinkingMarks | None:
    """The marks of the model that a chat template was made for; None if it says nothing of any."""
    return next((marks for said, marks in _FAMILIES.items() if said in template), None)


def thinking_of(
    marks: ThinkingMarks | None, tokenizer: Tokenizer, prompt_ids: Sequence[int]
) -> Thinking | None:
    """How an answer to a prompt may think; None if it does not.

    Args:
        marks: Those of the model.
        tokenizer: The model's.
        prompt_ids: `(tokens,)` ids of the prompt.
    """
    if marks is None:
        return None
    text_of = tokenizer.stream(shown=marks.tokens)
    tail = "".join(map(text_of, prompt_ids[-_TAIL:])).rstrip()
    if tail.endswith(marks.end.rstrip()) and not marks.header:
        return None
    return Thinking(marks, tail.endswith(marks.begin.rstrip()))


def num_thinking(thinking: Thinking | None, tokenizer: Tokenizer, token_ids: Sequence[int]) -> int:
    """How many of an answer's tokens are thinking, its marks included.

    Marks are looked for in the text: tokens may join their ends with what stands beside them.

    Args:
        thinking: How it may think; None if it does not.
        tokenizer: The model's.
        token_ids: `(tokens,)` ids of the answer.
    """
    if thinking is None:
        return 0
    text_of, said, places = tokenizer.stream(shown=thinking.marks.tokens), "", [0]
    for token in token_ids:
        said += text_of(token)
        places.append(len(said))
    spans = _spans(thinking, said)
    return sum(
        any(first < end and start < max(last, first + 1) for start, end in spans)
        for first, last in pairwise(places)
    )


def _spans(thinking: Thinking, said: str) -> list[tuple[int, int]]:
    """Where an answer is thinking, marks included: characters, half open."""
    marks, found = thinking.marks, list[tuple[int, int]]()
    # A model that thinks once does so first: a mark behind its answer's beginning is a mention.
    may_repeat = marks.is_repeated or bool(marks.header)
    start = 0 if thinking.is_open else said.find(marks.begin)
    behind = 0 if thinking.is_open else start + len(marks.begin)
    if not may_repeat and said[: max(start, 0)].strip():
        return []
    while start >= 0:
        place = said.find(marks.end, behind)
        end = place + len(marks.end) if place >= 0 else len(said) + 1  # a last token has no text
        found.append((start, end))
        start = said.find(marks.begin, end) if may_repeat else -1
        behind = start + len(marks.begin)
    return found
