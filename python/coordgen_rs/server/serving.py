"""A server's life: it binds, loads, answers, and ends when it is told to.

In: how to open a model, where to listen, who may ask. Out: nothing; it returns after SIGINT or
SIGTERM, when what was running has ended or the time for that is over: a first signal lets running
requests end, a second one does not. Signals are only counted where they are heard; all else is done
by who asks for them from time to time, so nothing is done twice at once.
"""

import asyncio
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import FrameType

import uvicorn

from coordgen_rs.model import Model
from coordgen_rs.server.api_error import UnavailableError
from coordgen_rs.server.app import make_app
from coordgen_rs.server.connections import (
    ACCEPTED_AT_ONCE,
    LONGEST_READ_HEAD,
    MOST_CONNECTIONS,
    Connection,
    Connections,
    bound,
    most_connections,
    tracked,
    url_of,
)
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool

_SLOWEST_READER_S = 2
"""Seconds for clients to read the end of their answers, once the server is told to end."""

_SLOWEST_READER_AT_ONCE_S = 0.5
"""The same once it is told to end at once."""

_BETWEEN_LOOKS_S = 0.1
"""Between two looks for a second signal."""

_KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than clients keep theirs (httpx 5 s, proxies 60),
or they would send the next request into a connection that is just being closed."""

_SWITCH_S = 0.001
"""How long a thread may keep the interpreter's lock while others wait, a fifth of Python's default:
the thread that runs the model takes it several times a step."""


@dataclass(frozen=True)
class ServerOptions:
    """Where and how to serve.

    Attributes:
        host: The address.
        port: 0 for any that is free.
        max_queue: Most requests of a client that wait.
        memory_limit: Bytes that open models may take together; None for no limit.
        cache_bytes: What a model may take beside its files, such as for earlier prompts.
        grace_s: Seconds that running requests get once the server is told to end.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    max_queue: int = 8
    memory_limit: int | None = None
    cache_bytes: int = 0
    grace_s: float = 10.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def how_many_together(model: Model) -> str:
    """How many requests a model answers at a time, and why only one where more were asked for."""
    if model.parallel > 1:
        return f"{model.parallel} requests at a time"
    return "one request at a time" + (f": {model.why_alone}" if model.why_alone else "")


def serve(
    entries: Sequence[ModelEntry],
    open_model: Callable[[ModelEntry], Model],
    options: ServerOptions,
    access: Access,
    tell: Callable[[str], None],
    leave: Callable[[], object],
) -> bool:
    """Serve until SIGINT or SIGTERM.

    Args:
        entries: The models; the first is opened at once, after the address is bound.
        open_model: Opens one, in another thread.
        options: Where and how.
        access: Who may ask, and for what.
        tell: Takes a line for the user, from any thread.
        leave: Ends the process, whatever still runs in it; called for a second signal.

    Returns:
        Whether all models are closed; one that is still being opened is of no use to anybody.

    Raises:
        OptionError: The address cannot be bound.
        CoordgenError: The only model cannot be opened, or has failed.
    """
    listening = bound(options.host, options.port)
    url = url_of(listening)
    is_alone, first = len(entries) == 1, entries[0].name
    told = set[str]()

    def changed(name: str, state: str) -> None:
        model = pool.status(name).model
        if model is not None and not told:
            others = "" if is_alone else f" and {len(entries) - 1} more"
            how = how_many_together(model)
            tell(f"serving {name}{others} on {url} (API: {url}/v1; {how}; Ctrl-C ends)")
            told.add(name)
        elif state == "failed" and is_alone:
            server.should_exit = True
        elif state == "failed":
            tell(f"{name} cannot be used: {pool.failure(name)}")
        elif not is_alone:
            tell(f"{name} is {'open' if state == 'ready' else 'put away'}")

    def opened(one: ModelEntry) -> Model:
        model = open_model(one)
        _ = model.tokenizer.bound  # it takes a while: before the first request
        return model

    pool = ModelPool(
        entries,
        opened,
        options.max_queue,
        memory_limit=options.memory_limit,
        cache_bytes=options.cache_bytes,
        on_change=changed,
    )
    connections = Connections(most_connections())
    config = uvicorn.Config(
        tracked(make_app(pool, access)),
        loop="asyncio",
        http=partial(Connection, connections),  # type: ignore[arg-type]
        h11_max_incomplete_event_size=LONGEST_READ_HEAD,
        backlog=ACCEPTED_AT_ONCE,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        log_level="error",  # what strangers send is no warning
    )
    shutdown = Shutdown(pool, options.grace_s, tell, leave)
    server = _Server(config, pool, shutdown, connections)
    sys.setswitchinterval(_SWITCH_S)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text each, in threads of ours
    tell(f"loading {first}; requests to {url} wait until then")
    with shutdown.hearing():
        pool.start()
        try:
            server.run(sockets=[listening])
        finally:
            shutdown.end()
            pool.close()
            is_closed = pool.join(with_opening=False)
    if is_alone and (failure := pool.failure(first)) is not None:
        raise failure
    return is_closed


