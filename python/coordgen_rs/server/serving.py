"""A server's life: it binds, loads, answers, and ends when it is told to.

In: how to open a model, where to listen, who may ask. Out: nothing; it returns after SIGINT or
SIGTERM, when what was running has ended or the time for that is over.
"""

import asyncio
import errno
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import uvicorn

from coordgen_rs.errors import OptionError
from coordgen_rs.model import Model
from coordgen_rs.server.app import Access, make_app
from coordgen_rs.server.refusal import UnavailableError
from coordgen_rs.server.worker import Worker

_SLOWEST_READER_S = 2
"""What clients get to read the end of their answers, once the server is told to end."""

_KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than clients keep theirs (httpx 5 s, proxies 60),
or they would send the next request into a connection that is just being closed."""

_SLOWEST_HEAD_S = 90
"""What a client has from its connection, or its last answer, to the end of a request's head; idle
connections are closed before."""


@dataclass(frozen=True)
class Place:
    """Where and how to serve.

    Attributes:
        host: The address.
        port: 0 for any that is free.
        max_queue: Most requests that wait.
        grace_s: Seconds that running requests get once the server is told to end.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    max_queue: int = 8
    grace_s: float = 10.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    open_model: Callable[[], Model], place: Place, access: Access, tell: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        open_model: Opens the model, in another thread; the address is bound before.
        place: Where and how.
        access: Who may ask, and for what.
        tell: Takes a line for the user, from any thread.

    Raises:
        OptionError: The address cannot be bound.
        CoordgenError: The model cannot be opened, or has failed.
    """
    listening = _bound(place)
    url = _url(listening)

    def changed() -> None:
        if worker.state == "ready":
            tell(f"serving {access.model} on {url} (API: {url}/v1; Ctrl-C ends)")
        else:
            server.should_exit = True

    worker = Worker(open_model, place.max_queue, changed)
    config = uvicorn.Config(
        make_app(worker, access),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        log_level="error",  # what strangers send is no warning
    )
    server = _Server(config, worker, place.grace_s)
    tell(f"loading {access.model}; {url} answers 503 until then")
    worker.start()
    try:
        server.run(sockets=[listening])
    finally:
        worker.close()
        worker.join()
    if worker.failure is not None:
        raise worker.failure


class _Server(uvicorn.Server):
    """uvicorn, which gives running requests time to end, and ends the rest by an error.

    Args:
        config: Of uvicorn.
        worker: Takes no more jobs once the server ends.
        grace_s: Seconds until the rest is ended.
    """

    def __init__(self, config: uvicorn.Config, worker: Worker, grace_s: float) -> None:
        super().__init__(config)
        self._worker, self._grace_s = worker, grace_s
        self._silent: dict[Any, tuple[Any, float]] = {}
        """Connections without a request: their last one, and since when."""

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; see uvicorn."""
        if counter % 10 == 0:
            self._drop_silent(monotonic())
        return await super().on_tick(counter)

    def _drop_silent(self, now_s: float) -> None:
        """Drop connections on which the head of a request does not come to its end."""
        before, self._silent = self._silent, {}
        for connection in self.server_state.connections:
            last = getattr(connection, "cycle", None)
            if last is not None and not last.response_complete:
                continue
            known, since_s = before.get(connection, (last, now_s))
            if known is not last:  # it has asked and got its answer since
                since_s = now_s
            self._silent[connection] = last, since_s
            if now_s - since_s > _SLOWEST_HEAD_S and connection.transport is not None:
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests end, for a while."""
        self._worker.close()
        why, loop = UnavailableError("the server is going down"), asyncio.get_running_loop()
        loop.call_later(self._grace_s, self._worker.stop_all, why)
        loop.call_later(self._grace_s + _SLOWEST_READER_S, self._cut_off)
        await super().shutdown(sockets)
        self._worker.stop_all(why)

    def _cut_off(self) -> None:
        """Drop clients that neither send the rest of a request nor read their answer."""
        for connection in list(self.server_state.connections):
            if (transport := connection.transport) is not None:
                transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear signals; unlike uvicorn's own, not raising them again once all has ended."""
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _bound(place: Place) -> socket.socket:
    """A socket that listens.

    Raises:
        OptionError: The address is in use, or not one of this machine.
    """
    try:
        found = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            said = "another program listens there: give --port, or 0 for any that is free"
        raise OptionError(f"cannot listen on {place.host} port {place.port}: {said}") from error


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
