"""Threads for what takes long before a request waits for the model: parsing, templates, tokens.

In: functions of clients. Out: what they return. A few run at once, one of each client, so that no
client's long texts keep those of others waiting, or take more memory than a few of them need.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from coordgen_rs.server.network.client import Client

NUM_LANES = 4

_T = TypeVar("_T")


class Lanes:
    """Runs functions in threads. Made anywhere, used in one event loop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(NUM_LANES)
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
