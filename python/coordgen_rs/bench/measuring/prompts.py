"""Prompts of the bench: one JSON object a line, with the task that a prompt belongs to."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.text.tokenizer import Tokenizer


class PromptsError(CoordgenError):
    """A file of prompts cannot be used; the message names the file and the line."""


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
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
                prompt = Prompt(fields["task"], fields["prompt"])
            except (ValueError, TypeError, KeyError) as error:
                message = f"{path}: line {number} has no task and prompt: {error!r}"
                raise PromptsError(message) from error
            counts[prompt.task] = counts.get(prompt.task, 0) + 1
            if limit is None or counts[prompt.task] <= limit:
                prompts.append(prompt)
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