class Shutdown:
    """The end of a server.

    Args:
        pool: Takes no more requests from the first signal on.
        grace_s: Seconds that requests get from then on.
        tell: Takes a line for the user.
        leave: Ends the process; called from the second signal on once nothing needs to be told.
    """

    def __init__(
        self,
        pool: ModelPool,
        grace_s: float,
        tell: Callable[[str], None],
        leave: Callable[[], object],
    ) -> None:
        self._pool, self._grace_s, self._tell, self._leave = pool, grace_s, tell, leave
        self._num_signals = 0
        self._is_past_telling = False
        self._until_s: float | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether there was a second signal."""
        return self._num_signals > 1

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to end, once a signal was heard.

        Args:
            now_s: Seconds of a clock that is the same in each call.
        """
        if not self._num_signals:
            return False
        if self._until_s is None:
            self._until_s = now_s + self._grace_s
            self._pool.close()
            self._tell(self._told())
        is_idle = not self._pool.num_running + self._pool.num_waiting
        return is_idle or self.is_urgent or now_s >= self._until_s

    def left_s(self, now_s: float) -> float:
        """How much of the grace is left; 0 where it was not begun."""
        return 0.0 if self._until_s is None else max(self._until_s - now_s, 0.0)

    def end(self) -> None:
        """Say that all requests have ended: from now on a second signal leaves at once."""
        self._is_past_telling = True
        if self.is_urgent:
            self._leave()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Hear SIGINT and SIGTERM within the block."""
        before = {
            number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        if self._is_past_telling and self.is_urgent:
            self._leave()

    def _told(self) -> str:
        running, waiting = self._pool.num_running, self._pool.num_waiting
        if not running + waiting:
            return "ending: no request is being answered; Ctrl-C again stops at once"
        also = f", {waiting} wait{'s' if waiting == 1 else ''}" if waiting else ""
        return (
            f"draining: {running} request{'s run' if running != 1 else ' runs'}{also}; they get "
            f"{self._grace_s:g} s (--grace), new ones status 503; Ctrl-C again stops at once"
        )


class _Server(uvicorn.Server):
    """uvicorn, which goes on until what runs has ended, and ends the rest by an error.

    Args:
        config: uvicorn's configuration.
        pool: Answers requests.
        shutdown: Tells when to end.
        connections: Looked at from time to time.
    """

    def __init__(
        self, config: uvicorn.Config, pool: ModelPool, shutdown: Shutdown, connections: Connections
    ) -> None:
        super().__init__(config)
        self._pool, self._shutdown, self._connections = pool, shutdown, connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; how many are accepted at once says nothing about how many may wait for it."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(MOST_CONNECTIONS)

    async def on_tick(self, counter: int) -> bool:
        """Do what is due ten times a second; see uvicorn. New requests are heard until it ends."""
        if counter % 10 == 0:
            self._connections.drop_slow()
        return await super().on_tick(counter) or self._shutdown.is_due(monotonic())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what still runs by an error, and let clients read it."""
        self._pool.stop_all(UnavailableError("the server is going down"))
        self._connections.close_answered()
        slow = asyncio.create_task(self._cut_off_in_time())
        await super().shutdown(sockets)
        slow.cancel()
        self._shutdown.end()

    async def _cut_off_in_time(self) -> None:
        until_s = monotonic() + self._shutdown.left_s(monotonic()) + _SLOWEST_READER_S
        while monotonic() < until_s and not self._shutdown.is_urgent:
            await asyncio.sleep(_BETWEEN_LOOKS_S)
        if self._shutdown.is_urgent:
            await asyncio.sleep(_SLOWEST_READER_AT_ONCE_S)
        self._connections.drop_all()
        if self._shutdown.is_urgent:  # a thread may still work for a request
            self._shutdown.end()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to who hears them already; see uvicorn."""
        yield
