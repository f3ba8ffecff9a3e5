"""Whose turn it is to be answered: keys take turns, the addresses of a key among themselves.

In: requests, which wait in the event loop. Out: a turn for each, as many at a time as there are
places. Within a client the oldest is next; a client that comes anew is behind all who wait.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress

from coordgen_rs.server.network.client import Client


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
    """Those of all clients who wait, none at first."""

    def __init__(self) -> None:
        self._keys = OrderedDict[str, OrderedDict[str, deque[Waiter]]]()  # next one first

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Waiter]:
        for networks in self._keys.values():
            for waiters in networks.values():
                yield from waiters

    def add(self, waiter: Waiter) -> None:
        """Put one behind those of its client."""
        networks = self._keys.setdefault(waiter.client.key, OrderedDict())
        networks.setdefault(waiter.client.network, deque()).append(waiter)

    def take(self) -> Waiter:
        """The one whose turn it is; its client is behind all others then."""
        key, networks = self._keys.popitem(last=False)
        network, waiters = networks.popitem(last=False)
        waiter = waiters.popleft()
        if waiters:
            networks[network] = waiters
        if networks:
            self._keys[key] = networks
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        """Take one out; False if it does not wait."""
        networks = self._keys.get(waiter.client.key, OrderedDict[str, deque[Waiter]]())
        waiters = networks.get(waiter.client.network, deque[Waiter]())
        if waiter not in waiters:
            return False
        waiters.remove(waiter)
        if not waiters:
            del networks[waiter.client.network]
        if not networks:
            del self._keys[waiter.client.key]
        return True

    def clear(self) -> list[Waiter]:
        """All of them; none waits any more."""
        waiters = [*self]
        self._keys.clear()
        return waiters
