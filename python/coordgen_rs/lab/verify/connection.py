"""One request over HTTP to a server that nobody vouches for.

In: an address, a path, a body. Out: the bytes of the answer as they come, within a time and a size;
or an `AnswerError` that says what the server did instead. It needs the standard library alone, and
follows no redirects and no proxies.
"""

import http.client
import io
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from coordgen_rs.errors import CoordgenError, OptionError

MOST_BYTES = 32_000_000
"""Most bytes of an answer, its head included."""

_PIECE_BYTES = 65536


class AnswerError(CoordgenError):
    """A server gave no answer that can be read; `is_refusal` where it refused the request."""

    is_refusal = False


class RefusedError(AnswerError):
    """A server answered with a status that says that the request is at fault."""

    is_refusal = True


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
class Incoming:
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
def asked(address: Address, path: str, body: bytes | None) -> Iterator[Incoming]:
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
            yield Incoming(response.status, server, location, _pieces(response))
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
        """Nothing: `asked` closes it, and `http.client` would before the body is read."""


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
