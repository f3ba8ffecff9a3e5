"""The connections of a server: how many there may be, and which of them have to go.

In: connections as they come, ask and are answered. Out: some are dropped: where there are too many,
the one that has waited longest without a request, of the address that has the most; and those that
do not get on. Nobody can keep others out by opening connections.
"""

import asyncio
import sys
from collections import Counter
from http import HTTPStatus
from typing import Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordgen_rs.server.clients import network_of
from coordgen_rs.server.network.guard import MOST_HEAD_BYTES
from coordgen_rs.server.refusal import HeadTooLongError, RefusalError, refused
from coordgen_rs.server.requests.body import MOST_BODY_BYTES

SLOWEST_HEAD_S = 20.0
"""Seconds that a client has from the first byte of a request's head to its end."""

LONGEST_SILENCE_S = 90.0
"""How long a connection may be open without a byte of a request, or may still send a body that was
refused."""

SLOWEST_READER_S = 60.0
"""Seconds for which a client may leave unread what it is sent."""

_READ_AT_ONCE, _CHUNKS_AT_ONCE = 64 << 10, 2 << 10
"""Bytes of a body that are read before others have their turn. The smallest chunks take 6 bytes and
5 us each."""

_BETWEEN_UNASKED_S = 0.02
"""A pause behind each piece of a body that was refused: at full speed, reading what nobody wants
takes the time of all others."""


class Open(Protocol):
    """A connection, as seen when one has to be dropped.

    Attributes:
        address: Where it comes from.
    """

    address: str

    def may_go(self) -> bool:
        """Whether no request is being done on it, or the client does not read what it gets."""

    def waits_since(self) -> tuple[float, float]:
        """Since when it has made no progress, and for how long it may; seconds."""

    def drop(self) -> None:
        """Close it at once."""


class Connections:
    """All connections of a server.

    Args:
        most: How many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Open, None] = {}  # who waits longest first

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Open) -> None:
        """Take a new connection; where there are too many, another is dropped, or itself."""
        self._open[connection] = None
        if len(self._open) > self._most:
            self._drop_one(connection)

    def discard(self, connection: Open) -> None:
        """Forget a connection that is closed."""
        self._open.pop(connection, None)

    def answered(self, connection: Open) -> None:
        """Note that a connection has got an answer: now it waits behind all others."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def drop_slow(self, now_s: float) -> None:
        """Drop those that have not got on for too long."""
        for connection in list(self._open):
            since_s, for_s = connection.waits_since()
            if now_s - since_s > for_s:
                self._drop(connection)

    def _drop_one(self, new: Open) -> None:
        free = [one for one in self._open if one is not new and one.may_go()]
        num = Counter(one.address for one in free)
        # The first of them, who has waited longest. Whether it ever asked does not matter: else
        # those who have asked once would keep out all who are about to.
        self._drop(max(free, key=lambda one: num[one.address], default=new))

    def _drop(self, connection: Open) -> None:
        self.discard(connection)
        connection.drop()


class _Written(asyncio.Transport):
    """What an answer is written to; closing it hears out the rest of a body before.

    Where bytes wait that nobody reads, a system resets what is closed, and the client may never see
    its answer.

    Args:
        connection: Its connection.
    """

    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self._connection, self._transport = connection, connection.transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        self._transport.write(data)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._transport.is_closing()

    def close(self) -> None:
        """See asyncio."""
        if self._connection.is_sent_more:
            self._connection.read_at_once(_READ_AT_ONCE)  # nobody looks for chunks any more
            self._transport.write_eof()
        else:
            self._transport.close()


class Connection(H11Protocol):
    """A uvicorn connection that a server's `Connections` keeps track of.

    Args:
        all_of_them: All connections of the server.
        **more: uvicorn's own.
    """

    def __init__(self, all_of_them: Connections, **more: Any) -> None:
        super().__init__(**more)
        self._all = all_of_them
        self.address = ""
        self._since_s = self.loop.time()
        self._has_begun = False  # a head, and not ended
        self._num_unasked = 0  # bytes since the last head
        self._num_unread = 0  # bytes that were written

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        super().connection_made(transport)
        self.read_at_once(_READ_AT_ONCE)
        self.address = network_of(self.client[0]) if self.client else ""
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._all.discard(self)
        super().connection_lost(exc)

    @property
    def is_sent_more(self) -> bool:
        """Whether the body of a request has not ended."""
        return self.conn.their_state is h11.SEND_BODY

    def handle_events(self) -> None:
        """See uvicorn."""
        super().handle_events()
        if self.cycle is not None:
            self.cycle.transport = _Written(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self.conn.their_state is h11.ERROR or self.conn.our_state is h11.CLOSED:
            self._hear_out(len(data))  # answered: so that it may read
            return
        is_idle, before = self._is_idle(), self.cycle
        if is_idle and not self._has_begun:
            self._since_s = self.loop.time()
        super().data_received(data)
        if self.cycle is not before:
            self._num_unasked = 0
            is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
            self.read_at_once(_CHUNKS_AT_ONCE if is_chunked else _READ_AT_ONCE)
        elif is_idle:  # of a head, or of a body that was refused
            self._hear_out(len(data))
        is_in_head = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        self._has_begun = self._is_idle() and is_in_head

    def send_400_response(self, msg: str) -> None:
        """See uvicorn, which calls it where a request is no HTTP; the form is the dialect's."""
        status = getattr(sys.exc_info()[1], "error_status_hint", HTTPStatus.BAD_REQUEST)
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            line = bytes(self.conn.trailing_data[0][:256]).split(b" ")
            path = line[1].decode("latin-1") if len(line) > 1 else ""
            told: RefusalError = HeadTooLongError(MOST_HEAD_BYTES)
        else:
            path, close = "", {"Connection": "close"}
            told = RefusalError("the request is not valid HTTP", status=status, headers=close)
        response = refused(told, {"path": path, "headers": []})
        reason = HTTPStatus(status).phrase.encode()
        head = h11.Response(status_code=status, headers=response.raw_headers, reason=reason)
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if self._is_idle():
            self.transport.write_eof()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """See uvicorn."""
        self._since_s = self.loop.time()
        self._all.answered(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._since_s = self.loop.time()
        super().pause_writing()

    def may_go(self) -> bool:
        """Same as in `Open`."""
        return self._is_idle() or self.flow.write_paused

    def waits_since(self) -> tuple[float, float]:
        """Same as in `Open`."""
        before, self._num_unread = self._num_unread, self.transport.get_write_buffer_size()
        if self._num_unread < before and not self._has_begun:  # it reads
            self._since_s = self.loop.time()
        if self.flow.write_paused or (self._num_unread and self._is_idle()):
            return self._since_s, SLOWEST_READER_S
        if self._is_idle():
            return self._since_s, SLOWEST_HEAD_S if self._has_begun else LONGEST_SILENCE_S
        return self._since_s, float("inf")

    def drop(self) -> None:
        """Same as in `Open`."""
        if self.transport is not None:
            self.transport.abort()

    def _hear_out(self, num_bytes: int) -> None:
        """Count what nobody wants; of a body, the rest is read with pauses."""
        self._num_unasked += num_bytes
        if self._num_unasked > MOST_BODY_BYTES:
            self.drop()
        elif self.is_sent_more:
            self.flow.pause_reading()
            self.loop.call_later(_BETWEEN_UNASKED_S, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def read_at_once(self, num_bytes: int) -> None:
        """Take at most so many bytes before others have their turn."""
        self.transport.max_size = num_bytes  # type: ignore[attr-defined]  # of asyncio's

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete
