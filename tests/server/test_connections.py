"""Connections of a server: which are dropped, and when; and what a descriptor too few does."""

import asyncio
import errno
import json
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import uvicorn
from uvicorn.server import ServerState

from coordgen_rs.server.network import connections, listening
from coordgen_rs.server.network.connections import Connection, Connections

IDLE, ASKING = True, False
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


class FakeConnection:
    def __init__(self, is_idle=IDLE, address="a", since=0.0, most=float("inf")):
        self._is_idle, self.address, self._since = is_idle, address, (since, most)
        self.is_dropped = False

    def may_go(self):
        return self._is_idle

    def waits_since(self):
        return self._since

    def drop(self):
        self.is_dropped = True


def dropped(most, *given):
    """Which are dropped, by number, when they come one after the other."""
    all_of_them = Connections(most)
    for one in given:
        all_of_them.add(one)
        assert len(all_of_them) <= most
    return [number for number, one in enumerate(given) if one.is_dropped]


def test_of_too_many_connections_the_one_that_has_waited_longest_goes():
    assert dropped(3, *map(FakeConnection, (ASKING, IDLE, IDLE, IDLE, ASKING, IDLE))) == [1, 2, 3]


def test_connections_that_only_wait_never_keep_a_new_one_out():
    waiting = [FakeConnection(IDLE) for _ in range(100)]
    assert dropped(3, *waiting) == [*range(97)]


def test_who_opens_the_most_connections_loses_one():
    many = [FakeConnection(IDLE, "bad") for _ in range(6)]
    assert dropped(4, FakeConnection(IDLE, "good"), *many) == [1, 2, 3]


def test_where_all_are_asking_the_new_one_goes():
    assert dropped(2, *(FakeConnection(ASKING) for _ in range(4))) == [2, 3]


def test_who_got_an_answer_waits_behind_the_others():
    all_of_them, given = Connections(3), [FakeConnection(IDLE) for _ in range(4)]
    for one in given[:3]:
        all_of_them.add(one)
    all_of_them.answered(given[0])
    all_of_them.add(given[3])
    assert [one.is_dropped for one in given] == [False, True, False, False]
    all_of_them.discard(given[2])
    all_of_them.answered(given[1])  # it is gone
    assert len(all_of_them) == 2


def test_who_does_not_get_on_is_dropped_and_nobody_else():
    all_of_them = Connections(9)
    slow, good, asking = FakeConnection(most=20), FakeConnection(since=1, most=20), FakeConnection()
    for one in (slow, good, asking):
        all_of_them.add(one)
    all_of_them.drop_slow(20)
    assert not slow.is_dropped
    all_of_them.drop_slow(20.5)
    assert (slow.is_dropped, good.is_dropped, asking.is_dropped) == (True, False, False)
    assert len(all_of_them) == 2


class FakeTransport:
    """What a connection writes to; the clock is the test's."""

    def __init__(self):
        self.is_closed, self.is_paused, self.written, self.num_unread = False, False, b"", 0
        self.has_ended = False

    def get_extra_info(self, name):
        return ("10.0.0.1", 1) if name in ("peername", "sockname") else None

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def is_closing(self):
        return self.is_closed

    def get_write_buffer_size(self):
        return self.num_unread

    def write(self, content):
        self.written += content

    def write_eof(self):
        self.has_ended = True

    def close(self):
        self.is_closed = True

    abort = close


def with_connection(test, app):
    """Run an async test with a connection of uvicorn's whose time the test sets."""

    async def run():
        config = uvicorn.Config(app, lifespan="off", ws="none", log_level="error")
        config.load()
        loop, clock = asyncio.get_running_loop(), SimpleNamespace(now=0.0)
        timed = SimpleNamespace(
            time=lambda: clock.now, create_task=loop.create_task, call_later=loop.call_later
        )
        all_of_them, transport = Connections(9), FakeTransport()
        one = Connection(
            all_of_them, config=config, server_state=ServerState(), app_state={}, _loop=timed
        )
        one.connection_made(transport)
        await test(one, transport, clock, all_of_them)
        one.connection_lost(None)
        assert len(all_of_them) == 0

    asyncio.run(run())


