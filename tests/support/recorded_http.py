"""Requests to a server and its answers, byte for byte, as they are recorded.

In: a case: method, path, headers, body. Out: a text with the status line, the headers and the body,
in which `RULES` have replaced what differs from run to run, and nothing else. A recording is a file
of such texts, in `RECORDED`; its requests stand in `REQUESTS`, a line each (`requests_of`).
"""

import http.client
import json
import re
import socket
from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from checkpoints import ROOT
from coordgen_rs.errors.extras import package_version

RECORDED, REQUESTS = (ROOT / "tests" / "exact" / "recorded" / name for name in ("http", "requests"))
_AS_JSON = {"ensure_ascii": False, "separators": (",", ":")}
_WIDTH = 100
_LEAF = re.compile(r"^=== (.*)\n", re.MULTILINE)
_NEAR, _LOGPROB = 1e-3, re.compile(r'"~(-\d+\.\d{4})"')


class Case(NamedTuple):
    """A request.

    Attributes:
        name: What it is called in the recording.
        method: Of HTTP.
        path: With its query.
        body: An object for JSON; text or bytes as they are; None for none.
        headers: Further headers; `Host` in place of the usual one.
    """

    name: str
    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = {}

    def written(self) -> bytes:
        """The request as it is sent."""
        body = self.body
        if isinstance(body, dict | list):
            body = json.dumps(body)
        content = body.encode() if isinstance(body, str) else body or b""
        headers = {"Host": "localhost"} | self.headers
        if self.body is not None and "Transfer-Encoding" not in headers:
            headers.setdefault("Content-Length", str(len(content)))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + content


class Raw(NamedTuple):
    """A request that is no HTTP, or none that a client would send; attributes are those of `Case`.

    Attributes:
        sent: All that is sent.
    """

    name: str
    sent: bytes
    method: str = "GET"

    def written(self) -> bytes:
        """The request as it is sent."""
        return self.sent


