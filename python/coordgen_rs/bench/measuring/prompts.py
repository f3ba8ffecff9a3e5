"""Prompts of the bench: one JSON object a line, with the task that a prompt belongs to."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError
from coordgen_rs.files.json_text import JsonTextError, read_json_lines
from coordgen_rs.files.typed_json import FieldError, parse
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.text.tokenizer import Tokenizer

_MOST_LINE_BYTES = 64 << 20


class PromptsError(CoordgenError):
    """A file of prompts cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class _Line:
    """What a line must hold; it may hold more."""

    task: str
    prompt: str


class Prompt(NamedTuple):
    """A prompt, and the task that it belongs to."""

    task: str
    prompt: str


def read_prompts(path: Path, *, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file, lines with `task` and `prompt`; the first `limit` of each task.

    Raises:
        PromptsError: No line, or one that is no such object.
        OSError: The file cannot be read.
    """
    prompts: list[Prompt] = []
    counts: dict[str, int] = {}
    try:
        for number, fields in read_json_lines(path, most_line_bytes=_MOST_LINE_BYTES):
            line = parse(_Line, fields, f"{path}, line {number}")
            prompt = Prompt(line.task, line.prompt)
            counts[prompt.task] = counts.get(prompt.task, 0) + 1
            if limit is None or counts[prompt.task] <= limit:
                prompts.append(prompt)
    except (JsonTextError, FieldError) as error:
        raise PromptsError(str(error)) from error
    if not prompts:
        raise PromptsError(f"{path} holds no prompt")
    return prompts


def encode_prompts(
    session: OrtSession, prompts: Iterable[Prompt], max_new_tokens: int
) -> dict[str, list[NDArray[np.uint32]]]:
    """Prompts by task, as token ids; those that leave no room for an answer are left out."""
    tokenizer = Tokenizer.of(session.bundle)
    encoded: dict[str, list[NDArray[np.uint32]]] = {}
    for task, text in prompts:
        token_ids = tokenizer.encode(text)
        if 0 < len(token_ids) <= session.capacity - max_new_tokens:
            encoded.setdefault(task, []).append(token_ids)
    return encoded