async def answer(scope, receive, send):
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def answered(transport):
    before = transport.written
    while transport.written.count(b"ok") == before.count(b"ok"):
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_the_head_of_a_request_has_to_end_however_its_bytes_come():
    async def test(one, transport, clock, all_of_them):
        clock.now = connections.LONGEST_SILENCE_S
        all_of_them.drop_slow(clock.now)
        assert not transport.is_closed
        for _ in range(4):  # as long as bytes come, but not longer than that
            one.data_received(HEAD if not one._has_begun else b"X: y\r\n")
            all_of_them.drop_slow(clock.now)
            assert not transport.is_closed
            clock.now += connections.SLOWEST_HEAD_S / 3.5
        all_of_them.drop_slow(clock.now)
        assert transport.is_closed

    with_connection(test, answer)


@pytest.mark.parametrize(
    ("sent", "status", "form"),
    [
        (HEAD + b"X: " + b"x" * 17000, b"431", ["error"]),
        (HEAD.replace(b"/v1/completions", b"/api/chat") + b"x" * 17000, b"431", ["error"]),
        (b"POST /v1/messages HTTP/1.1\r\nX: " + b"x" * 17000, b"431", ["type", "error"]),
        (b"no HTTP\r\n\r\n", b"400", ["error"]),
        (HEAD + b"Content-Length: x\r\n\r\n", b"400", ["error"]),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", b"501", ["error"]),
    ],
)
def test_what_is_no_request_gets_an_answer_in_json_and_is_heard_out(sent, status, form):
    async def test(one, transport, clock, all_of_them):
        one.data_received(sent)
        head, _, body = transport.written.partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert (b"\r\nconnection: close" in head.lower(), transport.has_ended) == (True, True)
        assert list(json.loads(body)) == form
        assert not transport.is_closed
        sent_more = 0
        while not transport.is_closed:
            one.data_received(b"x" * (1 << 20))
            sent_more += 1 << 20
        assert sent_more <= connections.MOST_BODY_BYTES + (1 << 20)
        assert transport.written == head + b"\r\n\r\n" + body

    with_connection(test, answer)


def test_between_requests_a_connection_may_be_silent():
    async def test(one, transport, clock, all_of_them):
        for _ in range(3):
            one.data_received(HEAD)
            clock.now += connections.SLOWEST_HEAD_S - 1
            one.data_received(b"Content-Length: 2\r\n\r\n")
            assert not one.may_go()
            one.data_received(b"{}")
            await answered(transport)
            assert one.may_go()
            clock.now += connections.LONGEST_SILENCE_S - 1
            all_of_them.drop_slow(clock.now)
            assert not transport.is_closed
        clock.now += 2
        all_of_them.drop_slow(clock.now)
        assert transport.is_closed

    with_connection(test, answer)


def test_who_sends_on_what_was_refused_is_heard_out_but_not_for_ever():
    async def test(one, transport, clock, all_of_them):
        one.data_received(HEAD + b"Content-Length: 999999999999\r\n\r\n")
        await answered(transport)
        piece, sent = b"x" * (1 << 20), 0
        while not transport.is_closed:
            one.data_received(piece)
            sent += len(piece)
            clock.now += 1
            all_of_them.drop_slow(clock.now)
        assert connections.MOST_BODY_BYTES < sent <= connections.MOST_BODY_BYTES + len(piece)

    with_connection(test, answer)


def test_what_was_refused_is_read_with_pauses():
    async def test(one, transport, clock, all_of_them):
        one.data_received(HEAD + b"Content-Length: 9\r\n\r\n")
        await answered(transport)
        for _ in range(2):
            one.data_received(b"x")
            assert transport.is_paused
            while transport.is_paused:
                await asyncio.sleep(0.001)
        one.data_received(b"x" * 7)  # the end: the next request comes at once
        assert not transport.is_paused
        one.data_received(HEAD + b"Content-Length: 0\r\n\r\n")
        await answered(transport)

    with_connection(test, answer)


