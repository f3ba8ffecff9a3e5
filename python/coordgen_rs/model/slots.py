"""The slots where requests are answered: one, or several together, and what each holds.

In: requests that want one. Out: a session that holds as much of the prompt as any of them has.
Nothing of one namespace is seen by another.
"""

from itertools import count

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.model.request import ModelRequest
from coordgen_rs.runtime.batch import Batch
from coordgen_rs.runtime.batch import Sequence as Shared
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.store.prefixes.pool import LEAST_TOKENS, PrefixPool, common_len

_TIMES = count()


class _Slot:
    """A session, and whose tokens it holds.

    Args:
        session: One of a batch.
        namespace: Whose tokens it holds.

    Attributes:
        session: The `session` argument.
        namespace: The `namespace` argument.
        request: The request that has it; one that is over may have been kept from leaving it.
        is_beginning: Whether its request is to read the prompt, but has not begun to.
        used: The smaller, the sooner it is taken: by when it was left, before these what nobody is
            likely to go on with.
    """

    def __init__(self, session: Shared, namespace: str) -> None:
        self.session, self.namespace = session, namespace
        self.request: ModelRequest | None = None
        self.is_beginning = False
        self.used = next(_TIMES)

    @property
    def is_free(self) -> bool:
        """Whether no request has it any more."""
        return self.request is None or self.request.owner.is_over

    def holds(self, prompt: NDArray[np.uint32]) -> int:
        """How many of a prompt's first tokens need not be read here."""
        return self.session.reachable(common_len(self.session.reusable_ids, prompt))

    def gives(self, prompt: NDArray[np.uint32]) -> int:
        """How many of a prompt's first tokens it can give to another slot."""
        num_common = common_len(self.session.reusable_ids, prompt)
        return self.session.prefix_in_place(num_common).reachable(num_common)

    def will_hold(self, prompt: NDArray[np.uint32]) -> int:
        """How many of a prompt's first tokens it will hold, if it still reads them; else 0."""
        if self.request is None or self.is_free:
            return 0
        will, reads = common_len(self.request.prompt_ids, prompt), self.session.rest > 0
        return will if self.is_beginning or (reads and will > self.session.length) else 0


class Slots:
    """All slots of a batch.

    Args:
        batch: Runs its sequences; nothing else may use it.
        prefixes: Where what is overwritten is kept; None drops it.
        namespace: The namespace whose tokens they hold at first.
    """

    def __init__(self, batch: Batch, prefixes: PrefixPool | None, namespace: str) -> None:
        self.run = batch.run
        self._all = [_Slot(session, namespace) for session in batch.sequences]
        for session in batch.sequences:
            session.is_driven = True
        self._prefixes = prefixes

    @property
    def is_full(self) -> bool:
        """Whether none is free."""
        return not any(slot.is_free for slot in self._all)

    def taken(self, request: ModelRequest) -> Shared:
        """The session that answers a request until it leaves its slot, or is over; one is free."""
        free = [slot for slot in self._all if slot.is_free]
        prompt = request.prompt_ids
        most = max(self._mine(request), key=lambda it: it.gives(prompt), default=None)
        num_held = 0 if most is None else most.gives(prompt)
        # Of a dialogue that goes on nothing is lost; what only begins alike is kept beside it.
        goes_on = most in free and 2 * num_held >= len(most.session.reusable_ids) if most else False
        slot = most if goes_on and most is not None else min(free, key=lambda it: it.used)
        slot.session.withdraw()  # a request that did not leave may still ask for something
        if slot.namespace != request.namespace:  # which is to find nothing of another
            self._keep(slot)
            slot.session.forget()
            slot.namespace = request.namespace
        if most is not None and most is not slot and num_held - slot.holds(prompt) >= LEAST_TOKENS:
            self._keep(slot)
            slot.session.take_prefix(most.session, num_held)
        slot.is_beginning, slot.request = True, request
        return slot.session

    def begins(self, request: ModelRequest) -> None:
        """A request begins to read the prompt."""
        for slot in self._all:
            if slot.request is request:
                slot.is_beginning = False

    def leave(self, request: ModelRequest) -> None:
        """Free the slot that a request has, if there is one."""
        for slot in self._all:
            if slot.request is request:
                slot.session.withdraw()
                slot.used = next(_TIMES) if request.reuse_prefix else -1
                slot.request = None

    def is_being_read(self, request: ModelRequest) -> bool:
        """Whether another request reads the beginning of a prompt right now.

        Equal prefixes are computed once: who comes second waits until the first has read them.
        """
        prompt, mine = request.prompt_ids, self._mine(request)
        will_hold = max((it.will_hold(prompt) for it in mine), default=0)
        return will_hold > 0 and will_hold >= LEAST_TOKENS + max(it.gives(prompt) for it in mine)

    def _mine(self, request: ModelRequest) -> list[_Slot]:
        """The slots whose tokens a request may reuse."""
        mine = (it for it in self._all if it.namespace == request.namespace)
        return [*mine] if request.reuse_prefix else []

    def _keep(self, slot: _Slot) -> None:
        """Keep what a slot holds, before it is overwritten."""
        if self._prefixes is not None:
            self._prefixes.of(slot.namespace).hand_over(slot.session, slot.namespace)


class OneSlot:
    """The only slot of a session that answers one request at a time.

    Args:
        session: The target; nothing else may use it.
        prefixes: Same as in `Slots`.
        namespace: Same as in `Slots`.
    """

    def __init__(self, session: OrtSession, prefixes: PrefixPool | None, namespace: str) -> None:
        self._session, self._prefixes, self._held_by = session, prefixes, namespace
        self._request: ModelRequest | None = None

    @property
    def is_full(self) -> bool:
        """Whether a request has it."""
        return self._request is not None and not self._request.owner.is_over

    def is_being_read(self, request: ModelRequest) -> bool:
        """False: a request waits for the other's end."""
        return False

    def taken(self, request: ModelRequest) -> OrtSession:
        """The session, which no request has; see `Slots.taken`."""
        if request.namespace != self._held_by:
            if self._prefixes is not None:
                self._prefixes.of(self._held_by).hand_over(self._session, self._held_by)
            self._session.rewind(0)
            self._held_by = request.namespace
        self._request = request
        return self._session

    def begins(self, request: ModelRequest) -> None:
        """Nobody waits for that."""

    def leave(self, request: ModelRequest) -> None:
        """Free the slot, if the request has it."""
        if self._request is request:
            self._request = None

    def run(self) -> bool:
        """False: the session runs within each step."""
        return False
