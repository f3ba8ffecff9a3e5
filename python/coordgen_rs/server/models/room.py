"""How much memory the open models of a server take together, and who has to go for another.

In: models that are to be opened, in threads that wait here, one after the other. Out: room for
each: where there is too little, the model that was used longest ago is put away, those that answer
nothing first. A model that is busy answers what it was asked for before it goes. The limit is on
what models are reckoned to take; the process itself comes on top.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, get_ident
from typing import Protocol

from coordgen_rs.errors import MemoryBudgetError
from coordgen_rs.server.refusal import UnavailableError


class Tenant(Protocol):
    """A model that is open, or about to be."""

    @property
    def name(self) -> str:
        """Its name for clients."""

    def use(self) -> tuple[bool, int]:
        """Whether it is being used, and when it was last: the smallest goes first."""

    def put_away(self) -> None:
        """Take no more requests, and be closed when those that run have ended."""


@dataclass
class _Let:
    """What a tenant has; 0 bytes once it is reckoned as gone."""

    num_bytes: int
    is_leaving: bool = field(default=False)


class Room:
    """The memory for models.

    Args:
        limit: Bytes that they may take together; None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._changed = Condition()
        self._let: dict[Tenant, _Let] = {}
        self._queue: list[int] = []  # threads that wait to open, in order
        self._is_closed = False

    @contextmanager
    def opening(self, tenant: Tenant, num_bytes: int) -> Iterator[Callable[[int], None]]:
        """Wait for room, and hold it; what is opened within the block is opened alone.

        Args:
            tenant: Has room from now on until `left` is called, or the block raises.
            num_bytes: What it is reckoned to take.

        Yields:
            Takes what it really takes, in bytes.

        Raises:
            UnavailableError: It needs more than the limit, which what it really takes may tell, or
                the server ends.
        """
        self._check(tenant, num_bytes)
        mine = get_ident()
        with self._changed:
            self._queue.append(mine)
            try:
                self._changed.wait_for(
                    lambda: (
                        self._is_closed or (self._queue[0] == mine and self._has_room(num_bytes))
                    )
                )
                if self._is_closed:
                    raise UnavailableError("the server is going down")
                self._let[tenant] = _Let(num_bytes)
            except BaseException:
                self._queue.remove(mine)
                self._changed.notify_all()
                raise
        try:
            yield lambda measured: self._correct(tenant, measured)
        except BaseException:
            self.left(tenant)
            raise
        finally:
            with self._changed:
                self._queue.remove(mine)
                self._changed.notify_all()

    def left(self, tenant: Tenant) -> None:
        """Note that a model is closed; it may have been noted before."""
        with self._changed:
            self._let.pop(tenant, None)
            self._changed.notify_all()

    def taken(self, tenant: Tenant) -> int:
        """What a model is reckoned to take now, in bytes; 0 where it is not open."""
        with self._changed:
            return self._let[tenant].num_bytes if tenant in self._let else 0

    def looked_at(self) -> None:
        """Let those who wait look again: something is used no more."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Send away who waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _check(self, tenant: Tenant, num_bytes: int) -> None:
        if self._limit is not None and num_bytes > self._limit:
            message = (
                f"the model {tenant.name} takes about {num_bytes:,} bytes, which is more than "
                f"--memory-limit {self._limit:,}"
            )
            raise UnavailableError(message, code="model_failed") from MemoryBudgetError(message)

    def _correct(self, tenant: Tenant, measured: int) -> None:
        """Note what a model really takes; others go where that is more than there is room for."""
        self._check(tenant, measured)
        with self._changed:
            self._let[tenant].num_bytes = measured
            self._has_room(0, beside=tenant)

    def _has_room(self, num_bytes: int, beside: Tenant | None = None) -> bool:
        """Whether there is room now; if not, as many are put away as it takes.

        Args:
            num_bytes: What is to be opened.
            beside: Stays.
        """
        if self._limit is None:
            return True
        over = sum(let.num_bytes for let in self._let.values()) + num_bytes - self._limit
        if over <= 0:
            return True
        over -= sum(let.num_bytes for let in self._let.values() if let.is_leaving)
        staying = [it for it, let in self._let.items() if not let.is_leaving and it is not beside]
        for tenant in sorted(staying, key=lambda tenant: tenant.use()):
            if over <= 0:
                break
            self._let[tenant].is_leaving = True
            over -= self._let[tenant].num_bytes
            tenant.put_away()
        return False