def test_little_is_read_at_once_and_of_chunks_less():
    async def test(one, transport, clock, all_of_them):
        assert transport.max_size == 65536
        one.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        assert transport.max_size == 2048
        one.data_received(b"2\r\n{}\r\n0\r\n\r\n")
        await answered(transport)
        one.data_received(HEAD + b"Content-Length: 2\r\n\r\n")
        assert transport.max_size == 65536
        one.data_received(b"{}")
        await answered(transport)

    with_connection(test, answer)


def test_chunks_that_were_refused_are_read_like_other_bytes():
    """Else a client that sends all before it reads waits for minutes to see why."""

    async def refusal(scope, receive, send):
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def test(one, transport, clock, all_of_them):
        one.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await answered(transport)
        assert transport.max_size == 65536
        one.data_received(b"2\r\n{}\r\n0\r\n\r\n")
        assert not transport.is_closed

    with_connection(test, refusal)


def test_who_does_not_read_is_cut_off():
    async def test(one, transport, clock, all_of_them):
        one.data_received(HEAD + b"Content-Length: 2\r\n\r\n{}")
        assert not one.may_go()
        one.pause_writing()
        assert one.may_go()
        clock.now = connections.SLOWEST_READER_S
        all_of_them.drop_slow(clock.now)
        assert not transport.is_closed
        all_of_them.drop_slow(clock.now + 1)
        assert transport.is_closed
        one.resume_writing()
        await answered(transport)

    with_connection(test, answer)


@pytest.mark.parametrize("is_whole", [True, False])
def test_who_reads_slowly_gets_all_of_it(is_whole):
    async def test(one, transport, clock, all_of_them):
        one.data_received(HEAD + b"Content-Length: 2\r\n\r\n{}")
        if is_whole:
            await answered(transport)
        transport.num_unread = 1 << 20
        one.pause_writing()
        while transport.num_unread:
            all_of_them.drop_slow(clock.now)
            assert not transport.is_closed
            clock.now += connections.SLOWEST_READER_S - 1
            transport.num_unread -= 1 << 18
        all_of_them.drop_slow(clock.now)
        assert not transport.is_closed
        one.resume_writing()
        if not is_whole:
            await answered(transport)

    with_connection(test, answer)


def connected(number):
    """A socket that listens, and as many that connect to it."""
    listens = listening.bound("127.0.0.1", 0)
    return listens, [socket.create_connection(listens.getsockname()) for _ in range(number)]


def test_what_is_written_leaves_at_once():
    async def test():
        listens, [client] = connected(1)
        accepted = asyncio.get_running_loop().create_future()

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport):
                accepted.set_result(transport)

        async with await asyncio.get_running_loop().create_server(Accepted, sock=listens):
            its_socket = (await accepted).get_extra_info("socket")
            assert its_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            (await accepted).close()
        client.close()

    asyncio.run(test())


def test_without_a_descriptor_the_connection_that_waits_is_closed_and_the_next_one_served(
    monkeypatch,
):
    listens, [refused, good] = connected(2)
    failures, accept = [OSError(errno.EMFILE, "Too many open files")], listens._accept

    def failing():
        if failures:
            raise failures.pop()
        return accept()

    monkeypatch.setattr(listening.ListeningSocket, "_accept", lambda self: failing(), raising=False)
    with pytest.raises(BlockingIOError):
        listens.accept()
    assert refused.recv(1) == b""
    served, _ = listens.accept()
    served.sendall(b"x")
    assert good.recv(1) == b"x"
    for one in (served, good, refused, listens):
        one.close()


def test_there_are_fewer_connections_than_descriptors(monkeypatch):
    resource = pytest.importorskip("resource")
    for soft, most in ((256, 64), (1024, 512), (resource.RLIM_INFINITY, 512), (100, 8)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert listening.most_connections() == most
