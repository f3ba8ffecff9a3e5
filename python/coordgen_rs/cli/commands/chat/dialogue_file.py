"""The file of a dialogue: one JSON document, the same that the server's page exports and imports.

In: messages in a row. Out: a file; and the way back. The page keeps a tree, as questions are edited
and answered again: what is read here is the branch that it shows.

    {"format": 1, "id", "title", "created", "changed", "model", "system", "current",
     "messages": {ID: {"id", "parent", "role", "content", "thinking", "created", "files",
                       "state", "error", "figures", "spans"}}}
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from coordgen_rs.errors import OptionError
from coordgen_rs.errors.json_text import file_errors_as, parse, read_object
from coordgen_rs.store.files import write_file

FORMAT = 1
MOST_BYTES = 1 << 26
_TITLE_CHARS = 60


def save(path: Path, messages: Sequence[Mapping[str, str]], model: str) -> None:
    """Write a dialogue; a file that is no dialogue is never replaced.

    Raises:
        OptionError: There is something else.
        OSError: It cannot be written; what was there stays.
    """
    if path.exists():
        check_replaceable(path)
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
    turns = [it for it in messages if it["role"] != "system"]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    listed: list[dict[str, Any]] = [
        {
            "id": str(number),
            "parent": str(number - 1) if number else None,
            "role": it["role"],
            "content": it["content"],
            "thinking": "",
            "created": now,
            "files": [],
            "state": "done",
            "error": None,
            "figures": None,
            "spans": None,
        }
        for number, it in enumerate(turns)
    ]
    document = {
        "format": FORMAT,
        "id": str(uuid.uuid4()),
        "title": turns[0]["content"].strip()[:_TITLE_CHARS] if turns else "",
        "created": now,
        "changed": now,
        "model": model,
        "system": system,
        "messages": {it["id"]: it for it in listed},
        "current": listed[-1]["id"] if listed else None,
    }
    content = json.dumps(document, ensure_ascii=False, indent=1).encode()
    write_file(path, content, private=True)


def check_replaceable(path: Path) -> None:
    """Check that a file is a dialogue.

    Raises:
        OptionError: It is not.
    """
    try:
        load(path)
    except OptionError as error:
        raise OptionError(f"{error}; it stays: choose another name") from error


def load(path: Path) -> list[dict[str, str]]:
    """The messages of a dialogue, the system's first if there is one.

    Raises:
        OptionError: It cannot be read, or is no dialogue of a format that is known.
    """
    with file_errors_as(OptionError, path):
        document = read_object(path, most_bytes=MOST_BYTES)
    try:
        return _messages(document)
    except (KeyError, ValueError) as error:
        raise OptionError(f"{path} is no dialogue of format {FORMAT}: {error}") from error


@dataclass(frozen=True)
class _File:
    name: str
    text: str


@dataclass(frozen=True)
class _Message:
    parent: str | None
    role: Literal["user", "assistant"]
    content: str
    files: list[_File]


@dataclass(frozen=True)
class _Dialogue:
    """What is read of a document, besides its messages."""

    current: str | None
    system: str | None = None


def _messages(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The branch that is shown.

    Raises:
        ValueError: The document is something else; KeyError, too.
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"its format is {document.get('format')!r:.40}")
    found = parse(_Dialogue, document, "it")
    listed, branch = document["messages"], list[dict[str, str]]()
    if not isinstance(listed, dict):
        raise ValueError("its messages are no object")
    at = found.current
    while at is not None:
        if len(branch) >= len(listed):
            raise ValueError("its messages follow each other in a circle")
        message = parse(_Message, listed[at], f"messages.{at}")
        content = with_files(message.content, [(it.name, it.text) for it in message.files])
        branch.append({"role": message.role, "content": content})
        at = message.parent
    first = [{"role": "system", "content": found.system}] if found.system else []
    return [*first, *reversed(branch)]


def with_files(said: str, files: Sequence[tuple[str, str]]) -> str:
    """A message and the texts that go with it, each in a fence, under its name."""
    parts = [said] if said else []
    for name, text in files:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        parts.append(f"{name}:\n{fence}\n{text.rstrip()}\n{fence}")
    return "\n\n".join(parts)
