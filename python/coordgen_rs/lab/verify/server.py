"""A server that nobody vouches for, asked over HTTP: what it is, what it is asked, and its answers.

In: an address, questions (those that come with this package, or of a file of JSON lines, each
checked), and how to ask. Out: replies, each within a time and a size; or an `AnswerError` that says
what the server did instead. It needs the standard library alone, and follows no redirects and no
proxies.
"""

import http.client
import io
import json
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.json_text import file_errors_as, read_json_lines
from coordgen_rs.lab.verify.replies import AnswerError, Reply, object_of, streamed, whole

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


MOST_BYTES = 32_000_000
"""Most bytes of an answer, its head included."""

_PIECE_BYTES = 65536


class RefusedError(AnswerError):
    """A server answered with a status that says that the request is at fault."""


@dataclass(frozen=True)
class Address:
    """Where a server's API is.

    Attributes:
        scheme: "http" or "https".
        host: Name or IP address.
        port: The port; None for the scheme's.
        base: The path before `/chat/completions`.
        key: Sent as a bearer token; None sends none.
        timeout_s: Most seconds for one answer, from the connection to the last byte.
    """

    scheme: str
    host: str
    port: int | None
    base: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0

    @property
    def shown(self) -> str:
        """The address without user names and keys."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port is None else f':{self.port}'}{self.base}"


def parse_address(name: str, url: str, key: str | None, timeout_s: float) -> Address:
    """Read a URL; `/v1` is the path where none is given.

    Raises:
        OptionError: It is no URL of HTTP.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError(f"{name} {url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host or not url.isascii():
        raise OptionError(f"{name} {url!r} is no URL such as http://127.0.0.1:8080/v1")
    if parts.username or parts.password or parts.query or not url.isprintable() or " " in url:
        raise OptionError(f"{name} must have no user name, query or spaces")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise OptionError("an API key must be printable ASCII")
    return Address(parts.scheme, host, port, parts.path.rstrip("/") or "/v1", key, timeout_s)


@dataclass(frozen=True)
class Response:
    """An answer whose head is there.

    Attributes:
        status: Of HTTP.
        server: The header `Server`; may be empty.
        location: The header `Location` of a redirect; None elsewhere.
        pieces: The bytes of the body as they come. Raises AnswerError.
    """

    status: int
    server: str
    location: str | None
    pieces: Iterator[bytes]


@contextmanager
def request(address: Address, path: str, body: bytes | None) -> Iterator[Response]:
    """Send a request, and give what comes.

    Args:
        address: The server.
        path: The whole path.
        body: JSON, to be posted; None gets.

    Yields:
        The answer.

    Raises:
        AnswerError: The server cannot be reached, is too slow, or does not speak HTTP.
    """
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    end = time.monotonic() + address.timeout_s
    connection = kind(address.host, address.port, timeout=address.timeout_s)
    headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "coordgen"}
    if address.key is not None:
        headers["Authorization"] = f"Bearer {address.key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.connect()
        with closing(connection.sock) as sock:
            connection.sock = _Bounded(sock, end)
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            server = response.headers.get("Server", "")
            is_redirect = 300 <= response.status < 400
            location = response.headers.get("Location") if is_redirect else None
            yield Response(response.status, server, location, _pieces(response))
    except TimeoutError as error:
        raise AnswerError(f"no end of the answer within {address.timeout_s:g} s") from error
    except http.client.HTTPException as error:
        what = str(error) or type(error).__name__
        raise AnswerError(f"not an answer of HTTP: {what}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AnswerError(f"cannot be asked: {reason}") from error
    finally:
        connection.close()


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body, a piece at a time.

    Raises:
        AnswerError: It ends before its length, or is cut within a chunk.
    """
    try:
        while piece := response.read1(_PIECE_BYTES):
            yield piece
    except http.client.IncompleteRead as error:
        raise AnswerError("the body breaks off within a chunk, or a chunk has no length") from error
    if response.length:
        raise AnswerError(f"the body ends {response.length} bytes before its Content-Length")


class _Bounded:
    """A socket for `http.client`, whose answer ends in time and has a size."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self._sock, self._end))

    def close(self) -> None:
        """Nothing: `request` closes it, and `http.client` would before the body is read."""


class _Reading(io.RawIOBase):
    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end, self._left = sock, end, MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        num = self._sock.recv_into(buffer)
        self._left -= num
        if self._left < 0:
            raise AnswerError(f"the answer is longer than {MOST_BYTES:,} bytes")
        return num


Form = Literal["whole", "streamed"]

WITHOUT_DRAFTS: Mapping[str, dict[str, Any]] = {
    "coordgen": {"coordgen": {"drafts": False}},
    "llama.cpp": {"speculative.n_max": 0},
}
"""The fields of a request that switch drafts off, by the kind of a server. vLLM has none. Builds of
llama.cpp from 2026 on ignore theirs; then its answers go on counting drafts, which is told."""

_ALONE: Mapping[str, dict[str, Any]] = {"llama.cpp": {"cache_prompt": False}}
"""What keeps answers from depending on earlier ones, by the kind of a server. llama.cpp's bits are
others where a prompt, or most of it, is in its cache: it is read in other batches then."""

_OWNERS = {"coordgen": "coordgen", "llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
_SHOWN = 400
"""Most characters shown of what a server says about a failure."""

_NOT_THE_REQUEST = (401, 403, 408, 429)
_PAUSE_S = 0.2
"""Between two looks at a server that is loading its model."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: `seed` None takes the most likely one."""

    seed: int | None = None
    temperature: float = 0.8

    @property
    def name(self) -> str:
        """As reports show it."""
        return "greedy" if self.seed is None else f"seed {self.seed}"

    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        if self.seed is None:
            return {"temperature": 0}
        return {"temperature": self.temperature, "top_p": 0.95, "seed": self.seed}


@dataclass(frozen=True)
class Server:
    """A server, and the fields that each request to it has besides.

    Attributes:
        address: Where it is.
        model: The model's name; None sends none.
        kind: "coordgen", "llama.cpp", "vLLM", ..; "unknown" if it does not say.
        version: As it tells it; None if it does not.
        header: What it calls itself in each answer's head; "" if nothing.
        fields: Such as those of `WITHOUT_DRAFTS`, besides what makes requests independent.
    """

    address: Address
    model: str | None
    kind: str
    version: str | None
    header: str
    fields: Mapping[str, Any]

    def ask(self, question: Question, sampling: Sampling, form: Form) -> Reply:
        """Ask once.

        Raises:
            AnswerError: There is no answer.
        """
        wanted: dict[str, Any] = {}
        if form == "streamed":
            wanted = {"stream": True, "stream_options": {"include_usage": True}}
        begun = time.monotonic()
        with self._request(question, sampling, wanted) as response:
            _check(response)
            return (streamed if form == "streamed" else whole)(response.pieces, begun)

    def _request(
        self, question: Question, sampling: Sampling, wanted: dict[str, Any]
    ) -> AbstractContextManager[Response]:
        body = question.body | sampling.fields() | dict(self.fields) | wanted
        if self.model is not None:
            body["model"] = self.model
        path = f"{self.address.base}/{question.path}"
        return request(self.address, path, json.dumps(body).encode())

    def gap_at(self, question: Question, at: int) -> float | None:
        """How much likelier the most likely token is than the next one, in nats, at a character.

        Args:
            question: Asked greedily.
            at: A character of the content, from 0.

        Returns:
            None where the server tells no probabilities.
        """
        is_chat = question.path.startswith("chat")
        wanted = {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
        with suppress(
            AnswerError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError
        ):
            with self._request(question, Sampling(), wanted) as response:
                told = _object(response)
            end = 0
            for token, likely in _likelihoods(told["choices"][0]["logprobs"]):
                end += len(token)
                if end > at:
                    first, second, *_ = sorted(likely, reverse=True)
                    return float(first - second)
        return None


def _likelihoods(told: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """Each token, and the logarithms of the likeliest ones; raises anything if it is malformed."""
    if "content" in told:
        for item in told["content"]:
            yield item["token"], [other["logprob"] for other in item["top_logprobs"]]
    else:
        for token, likely in zip(told["tokens"], told["top_logprobs"], strict=False):
            yield token, list(likely.values())


def find_server(address: Address, model: str | None) -> Server:
    """Ask a server what it is; one that is loading its model is waited for, within its timeout.

    Args:
        address: Where it is.
        model: The model to be asked; None for the first that it lists.

    Raises:
        AnswerError: It cannot be reached, or does not answer.
    """
    kind, end = "unknown", time.monotonic() + address.timeout_s
    try:
        while isinstance(found := _listed(address), str):
            if time.monotonic() > end:
                raise AnswerError(f"after {address.timeout_s:g} s it still says: {found}")
            time.sleep(_PAUSE_S)
        listed, header = found
    except AnswerError as error:
        raise AnswerError(f"{address.shown}: {error}") from error
    for one in listed[:1]:
        kind = _OWNERS.get(str(one.get("owned_by")), "unknown")
        if model is None and isinstance(one.get("id"), str):
            model = one["id"]
    version = _version(address, kind, listed)
    return Server(address, model, kind, version, header, _ALONE.get(kind, {}))


def _listed(address: Address) -> tuple[list[dict[str, Any]], str] | str:
    """The models that a server lists and its name for itself; or why it is not ready yet.

    Raises:
        AnswerError: It cannot be reached, or does not answer.
    """
    with request(address, f"{address.base}/models", None) as response:
        content = b"".join(response.pieces)
    if response.status == 503:
        return _status(response, content)
    if response.status in _NOT_THE_REQUEST or response.status >= 500:
        raise AnswerError(_status(response, content))
    if response.status != 200:
        return [], response.server
    data = object_of(content, "the list of models").get("data")
    listed = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    if any(one.get("state") == "loading" for one in listed[:1]):
        return "the model is being loaded"
    return listed, response.server


def _version(address: Address, kind: str, listed: list[dict[str, Any]]) -> str | None:
    places = {"llama.cpp": ("/props", "build_info"), "vLLM": ("/version", "version")}
    found: object = listed[0].get("version") if listed else None
    if kind in places:
        path, name = places[kind]
        with (
            suppress(AnswerError),
            request(address, address.base.removesuffix("/v1") + path, None) as response,
        ):
            found = _object(response).get(name)
    return found if isinstance(found, str) else None


def _object(response: Response) -> dict[str, Any]:
    """The object of an answer.

    Raises:
        AnswerError: There is none.
    """
    _check(response)
    return object_of(b"".join(response.pieces), "the answer")


def _check(response: Response) -> None:
    """Refuse a status that says that there is no answer.

    Raises:
        AnswerError: It is not 200; a `RefusedError` where the request is at fault.
    """
    status = response.status
    if status != 200:
        is_refusal = 400 <= status < 500 and status not in _NOT_THE_REQUEST
        error = RefusedError if is_refusal else AnswerError
        raise error(_status(response, b"".join(response.pieces)))


def _status(response: Response, content: bytes) -> str:
    if response.location is not None:
        to = response.location[:_SHOWN]
        return f"status {response.status}: it redirects to {to}, which is not followed"
    said: object = content.decode(errors="replace")
    with suppress(AnswerError):
        error = object_of(content, "it").get("error")
        said = error.get("message") if isinstance(error, dict) else error
    return f"status {response.status}: {str(said)[:_SHOWN]}"