def asked(name: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Case:
    """A request with a body."""
    return Case(name, "POST", path, body, {"Content-Type": "application/json"} | (headers or {}))


def requests_of(group: str) -> list[Case | Raw]:
    """The requests of a group, in the order in which they are asked.

    A line of its file is a JSON object: a name, and what `Case` has, or `sent` in bytes of Latin-1;
    `text` is a body that is no JSON, or not as we write it. `streamed` adds the same request once
    more, as a stream, with these fields. Behind a line with a `base`, each line is a `change` of
    that body, after which it is named; null leaves a field out.

    A text that begins with `$` is a part of `parts.json`; `{"repeat": .., "times": ..}` is a long
    text or list.
    """
    cases: list[Case | Raw] = []
    path, base, number = "", dict[str, Any](), 0
    parts = json.loads((REQUESTS / "parts.json").read_text())
    for line in (REQUESTS / f"{group}.jsonl").read_text().splitlines():
        given = _whole(json.loads(line), parts)
        name, body, headers = given.get("name"), given.get("body"), given.get("headers", {})
        if "base" in given:
            path, base, number = given["path"], given["base"], 0
        elif "change" in given:
            number += 1
            shown = f"{path} {json.dumps(given['change'])}"
            name = shown if len(shown) <= 200 else f"{shown[:180]}.. ({number})"
            changed = base | given["change"]
            cases.append(asked(name, path, {n: v for n, v in changed.items() if v is not None}))
        elif "sent" in given:
            cases.append(Raw(name, _text(given["sent"])))
        elif "method" in given:
            cases.append(Case(name, given["method"], given["path"], None, headers))
        elif "streamed" not in given:
            body = _text(given["text"]) if "text" in given else body
            cases.append(asked(name, given["path"], body, headers))
        else:
            is_ollama = given["path"].startswith("/api")
            whole = body | ({"stream": False} if is_ollama else {})
            cases.append(asked(name, given["path"], whole))
            streamed = body | {"stream": True} | given["streamed"]
            cases.append(asked(f"{name}, streamed", given["path"], streamed))
    return cases


def _whole(value: Any, parts: Mapping[str, Any]) -> Any:
    """JSON with its parts, and with what is repeated."""
    if isinstance(value, str) and value.startswith("$"):
        return parts[value[1:]]
    if isinstance(value, list):
        return [_whole(one, parts) for one in value]
    if isinstance(value, dict):
        whole = {name: _whole(one, parts) for name, one in value.items()}
        return whole["repeat"] * whole["times"] if whole.keys() == {"repeat", "times"} else whole
    return value


def _text(written: str | list[str]) -> bytes:
    return "".join(written).encode("latin-1")


def _times(*names: str) -> str:
    return rf'(?<=")({"|".join(names)})":\d+(\.\d+)?(e-\d+)?(?=[,}}])'


_VERSION = re.escape(package_version())
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z"
RULES: dict[str, tuple[str, str | Callable[[re.Match[str]], str]]] = {
    "date of the answer": (
        r"(?m)^date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$",
        "date: <date>",
    ),
    "seconds since 1970": (
        r'(?<=")(created|created_at|completed_at)":\d{10}\b',
        r'\1":"<seconds>"',
    ),
    "times of Ollama's": (rf'(?<=")(created_at|modified_at)":"{_ISO}"', r'\1":"<time>"'),
    "times of documents": (r'(?<=")added_at":\d{10}\.\d+(?=[,}])', r'added_at":"<seconds>"'),
    "milliseconds and rates of llama.cpp's": (
        _times(
            *("prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
            *("predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
        ),
        r'\1":"<ms>"',
    ),
    "milliseconds and rates of vLLM's": (
        _times(
            *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms"),
            *("mean_itl_ms", "tokens_per_second"),
        ),
        r'\1":"<ms>"',
    ),
    # All of them, in their order, take one mark; where one is missing, each has its own.
    "prompt's times together": (
        r'"prompt_ms":"<ms>","prompt_per_token_ms":"<ms>","prompt_per_second":"<ms>"',
        r'"prompt_..":"<3 times>"',
    ),
    "answer's times together": (
        r'"predicted_ms":"<ms>","predicted_per_token_ms":"<ms>","predicted_per_second":"<ms>"',
        r'"predicted_..":"<3 times>"',
    ),
    "vLLM's times together": (
        r'"time_to_first_token_ms":"<ms>","generation_time_ms":"<ms>","queue_time_ms":"<ms>",'
        r'"mean_itl_ms":"<ms>","tokens_per_second":"<ms>"',
        r'"latencies":"<5 times>"',
    ),
    "nanoseconds of Ollama's": (
        r'(?<=")(total_duration|load_duration|prompt_eval_duration|eval_duration)":\d+(?=[,}])',
        r'\1":"<ns>"',
    ),
    "seconds at /metrics": (
        r"(?m)^(coordgen_\w+_seconds_total(\{[^}]*\})?) \d+(\.\d+)?(e-\d+)?$",
        r"\1 <seconds>",
    ),
    "what a process has grown by": (r'(?<=")memory_bytes":\d+(?=[,}])', r'memory_bytes":"<bytes>"'),
    "microseconds of steps": (r'(?<=")(base|per_token)":\d+(\.\d+)?(?=[,}])', r'\1":"<us>"'),
    "sizes of files, which tools write": (r'(?<=")size":\d+(?=[,}])', r'size":"<bytes>"'),
    "when a client may come again": (r"(?<=try again in )\d{1,2}(?= s)", "<seconds>"),
    "a seed that was drawn": (r'(?<=")seed":\d{9,16}(?=[,}])', r'seed":"<drawn>"'),
    "the version of this package": (
        rf'(?<="system_fingerprint":"coordgen-){_VERSION}(?=")|(?<="version":"){_VERSION}(?=")',
        "<version>",
    ),
    # Of floats, whose last bits are a processor's: near ones are the same (`difference`).
    "logprobs": (
        r"(?<=[:,\[])-\d+(\.\d+)?(e-\d+)?(?=[,}\]])",
        lambda found: f'"~{float(found[0]):.4f}"',
    ),
}
"""What is replaced, by what it is."""

_ID = re.compile(r'(?<=")(chatcmpl-|cmpl-|resp_|msg_|rs_|fc_|call_|toolu_)[0-9a-f]{24}(?=")')
"""Ids that are drawn; those of one answer are numbered, so that it shows which are the same."""


def normalised(text: str) -> str:
    """A text without what differs from run to run."""
    for pattern, mark in RULES.values():
        text = re.sub(pattern, mark, text)
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"{found[1]}<{numbers.setdefault(found[0], len(numbers) + 1)}>"

    return _ID.sub(numbered, text)


_HEAD = re.compile(
    r'(?m)^data: \{"object":"[^"]*","id":"[^"]*","created":"<seconds>","model":"[^"]*",'
    r'"system_fingerprint":"[^"]*",'
)
"""What the chunks of a stream begin with; where it is the same again, it is not shown again."""


_USUAL = "date: <date>\ncontent-length: <length>\ncontent-type: application/json"
"""The headers of most answers, in their order: shown as `usual headers`."""


def _folded(text: str) -> str:
    first = _HEAD.search(text)
    if first is None:
        return text
    return text[: first.end()] + text[first.end() :].replace(first[0], "data: {..,")


def answer_of(url: str, case: Case | Raw) -> str:
    """What a server answers, as it is recorded."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=600) as client:
        client.sendall(case.written())
        return read_answer(client, case.method)


def read_answer(client: socket.socket, method: str = "POST") -> str:
    """What comes on a connection, as it is recorded."""
    with http.client.HTTPResponse(client, method=method) as response:
        response.begin()
        return rest_of(response, method)


def rest_of(response: http.client.HTTPResponse, method: str = "POST", read: bytes = b"") -> str:
    """An answer as it is recorded, of which something may have been read."""
    body = read + response.read()
    length, headers = str(len(body)), []
    for name, value in response.getheaders():
        is_length = name == "content-length" and value == length and method != "HEAD"
        if name == "allow":  # of a set: its order is another in each process
            value = ", ".join(sorted(value.split(", ")))
        is_retry = name == "retry-after" and response.status == 429 and value.isdecimal()
        headers.append(f"{name}: {'<length>' if is_length else '<seconds>' if is_retry else value}")
    head = "\n".join([f"HTTP/1.1 {response.status} {response.reason}", *headers])
    told = normalised(head).replace(f"\n{_USUAL}", "\nusual headers")
    return f"{told}\n\n{body_text(body)}"


def body_text(body: bytes) -> str:
    """A body as it is recorded: JSON in lines that can be read, a page as its hash."""
    if body.startswith(b"<!doctype html>"):
        return f"sha256 {sha256(body).hexdigest()}\n"
    text = body.decode()
    told = normalised(text)
    try:
        is_as_written = json.dumps(json.loads(text), **_AS_JSON) == text
    except ValueError:
        is_as_written = False
    return (_in_lines(json.loads(told)) if is_as_written else _folded(told)) + "\n"


def _in_lines(value: Any, indent: str = "") -> str:
    """JSON whose parts stand in a line where they fit."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent + line) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(n, ensure_ascii=False)}: {_in_lines(v, inner)}" for n, v in value.items()
        ]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    parts = [_in_lines(one, inner) for one in value]
    return "[\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}]"


def read_recording(path: Path) -> dict[str, str]:
    """The texts of a recording, by the names of their cases."""
    _, *parts = _LEAF.split(path.read_bytes().decode())
    return dict(zip(parts[::2], parts[1::2], strict=True))


def is_refused_alike(client: Any, case: Case, recorded: str) -> bool:
    """Whether a client of another model gets the recorded status, and words where it is an error.

    Args:
        client: Starlette's.
        case: What is asked.
        recorded: The text of the recording.
    """
    head, _, body = recorded.partition("\n\n")
    content = case.written().partition(b"\r\n\r\n")[2]
    found = client.request(case.method, case.path, content=content, headers=case.headers)
    is_same = found.status_code == int(head.split()[1])
    return is_same and (found.status_code < 400 or body_text(found.content) == body)


def write_recording(path: Path, texts: Mapping[str, str]) -> None:
    """Write a recording."""
    path.write_bytes("".join(f"=== {name}\n{text}" for name, text in texts.items()).encode())
    assert read_recording(path) == texts, f"{path.name} cannot hold a line that begins with ==="


def difference(recorded: str, found: str) -> str | None:
    """The first line that differs, in words; None where all are the same."""
    before, now = _LOGPROB.split(recorded), _LOGPROB.split(found)
    if before[::2] == now[::2]:
        pairs = zip(map(float, before[1::2]), map(float, now[1::2]), strict=True)
        if all(abs(one - other) <= _NEAR for one, other in pairs):
            return None
    lines = zip_longest(recorded.split("\n"), found.split("\n"))
    number, one, other = next((n, *pair) for n, pair in enumerate(lines, 1) if len({*pair}) == 2)
    if one is None or other is None:
        return f"line {number}: recorded {one!r:.200}, found {other!r:.200}"
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    shown = slice(max(at - 60, 0), at + 100)
    where = f"line {number}, from character {at + 1} on"
    return f"{where}: recorded {one[shown]!r}, found {other[shown]!r}"
