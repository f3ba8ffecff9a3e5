"""What a server is asked: the questions that come with this package, or those of a file.

In: JSON lines. Out: questions as `Question`, each checked. How they are sent is `server.py`'s.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.json_text import file_errors_as, read_json_lines

OURS = Path(__file__).with_name("questions.jsonl")
"""Chats, edits, JSON, tools, long copies, several languages and unusual characters."""

_MOST_LINE_BYTES = 1 << 22
_FIELDS = {
    "name": str,
    "kind": str,
    "messages": list,
    "prompt": str,
    "tools": list,
    "tool_choice": str | dict,
    "response_format": dict,
    "max_tokens": int,
    "times": int,
}


@dataclass(frozen=True)
class Question:
    """What is asked in every way.

    Attributes:
        name: Its own name in the report.
        kind: What it stands for, such as "edit".
        path: "chat/completions", or "completions" for a text without a template.
        body: The fields that say what is asked, and `max_tokens`.
        times: How often it is asked where others are asked once.
    """

    name: str
    kind: str
    path: str
    body: dict[str, Any]
    times: int


def read_questions(
    path: Path = OURS,
    *,
    kinds: Collection[str] = (),
    limit: int | None = None,
    max_tokens: int | None = None,
) -> list[Question]:
    """Read questions, an object a line.

    Args:
        path: A file of JSON lines.
        kinds: Only these; all if empty.
        limit: Only the first of each kind.
        max_tokens: Most tokens of each answer; None for what the file says.

    Raises:
        OptionError: A line is no question, or none is left.
    """
    found: dict[str, list[Question]] = {}
    with file_errors_as(OptionError, path):
        for number, line in read_json_lines(path, most_line_bytes=_MOST_LINE_BYTES):
            question = _question(line, f"{path}, line {number}", number, max_tokens)
            found.setdefault(question.kind, []).append(question)
    for kind in kinds:
        arguments.one_of("--only", kind, sorted(found))
    chosen = [one for kind, of in found.items() if not kinds or kind in kinds for one in of[:limit]]
    if not chosen:
        raise OptionError(f"{path} holds no questions")
    return chosen


def _question(line: Any, where: str, number: int, max_tokens: int | None) -> Question:
    """One question.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(line, dict):
        raise OptionError(f"{where} is no object")
    for name, value in line.items():
        kind = _FIELDS.get(name)
        if kind is None:
            raise OptionError(f"{where}: unknown field {arguments.shown(name)}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise OptionError(f"{where}: {name} is {arguments.shown(value)}")
    if ("messages" in line) == ("prompt" in line):
        raise OptionError(f"{where} must have either messages or prompt")
    own = ("name", "kind", "times")
    body = {"max_tokens": 128} | {name: line[name] for name in line if name not in own}
    if max_tokens is not None:
        body["max_tokens"] = min(max_tokens, body["max_tokens"])
    return Question(
        line.get("name", f"line {number}"),
        line.get("kind", "own"),
        "chat/completions" if "messages" in line else "completions",
        body,
        arguments.count(f"{where}: times", line.get("times", 1)),
    )
