"""The connections of a server: the socket they come from, how many may be, and which have to go.

In: connections as they come, ask and are answered. Out: some are dropped: where there are too many,
the one that has waited longest without a request, of the address that has the most; and those that
do not get on. Nobody can keep others out by opening connections. HTTP itself is uvicorn's: what
stands here is between it and the sockets, as a proxy would be.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Iterable
from math import inf
from time import monotonic
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordgen_rs.errors import OptionError
from coordgen_rs.server.clients import network_of
from coordgen_rs.server.dialects.fields import MOST_BODY_BYTES

MOST_CONNECTIONS = 512
"""Most connections however many descriptors there are: one request is answered at a time."""

ACCEPTED_AT_ONCE = 4
"""Connections that asyncio accepts before those that are open have their turn."""

_OTHER_DESCRIPTORS = 192
"""Descriptors that the model's files and the connections of one look may need."""

SLOWEST_HEAD_S = 20.0
"""Seconds that a client has from the first byte of a request's head to its end."""

LONGEST_SILENCE_S = 90.0
"""How long a connection may be open without a byte of a request, or may still send a body that was
refused."""

SLOWEST_READER_S = 60.0
"""Seconds for which a client may leave unread what it is sent."""

LONGEST_READ_HEAD = 64 << 10
"""The longest head of a request that uvicorn gets, so that it is refused in the form of its
dialect."""

_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)
"""What is told to who sends a longer one; it is heard out, else the client may never see this."""

_BODY_AT_ONCE, _LITTLE_AT_ONCE = 64 << 10, 2 << 10
"""Bytes of a body, and of heads and chunks, that are read before others have their turn. The
smallest chunks take 6 bytes and 5 us each, and a connection keeps what it reads into."""

_BETWEEN_UNASKED_S = 0.02
"""A pause behind each piece of a body that was refused: at full speed, reading what nobody wants
takes the time of all others."""

_KEY = "coordgen.connection"
"""Where in the state of a request's scope its connection stands."""


