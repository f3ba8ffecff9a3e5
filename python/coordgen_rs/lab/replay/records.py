"""Recorded requests: prompts with what a model, or a person, answered; one JSON object a line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.json_text import JsonTextError, read_json_lines
from coordgen_rs.errors import CoordgenError

_PASSAGE = "<PASSAGE>"
_MOST_LINE_BYTES = 64 << 20


class RecordsError(CoordgenError):
    """A file of records cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class Record:
    """One request and its answer.

    Attributes:
        id: Name within the file.
        task: What kind of request it is: summary, rag, ui, ..
        prompt: All that the model was asked, its context included.
        answer: What it said.
        turns: Earlier turns of the conversation, (user, assistant).
    """

    id: str
    task: str
    prompt: str
    answer: str
    turns: list[tuple[str, str]] = field(default_factory=list)


def read_records(
    path: Path, *, output_of: str | None = None, limit: int | None = None, half: int | None = None
) -> list[Record]:
    """The records of a file, in its order.

    Args:
        path: Lines with `id, task, prompt, output` and, where given, `context` (put where the
            prompt says `<PASSAGE>`, else before it unless one holds the other), `outputs` (model
            name to text) and `history` (earlier turns with `user` and `assistant`).
        output_of: A model named in `outputs`, or as `model`; None takes `output`.
        limit: Read only so many lines.
        half: Of these, only every other one: 0 from the first on, 1 from the second; None for all.

    Raises:
        RecordsError: No line, or one that is no such object, or a model without an answer in it.
        OSError: The file cannot be read.
    """
    records: list[Record] = []
    try:
        for number, fields in read_json_lines(path, most_line_bytes=_MOST_LINE_BYTES):
            if limit is not None and len(records) == limit:
                break
            try:
                records.append(_record(fields, output_of))
            except (ValueError, TypeError, KeyError) as error:
                raise RecordsError(f"{path}, line {number}: {_cause(error)}") from error
    except JsonTextError as error:
        raise RecordsError(str(error)) from error
    if not records:
        raise RecordsError(f"{path}: no records")
    chosen = records if half is None else records[half::2]
    if not chosen:
        raise RecordsError(f"{path}: no record in half {half} of {len(records)}")
    return chosen


def _record(fields: Any, output_of: str | None) -> Record:
    if not isinstance(fields, dict):
        raise TypeError("not an object")
    prompt = _text(fields, "prompt")
    context = _text(fields, "context") if fields.get("context") else ""
    if _PASSAGE in prompt:
        prompt = prompt.replace(_PASSAGE, context)
    elif prompt in context:
        prompt = context
    elif context not in prompt:
        prompt = f"{context}\n{prompt}"
    turns = fields.get("history")
    return Record(
        id=_text(fields, "id"),
        task=_text(fields, "task"),
        prompt=prompt,
        answer=_answer(fields, output_of),
        turns=[(_text(turn, "user"), _text(turn, "assistant")) for turn in turns]
        if isinstance(turns, list)
        else [],
    )


def _answer(fields: dict[str, Any], output_of: str | None) -> str:
    if output_of is None or output_of == fields.get("model"):
        return _text(fields, "output")
    outputs = fields.get("outputs") or {}
    if output_of not in outputs:
        known = ", ".join([str(fields.get("model")), *outputs])
        raise ValueError(f"no output of {output_of!r}; there are: {known}")
    return _text(outputs, output_of)


def _text(fields: dict[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise TypeError(f"{name!r} is not text")
    return str(fields[name])


def _cause(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
