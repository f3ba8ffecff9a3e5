"""Connections of a server: which are dropped, and when; and what a descriptor too few does."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

import uvicorn
from uvicorn.server import ServerState

from coordgen_rs.server import connections
from coordgen_rs.server.connections import Connection, Connections, tracked

IDLE, ASKING = True, False
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


class FakeConnection:
    def __init__(self, may_go=IDLE, address="a", since_s=0.0, is_slow=False):
        self.may_go, self.address, self.since_s = may_go, address, since_s
        self._is_slow, self.is_dropped = is_slow, False

    def is_slow(self):
        return self._is_slow

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
    many = [FakeConnection(IDLE, "bad") for _ in range(6)]  # who has the most loses one
    assert dropped(4, FakeConnection(IDLE, "good"), *many) == [1, 2, 3]
    assert dropped(2, *(FakeConnection(ASKING) for _ in range(4))) == [2, 3]  # the new one


def test_connections_that_only_wait_never_keep_a_new_one_out():
    waiting = [FakeConnection(IDLE) for _ in range(100)]
    assert dropped(3, *waiting) == [*range(97)]


def test_who_got_an_answer_waits_behind_the_others():
    all_of_them, given = Connections(3), [FakeConnection(since_s=number) for number in range(4)]
    for one in given[:3]:
        all_of_them.add(one)
    given[0].since_s = 2.5
    all_of_them.add(given[3])
    assert [one.is_dropped for one in given] == [False, True, False, False]
    all_of_them.discard(given[2])
    all_of_them.discard(given[1])  # it is gone
    assert len(all_of_them) == 2


def test_who_does_not_get_on_is_dropped_and_nobody_else_until_all_are():
    all_of_them = Connections(9)
    slow, good = FakeConnection(is_slow=True), FakeConnection()
    for one in (slow, good):
        all_of_them.add(one)
    all_of_them.drop_slow()
    assert (slow.is_dropped, good.is_dropped, len(all_of_them)) == (True, False, 1)
    all_of_them.drop_all()
    assert (good.is_dropped, len(all_of_them)) == (True, 0)


class FakeTransport:
    """What a connection writes to."""

    def __init__(self):
        self.is_closed, self.is_paused, self.written, self.num_unread = False, False, b"", 0

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

    def close(self):
        self.is_closed = True

    abort = close


def sent(one, content):
    """Send to a connection, in pieces of the size that it reads at once; how many they were."""
    num = 0
    while content:
        buffer, num = one.get_buffer(-1), num + 1
        piece, content = content[: len(buffer)], content[len(buffer) :]
        buffer[: len(piece)] = piece
        one.buffer_updated(len(piece))
    return num


def with_connection(test, app):
    """Run an async test with a connection between uvicorn and a transport; it sets the clock."""

    async def run():
        config = uvicorn.Config(tracked(app), lifespan="off", ws="none", log_level="error")
        config.load()
        all_of_them, transport = Connections(9), FakeTransport()
        one = Connection(all_of_them, config=config, server_state=ServerState(), app_state={})
        one.connection_made(transport)
        await test(one, transport, clock, all_of_them)
        one.connection_lost(None)
        assert len(all_of_them) == 0

    clock = SimpleNamespace(now=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "monotonic", lambda: clock.now)
        asyncio.run(run())


def over(app):
    """Make an async test one that runs with a connection to an application."""

    def made(test):
        return lambda: with_connection(test, app)

    return made


async def answer(scope, receive, send):
    """Read a body that is announced, and answer."""
    if scope["path"] == "/v1/completions":
        while (await receive()).get("more_body"):
            pass
    await refuse(scope, receive, send)


async def refuse(scope, receive, send):
    """Answer, whatever the body holds."""
    headers = [(b"content-length", b"2")]
    if scope["path"] == "/close":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def until(is_so):
    while not is_so():
        await asyncio.sleep(0.001)


async def answered(transport, num=1):
    """Return once so many answers have been written."""
    await until(lambda: transport.written.count(b"ok") == num)
    await asyncio.sleep(0)


@over(answer)
async def test_the_head_of_a_request_has_to_end_however_its_bytes_come(
    one, transport, clock, all_of_them
):
    clock.now = connections.LONGEST_SILENCE_S
    all_of_them.drop_slow()
    assert not transport.is_closed
    for number in range(4):  # as long as bytes come, but not longer than that
        sent(one, b"X: y\r\n" if number else HEAD)
        all_of_them.drop_slow()
        assert not transport.is_closed
        clock.now += connections.SLOWEST_HEAD_S / 3.5
    all_of_them.drop_slow()
    assert transport.is_closed


@over(answer)
async def test_a_connection_that_stays_silent_is_dropped(one, transport, clock, all_of_them):
    clock.now = connections.LONGEST_SILENCE_S + 1
    all_of_them.drop_slow()
    assert transport.is_closed


@over(answer)
async def test_between_requests_a_connection_may_be_silent(one, transport, clock, all_of_them):
    for number in range(3):
        sent(one, HEAD)
        clock.now += connections.SLOWEST_HEAD_S - 1
        sent(one, b"Content-Length: 2\r\n\r\n")
        await asyncio.sleep(0)
        assert not one.may_go
        clock.now += 3600  # as long as it is asking
        all_of_them.drop_slow()
        sent(one, b"{}")
        await answered(transport, number + 1)
        assert one.may_go
        clock.now += connections.LONGEST_SILENCE_S - 1
        all_of_them.drop_slow()
        assert not transport.is_closed
    clock.now += 2
    all_of_them.drop_slow()
    assert transport.is_closed


@over(answer)
async def test_a_request_whose_head_came_with_the_one_before_is_asking_until_it_is_answered(
    one, transport, clock, all_of_them
):
    sent(one, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD + b"Content-Length: 100000\r\n\r\n")
    await answered(transport)
    assert not one.may_go
    for _ in range(10):  # slower than a head may come, and longer than one may be
        assert not one.may_go
        sent(one, b"x" * 10_000)
        await asyncio.sleep(0)
        clock.now += connections.SLOWEST_HEAD_S
        all_of_them.drop_slow()
        assert not transport.is_closed
    await answered(transport, 2)
    assert one.may_go
    assert b"431" not in transport.written


@over(answer)
async def test_a_body_that_is_read_with_its_head_is_not_taken_for_one(
    one, transport, clock, all_of_them
):
    """Some systems read much more at once than is asked for, and no task runs meanwhile."""

    sent(one, HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
    await answered(transport)
    assert b"431" not in transport.written


@pytest.mark.parametrize("path", [b"/", b"/close"])
def test_who_sends_on_what_was_refused_is_heard_out_but_not_for_ever(path):
    async def test(one, transport, clock, all_of_them):
        sent(one, b"POST " + path + b" HTTP/1.1\r\nContent-Length: 999999999\r\nHost: x\r\n\r\n")
        await answered(transport)
        assert one.may_go
        num_sent = 0
        while not transport.is_closed:
            if not transport.is_paused:
                num_sent += 1 << 16
                sent(one, b"x" * (1 << 16))
            await asyncio.sleep(0)
        assert connections.MOST_BODY_BYTES < num_sent <= connections.MOST_BODY_BYTES + (3 << 16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "_BETWEEN_UNASKED_S", 0)
        with_connection(test, refuse)


@over(refuse)
async def test_who_does_not_send_the_rest_of_what_was_refused_is_dropped_in_time(
    one, transport, clock, all_of_them
):
    sent(one, HEAD + b"Content-Length: 9\r\n\r\n")
    await answered(transport)
    sent(one, b"x")
    clock.now += connections.LONGEST_SILENCE_S
    all_of_them.drop_slow()
    assert not transport.is_closed
    clock.now += 1
    all_of_them.drop_slow()
    assert transport.is_closed


@pytest.mark.parametrize("is_asking", [True, False])
def test_at_the_end_who_is_answered_is_closed_though_its_body_has_not_ended(is_asking):
    async def test(one, transport, clock, all_of_them):
        sent(
            one,
            (HEAD if is_asking else b"POST / HTTP/1.1\r\nHost: x\r\n")
            + b"Content-Length: 9\r\n\r\n",
        )
        if not is_asking:
            await answered(transport)
        all_of_them.close_answered()
        assert transport.is_closed is not is_asking

    with_connection(test, answer)


@over(refuse)
async def test_what_was_refused_is_read_with_pauses_and_the_next_request_is_answered(
    one, transport, clock, all_of_them
):
    sent(one, HEAD + b"Content-Length: 1000000\r\n\r\n")
    await answered(transport)
    num_pauses, left = 0, 1_000_000
    while left:
        if transport.is_paused:
            num_pauses += 1
            await until(lambda: not transport.is_paused)
        piece = b"x" * min(left, 60_000)
        sent(one, piece)
        left -= len(piece)
    assert num_pauses > 5
    sent(one, HEAD + b"Content-Length: 0\r\n\r\n")
    await answered(transport, 2)
    assert not transport.is_closed


@pytest.mark.parametrize("body", [b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 0\r\n\r\n"])
def test_a_body_that_has_come_is_no_reason_to_wait(body):
    async def test(one, transport, clock, all_of_them):
        for number in range(3):
            sent(one, HEAD + body)
            await answered(transport, number + 1)
        sent(one, b"GET /close HTTP/1.1\r\nHost: x\r\n\r\n")
        await answered(transport, 4)
        assert transport.is_closed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "_BETWEEN_UNASKED_S", 3600)
        with_connection(test, refuse)


@over(answer)
async def test_little_is_read_at_once_and_of_chunks_less(one, transport, clock, all_of_them):
    assert sent(one, HEAD + b"X: " + b"x" * 4096 + b"\r\n") == 3
    sent(one, b"Transfer-Encoding: chunked\r\n\r\n")
    await asyncio.sleep(0)
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    assert sent(one, chunk * 4) == 9
    sent(one, b"0\r\n\r\n")
    await answered(transport)
    sent(one, HEAD + b"Content-Length: 65536\r\n\r\n")
    await asyncio.sleep(0)
    assert sent(one, b"x" * 65536) == 1
    await answered(transport, 2)


@over(refuse)
async def test_chunks_that_were_refused_are_read_like_other_bytes(
    one, transport, clock, all_of_them
):
    """Else a client that sends all before it reads waits for minutes to see why."""

    sent(one, b"POST /close HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await answered(transport)
    assert not transport.is_closed
    num_chunks = 0
    while not transport.is_paused:  # until it is read further, 20 ms later
        sent(one, b"1000\r\n" + b"x" * 4096 + b"\r\n")
        num_chunks += 1
    assert num_chunks >= 16
    await until(lambda: not transport.is_paused)
    sent(one, b"0\r\n\r\n")
    await until(lambda: transport.is_closed)


@over(answer)
async def test_what_comes_behind_a_last_request_does_not_cut_off_its_answer(
    one, transport, clock, all_of_them
):
    sent(one, HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
    one.pause_writing()
    await asyncio.sleep(0.01)  # it is answered, but for what waits for the client
    sent(one, b"\r\n")
    is_closed = transport.is_closed
    one.resume_writing()
    assert not is_closed
    await answered(transport)
    assert transport.is_closed


def test_what_is_no_body_behind_a_refusal_ends_the_connection_and_raises_nothing(caplog):
    async def test(one, transport, clock, all_of_them):
        sent(one, HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await answered(transport)
        sent(one, b"zz\r\n")
        assert transport.is_closed
        for _ in range(5):
            await asyncio.sleep(0)

    with_connection(test, refuse)
    assert not caplog.records


@over(answer)
async def test_who_does_not_read_is_cut_off(one, transport, clock, all_of_them):
    sent(one, HEAD + b"Content-Length: 2\r\n\r\n")
    await asyncio.sleep(0)
    assert not one.may_go
    one.pause_writing()
    assert one.may_go
    clock.now = connections.SLOWEST_READER_S
    all_of_them.drop_slow()
    assert not transport.is_closed
    clock.now += 1
    all_of_them.drop_slow()
    assert transport.is_closed
    one.resume_writing()
    sent(one, b"{}")
    await answered(transport)


@pytest.mark.parametrize("is_whole", [True, False])
def test_who_reads_slowly_gets_all_of_it(is_whole):
    async def test(one, transport, clock, all_of_them):
        sent(one, HEAD + b"Content-Length: 2\r\n\r\n{}")
        if is_whole:
            await answered(transport)
        transport.num_unread = 1 << 20
        one.pause_writing()
        await asyncio.sleep(0)
        while transport.num_unread:
            all_of_them.drop_slow()
            assert not transport.is_closed
            clock.now += connections.SLOWEST_READER_S - 1
            transport.num_unread -= 1 << 18
        all_of_them.drop_slow()
        assert not transport.is_closed
        one.resume_writing()
        await answered(transport)

    with_connection(test, answer)


def connected(number):
    """A socket that listens, and as many that connect to it."""
    listens = connections.bound("127.0.0.1", 0)
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


def test_there_are_fewer_connections_than_descriptors(monkeypatch):
    resource = pytest.importorskip("resource")
    for soft, most in ((256, 64), (1024, 512), (resource.RLIM_INFINITY, 512), (100, 8)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert connections.most_connections() == most