class Connections:
    """All connections of a server.

    Args:
        most: How many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most, self._open = most, dict["Connection", None]()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, new: "Connection") -> None:
        """Take a new connection; where there are too many, another is dropped, or itself."""
        self._open[new] = None
        if len(self._open) > self._most:
            free = [one for one in self._open if one is not new and one.may_go]
            num = Counter(one.address for one in free)
            # Who has waited longest. Whether it ever asked does not matter: else those who have
            # asked once would keep out all who are about to.
            self._drop(max(free, key=lambda one: (num[one.address], -one.since_s), default=new))

    def discard(self, connection: "Connection") -> None:
        """Forget a connection that is closed."""
        self._open.pop(connection, None)

    def drop_slow(self) -> None:
        """Drop those that have not got on for too long."""
        for one in [*self._open]:
            if one.is_slow():
                self._drop(one)

    def close_answered(self) -> None:
        """Close those on which no request is being done, also where one is still heard out."""
        for one in [*self._open]:
            one.close_answered()

    def drop_all(self) -> None:
        """Drop clients that neither send the rest of a request nor read their answer."""
        for one in [*self._open]:
            self._drop(one)

    def _drop(self, connection: "Connection") -> None:
        self.discard(connection)
        connection.drop()


class Connection(asyncio.BufferedProtocol):
    """Stands between a socket and uvicorn's protocol, and knows how long it has not got on.

    Args:
        all_of_them: All connections of the server.
        app_state: uvicorn's; requests find their connection in it.
        **more: uvicorn's own.

    Attributes:
        address: Where it comes from.
        since_s: Since when it has made no progress.
    """

    def __init__(self, all_of_them: Connections, *, app_state: dict[str, Any], **more: Any) -> None:
        self._http = H11Protocol(app_state={**app_state, _KEY: self}, **more)
        self._all, self.address, self._buffer = all_of_them, "", bytearray()
        self._at_once, self._num_unread, self._is_idle = _LITTLE_AT_ONCE, 0, True
        self._headers: list[tuple[bytes, bytes]] | None = None  # of the last request
        self._num_bytes = 0  # since it was idle
        self._is_full = False  # the client does not read: nothing more is written
        self._may_take(LONGEST_SILENCE_S)

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        self._transport = transport
        self.address = network_of((transport.get_extra_info("peername") or [""])[0])
        self._http.connection_made(transport)
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._all.discard(self)
        self._http.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:
        """See asyncio; this is how much is read at once."""
        if len(self._buffer) != self._at_once:
            self._buffer = bytearray(self._at_once)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._is_idle:
            self._is_idle, self._num_bytes = False, 0
            self._may_take(SLOWEST_HEAD_S)
        before, self._num_bytes = self._num_bytes, self._num_bytes + nbytes
        if self._for_s != SLOWEST_HEAD_S or self._num_bytes <= LONGEST_READ_HEAD:
            self._pass_on(bytes(self._buffer[:nbytes]))
        elif before <= LONGEST_READ_HEAD:
            self._transport.write(_TOO_LONG)
            self._transport.write_eof()
        elif self._num_bytes > MOST_BODY_BYTES:
            self.drop()

    def _pass_on(self, content: bytes) -> None:
        if self._http.conn.their_state is h11.MUST_CLOSE:
            return  # behind a last request, such as an empty line, while that is answered
        try:
            self._http.data_received(content)
        except h11.LocalProtocolError:  # no HTTP, told in the middle of an answer
            self.drop()
        self._look_for_request()

    def eof_received(self) -> None:
        """See asyncio."""
        self._http.eof_received()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._is_full, self.since_s = True, monotonic()
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._is_full = False
        self._http.resume_writing()

    def _look_for_request(self) -> None:
        """Note that the head of a request has ended, before any more is read.

        It may have come with the end of the one before, and begins when that is answered.
        """
        if self._http.headers is not self._headers:
            self._headers, self._is_idle = self._http.headers, False
            is_chunked = b"transfer-encoding" in dict(self._headers)
            self._at_once = _LITTLE_AT_ONCE if is_chunked else _BODY_AT_ONCE
            self._may_take(inf)

    def is_answered(self, *, has_more: bool) -> None:
        """Note that a request has its answer; the next one may have begun.

        Args:
            has_more: Whether its body has not ended.
        """
        self._is_idle = not has_more
        if not has_more:
            self._at_once, self._buffer = _LITTLE_AT_ONCE, bytearray()
        self._may_take(LONGEST_SILENCE_S)
        self._look_for_request()

    def _may_take(self, seconds: float) -> None:
        """Begin something that may take so long."""
        self.since_s, self._for_s = monotonic(), seconds

    @property
    def may_go(self) -> bool:
        """Whether no request is being done on it, or the client does not read what it gets."""
        return self._for_s < inf or self._is_full

    def is_slow(self) -> bool:
        """Whether it has not got on for too long; asked from time to time."""
        before, self._num_unread = self._num_unread, self._transport.get_write_buffer_size()
        if self._num_unread < before and self._for_s != SLOWEST_HEAD_S:  # it reads
            self.since_s = monotonic()
        is_to_read = self._is_full or (self._num_unread and self._for_s < inf)
        return monotonic() - self.since_s > (SLOWEST_READER_S if is_to_read else self._for_s)

    @property
    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return bool(self._transport.is_closing())

    def close_answered(self) -> None:
        """Close it where no request is being done on it; what was written is sent before."""
        if self._for_s < inf:
            self._transport.close()

    def drop(self) -> None:
        """Close it at once."""
        self._transport.abort()


def tracked(app: ASGIApp) -> ASGIApp:
    """An application whose requests tell their connection how far they have come.

    A body that was refused is heard out before the end of its answer: where bytes wait that nobody
    reads, a system resets what is closed, and the client may never see its answer.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"][_KEY]
        has_more, is_held, num_unasked = _has_body(scope["headers"]), False, 0

        async def received() -> Message:
            nonlocal has_more
            message = await receive()
            has_more = message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            nonlocal is_held
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            is_held = is_last and has_more
            await send({**message, "more_body": True} if is_held else message)
            if is_last:
                connection.is_answered(has_more=is_held)

        await app(scope, received, sent)
        while is_held and has_more:
            num_unasked += len((await received()).get("body", b""))
            if num_unasked > MOST_BODY_BYTES:
                connection.drop()
            await asyncio.sleep(_BETWEEN_UNASKED_S if has_more else 0)
        if is_held and connection.is_closing:
            await receive()  # until it is closed: uvicorn then misses no end of the answer
        elif is_held:
            await send({"type": "http.response.body"})
            connection.is_answered(has_more=False)

    return answer


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body comes behind the head of a request."""
    found = dict(headers)
    return b"transfer-encoding" in found or found.get(b"content-length", b"0") != b"0"


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Its connections send what is written at once. With Nagle's algorithm, the end of an answer waits
    for the client's acknowledgement of its beginning, about 40 ms.

    Raises:
        OptionError: The address is in use, or not one of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        listening = socket.create_server(address[:2], family=family, backlog=MOST_CONNECTIONS)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            said = "another program listens there: give --port, or 0 for any that is free"
        raise OptionError(f"cannot listen on {host} port {port}: {said}") from error
    return listening


def url_of(listening: socket.socket) -> str:
    """The URL at which it listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def most_connections() -> int:
    """How many connections there may be, with the descriptors that the process may have."""
    try:
        import resource
    except ImportError:  # not on Windows
        return MOST_CONNECTIONS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(min(MOST_CONNECTIONS, most - _OTHER_DESCRIPTORS), 8)
