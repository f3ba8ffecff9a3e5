"""The file of a dialogue: one JSON document, the same that the server's page exports and imports.

In: messages in a row. Out: a file; and the way back. The page keeps a tree, as questions are edited
and answered again: what is read here is the branch that it shows.

    {"format": 1, "id", "title", "created", "changed", "model", "system", "current",
     "messages": {ID: {"id", "parent", "role", "content", "thinking", "created", "files",
                       "state", "error", "figures", "spans"}}}
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.json_text import file_errors_as, read_object
from coordgen_rs.errors import OptionError
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
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(f"{path} is no dialogue of format {FORMAT}: {error}") from error


def _messages(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The branch that is shown.

    Raises:
        ValueError: The document is something else; KeyError and TypeError, too.
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"its format is {document.get('format')!r:.40}")
    listed, at = document["messages"], document["current"]
    branch: list[dict[str, str]] = []
    while at is not None:
        if len(branch) >= len(listed):
            raise ValueError("its messages follow each other in a circle")
        message = listed[at]
        branch.append({"role": _role(message["role"]), "content": _content(message)})
        at = message["parent"]
    system = _text("system", document.get("system") or "")
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *reversed(branch)]


def _content(message: Mapping[str, Any]) -> str:
    """What a message says, with the files that came with it."""
    files = [(_text("a name", it["name"]), _text("a file", it["text"])) for it in message["files"]]
    return with_files(_text("content", message["content"]), files)


def with_files(said: str, files: Sequence[tuple[str, str]]) -> str:
    """A message and the texts that go with it, each in a fence, under its name."""
    parts = [said] if said else []
    for name, text in files:
        fence = "`" * max(3, 1 + _longest_run(text, "`"))
        parts.append(f"{name}:\n{fence}\n{text.rstrip()}\n{fence}")
    return "\n\n".join(parts)


def _longest_run(text: str, character: str) -> int:
    longest = run = 0
    for it in text:
        run = run + 1 if it == character else 0
        longest = max(longest, run)
    return longest


def _role(role: object) -> str:
    if role not in ("user", "assistant"):
        raise ValueError(f"a message's role is {role!r:.40}")
    return str(role)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r:.40}, not a text")
    return value
