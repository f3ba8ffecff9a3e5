"""Clients: who asks, how many requests each may have in the server, and whose turn it is.

In: requests' scopes. Out: slots, turns and threads, shared so that what one client does never
keeps another out. Keys take turns, the addresses of a key among themselves. Whoever has one address
of IPv6 has all of its network, so they count as one.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from starlette.types import Scope

from coordgen_rs.server.api_error import APIError

KEY_NAME = "coordgen.key_name"
"""Where in a request's scope the name behind its key stands."""

FULL_CLIENTS = 4
"""How many clients of one key can have as many requests as a client may."""

NUM_THREADS = 4
"""Threads for what takes long before a request waits for the model."""

_T = TypeVar("_T")


class Client(NamedTuple):
    """Who asks.

    Attributes:
        key: The name behind the key; "" without one.
        network: An address of IPv4, or a network of 64 bits of IPv6.
    """

    key: str
    network: str


def client_of(scope: Scope) -> Client:
    """Who sends a request that the guard has let through."""
    host = scope["client"][0] if scope.get("client") else ""
    return Client(scope.get(KEY_NAME) or "", network_of(host))


def network_of(host: str) -> str:
    """What counts as one address."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host


class ClientSlots:
    """Who has how many requests in the server, from the head to the end of the answer.

    A client has its own bound, and so have all addresses of a key together, whose number nobody
    knows.

    Args:
        most: Most requests of a client.
        when_full: Gives the seconds after which a client with so many requests may try again.

    Attributes:
        most: The `most` argument; it may be changed.
    """

    def __init__(self, most: int, when_full: Callable[[int], int]) -> None:
        self.most, self._when_full = most, when_full
        self._of_client, self._of_key = Counter[Client](), Counter[str]()

    @contextmanager
    def hold(self, client: Client, num_more: int = 1) -> Iterator[None]:
        """Hold so many slots until the end of the block, or none if there are fewer.

        Raises:
            APIError: There are fewer.
        """
        num, num_of_key = self._of_client[client], self._of_key[client.key]
        most_of_key = FULL_CLIENTS * self.most
        if num + num_more > self.most or num_of_key + num_more > most_of_key:
            raise self._full(num)
        self._of_client[client] += num_more
        self._of_key[client.key] += num_more
        try:
            yield
        finally:
            self._of_client -= Counter({client: num_more})
            self._of_key -= Counter({client.key: num_more})

    def _full(self, num: int) -> APIError:
        after = self._when_full(num)
        return APIError(
            f"{num} requests of this client are waiting or being answered, which is all that the "
            f"queue holds: try again in {after} s",
            status=429,
            kind="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": str(after)},
        )


class Waiter:
    """A request that waits. Made in the event loop that awaits it.

    Args:
        client: Whose turn it takes.

    Attributes:
        client: The `client` argument.
        called: Set when it waits no more.
        has_turn: Whether it has its turn.
    """

    def __init__(self, client: Client) -> None:
        self.client, self.called, self.has_turn = client, asyncio.Event(), False
        self._loop = asyncio.get_running_loop()

    def call(self, *, has_turn: bool = False) -> None:
        """End the waiting, from any thread."""
        self.has_turn = has_turn
        with suppress(RuntimeError):  # the event loop is closed: nobody awaits it
            self._loop.call_soon_threadsafe(self.called.set)


class FairQueue:
    """Those of all clients who wait, none at first.

    Within a client the oldest is next; a client that comes anew is behind all who wait.
    """

    def __init__(self) -> None:
        self._waiting = list[Waiter]()
        self._since = dict[str | Client, int]()  # a key or a client: when it came, or had a turn
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiting)

    def add(self, waiter: Waiter) -> None:
        """Put one behind those of its client."""
        for who in (waiter.client.key, waiter.client):
            self._since.setdefault(who, next(self._numbers))
        self._waiting.append(waiter)

    def take(self) -> Waiter:
        """The one whose turn it is; its key and its client are behind all others then."""
        since = self._since
        waiter = min(self._waiting, key=lambda one: (since[one.client.key], since[one.client]))
        since[waiter.client.key] = since[waiter.client] = next(self._numbers)
        self.remove(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        """Take one out; False if it does not wait."""
        if waiter not in self._waiting:
            return False
        self._waiting.remove(waiter)
        still = {who for one in self._waiting for who in (one.client.key, one.client)}
        self._since = {who: number for who, number in self._since.items() if who in still}
        return True

    def clear(self) -> list[Waiter]:
        """All of them; none waits any more."""
        waiters, self._waiting = self._waiting, []
        self._since.clear()
        return waiters


class FairExecutor:
    """Runs in threads what takes long before a request waits: parsing, templates, tokens.

    A few run at once, one of each client, so that no client's long texts keep those of others
    waiting, or take more memory than a few of them need. Made anywhere, used in one event loop.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(NUM_THREADS)
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, client: Client, function: Callable[[], _T]) -> _T:
        """Run a function; return what it returns, or raise what it raises.

        Args:
            client: The client it runs for; those of one key count as one client.
            function: Called in another thread, once it is its turn.
        """
        name = client.key or client.network
        own = self._own.get(name)
        if own is None:
            own = self._own[name] = asyncio.Lock()
        # Who has the lock waits behind one function of each other client at most.
        async with own, self._free:
            return await asyncio.to_thread(function)
