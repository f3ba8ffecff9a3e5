"""Prompts of the bench: one JSON object a line, with the task that a prompt belongs to.

In: a file, whose lines hold text or the messages of a chat; or one of Spec-Bench, LaMP or
AndroidArena as published. Out: prompts, and their token ids. Messages become text by the model's
own chat template.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError
from coordgen_rs.errors.json_text import (
    FieldError,
    JsonTextError,
    open_regular,
    parse,
    read_bytes,
    read_json,
    read_json_lines,
)
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.text.chat_template import bundled_templates
from coordgen_rs.text.tokenizer import Tokenizer

_MOST_LINE_BYTES = 64 << 20
_MOST_BYTES = 1 << 30
_MOST_TEXTS = 4
"""Of a profile, as LaMP's prompts for tweets have."""


class PromptsError(CoordgenError):
    """A file of prompts cannot be used; the message names the file and the line."""


Messages = list[dict[str, str]]
"""What a chat template takes: `role` and `content` of each message."""


@dataclass(frozen=True)
class Message:
    """A message of a chat, in a line of a file."""

    role: str
    content: str


@dataclass(frozen=True)
class _Line:
    """What a line must hold, `prompt` or `messages`; it may hold more."""

    task: str
    prompt: str | None = None
    messages: list[Message] | None = None


@dataclass(frozen=True)
class _Question:
    """A line of Spec-Bench's `question.jsonl`; MT-bench's is of the same form."""

    category: str
    turns: list[str]


@dataclass(frozen=True)
class _LampText:
    """An entry of a profile; those of tweets have a text alone."""

    text: str | None = None


@dataclass(frozen=True)
class _LampQuestion:
    """An entry of LaMP's `*_questions.json`."""

    input: str
    profile: list[_LampText]


class Prompt(NamedTuple):
    """A prompt, as text or as the messages of a chat, and the task that it belongs to."""

    task: str
    prompt: str | Messages


def read_prompts(path: Path, *, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file; the first `limit` of each task.

    A line has `task`, and either `prompt`, a text, or `messages`, a list of `role` and `content`.
    Of Spec-Bench's `question.jsonl` it is the first of the `turns`, and the task its `category`. A
    file that is a JSON array is LaMP's questions: `input` behind the first texts of its `profile`,
    in LaMP's words for tweets, without its retrieval. One that ends in `.yaml` is tasks of
    AndroidArena: instructions alone, as they come without screens.

    Raises:
        PromptsError: No line, or one that is no such object.
        OSError: The file cannot be read.
    """
    prompts: list[Prompt] = []
    counts: dict[str, int] = {}
    try:
        for prompt in _reader(path)(path):
            counts[prompt.task] = counts.get(prompt.task, 0) + 1
            if limit is None or counts[prompt.task] <= limit:
                prompts.append(prompt)
    except (JsonTextError, FieldError) as error:
        raise PromptsError(str(error)) from error
    if not prompts:
        raise PromptsError(f"{path} holds no prompt")
    return prompts


def _lines(path: Path) -> Iterator[Prompt]:
    for number, fields in read_json_lines(path, most_line_bytes=_MOST_LINE_BYTES):
        where = f"{path}, line {number}"
        if isinstance(fields, dict) and "turns" in fields and "prompt" not in fields:
            question = parse(_Question, fields, where)
            if not question.turns:
                raise PromptsError(f"{where} has no turn")
            yield Prompt(question.category, [{"role": "user", "content": question.turns[0]}])
        else:
            yield _prompt(parse(_Line, fields, where), where)


def _lamp(path: Path) -> Iterator[Prompt]:
    entries: Any = read_json(path, most_bytes=_MOST_BYTES)
    for question in parse(list[_LampQuestion], entries, str(path)):
        texts = [entry.text for entry in question.profile if entry.text is not None]
        written = ", and ".join(f'"{text}" ' for text in texts[:_MOST_TEXTS])
        given = f"{written} are written by a person. Following the given patterns "
        yield Prompt("LaMP", given * bool(texts) + question.input)


def _android_arena(path: Path) -> Iterator[Prompt]:
    text = read_bytes(path, most_bytes=_MOST_BYTES).decode(errors="replace")
    kind = re.search(r"^type: *(.+?) *$", text, re.MULTILINE)
    for found in re.finditer(
        r"^ *- instruction: *(.+?) *$(?:\n +constrains: *(.+?) *$)?", text, re.MULTILINE
    ):
        task = "AndroidArena" if kind is None else kind[1]
        yield Prompt(task, "\n".join(part for part in found.groups() if part is not None))


def _reader(path: Path) -> Callable[[Path], Iterator[Prompt]]:
    if path.suffix == ".yaml":
        return _android_arena
    with open_regular(path) as stream:
        return _lamp if stream.read(1) == b"[" else _lines


def _prompt(line: _Line, where: str) -> Prompt:
    if line.prompt is not None and line.messages is None:
        return Prompt(line.task, line.prompt)
    if line.messages and line.prompt is None:
        return Prompt(line.task, [asdict(message) for message in line.messages])
    raise PromptsError(f"{where} needs either prompt or messages, which may not be empty")


def encode_prompts(
    session: OrtSession, prompts: Iterable[Prompt], max_new_tokens: int
) -> dict[str, list[NDArray[np.uint32]]]:
    """Prompts by task, as token ids; those that leave no room for an answer are left out.

    Args:
        session: Says which tokenizer and chat template, and how much room there is.
        prompts: Prompts of any tasks.
        max_new_tokens: Room that an answer needs.

    Raises:
        ChatTemplateError: A prompt is messages, and the bundle has no chat template, or one that
            cannot render them.
    """
    tokenizer = Tokenizer.of(session.bundle)
    encoded: dict[str, list[NDArray[np.uint32]]] = {}
    for task, prompt in prompts:
        if isinstance(prompt, str):
            token_ids = tokenizer.encode(prompt)
        else:
            template = bundled_templates(session.bundle, tokenizer.token).template()
            token_ids = tokenizer.encode(template.render(prompt), special_tokens=False)
        if 0 < len(token_ids) <= session.capacity - max_new_tokens:
            encoded.setdefault(task, []).append(token_ids)
    return encoded
