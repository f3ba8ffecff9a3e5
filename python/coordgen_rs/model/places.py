"""The places where requests are answered: one, or several together, and what each holds.

In: requests that want one. Out: a session that holds as much of the prompt as any of them has.
Nothing of one namespace is seen by another.
"""

from itertools import count

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.model.request import ModelRequest
from coordgen_rs.runtime.batch import Batch
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.sequence import Sequence as Shared
from coordgen_rs.store.prefixes.pool import LEAST_TOKENS, PrefixPool, common_len
from coordgen_rs.store.threads.owner import Owner

_TIMES = count()


class Place:
    """A session, and whose tokens it holds.

    Args:
        session: One of a batch.
        namespace: Whose tokens it holds.

    Attributes:
        session: The `session` argument.
        namespace: The `namespace` argument.
        prompt: Of the request that has it, or had it last, `(tokens,) u32`.
        is_beginning: Whether its request is to read the prompt, but has not begun to.
        is_gone_on_with: Whether what its request leaves is likely to be gone on with.
        used: The smaller, the sooner it is taken: by when it was left, before these what nobody is
            likely to go on with.
    """

    def __init__(self, session: Shared, namespace: str) -> None:
        self.session, self.namespace = session, namespace
        self.prompt: NDArray[np.uint32] | None = None
        self._owner: Owner | None = None
        self.is_beginning, self.is_gone_on_with = False, True
        self.used = next(_TIMES)

    @property
    def owner(self) -> Owner | None:
        """Who has it; None while nobody has."""
        return None if self._owner is None or self._owner.is_over else self._owner

    def take(self, owner: Owner, prompt: NDArray[np.uint32], *, is_gone_on_with: bool) -> None:
        """Belong to a request, until it leaves or is over."""
        self.prompt, self.is_gone_on_with = prompt, is_gone_on_with
        self.is_beginning = True
        self._owner = owner

    def leave(self) -> None:
        """Be free for another request."""
        self.session.withdraw()
        self.used = next(_TIMES) if self.is_gone_on_with else -1
        self._owner = None

    def holds(self, prompt: NDArray[np.uint32]) -> int:
        """How many of a prompt's first tokens need not be read here."""
        return self.session.reachable(common_len(self.session.reusable_ids, prompt))

    def gives(self, prompt: NDArray[np.uint32]) -> int:
        """How many of a prompt's first tokens it can give to another place."""
        num_common = common_len(self.session.reusable_ids, prompt)
        return self.session.prefix_in_place(num_common).reachable(num_common)


class Places:
    """All places of a batch.

    Args:
        batch: Runs its sequences; nothing else may use it.
        prefixes: Where what is overwritten is kept; None drops it.
        namespace: The namespace whose tokens they hold at first.
    """

    def __init__(self, batch: Batch, prefixes: PrefixPool | None, namespace: str) -> None:
        self.run = batch.run
        self._all = [Place(session, namespace) for session in batch.sequences]
        for session in batch.sequences:
            session.is_driven = True
        self._prefixes = prefixes

    @property
    def is_full(self) -> bool:
        """Whether none is free."""
        return all(place.owner is not None for place in self._all)

    def taken(self, request: ModelRequest, owner: Owner) -> Shared:
        """The session that answers a request; one is free.

        Args:
            request: What is to be answered.
            owner: Who has the place until it leaves it, or is over.
        """
        free = [place for place in self._all if place.owner is None]
        prompt, namespace = request.prompt_ids, request.namespace
        most = max(self._mine(request), key=lambda it: it.gives(prompt), default=None)
        num_held = 0 if most is None else most.gives(prompt)
        # Of a dialogue that goes on nothing is lost; what only begins alike is kept beside it.
        goes_on = most in free and 2 * num_held >= len(most.session.reusable_ids) if most else False
        place = most if goes_on and most is not None else min(free, key=lambda it: it.used)
        place.session.withdraw()  # whose owner did not leave may still ask for something
        self._hand_over(place, namespace)
        if most is not None and most is not place:
            own = place.holds(prompt)
            if num_held - own >= LEAST_TOKENS:
                self._keep(place)
                place.session.take_prefix(most.session, num_held)
        place.take(owner, prompt, is_gone_on_with=request.reuse_prefix)
        return place.session

    def begins(self, owner: Owner) -> None:
        """Somebody begins to read the prompt."""
        for place in self._all:
            if place.owner is owner:
                place.is_beginning = False

    def leave(self, owner: Owner) -> None:
        """Free the place that somebody has, if there is one."""
        for place in self._all:
            if place.owner is owner:
                place.leave()

    def is_being_read(self, request: ModelRequest) -> bool:
        """Whether another request reads the beginning of a prompt right now.

        Equal prefixes are computed once: who comes second waits until the first has read them.
        """
        prompt, mine = request.prompt_ids, self._mine(request)
        will_hold = max((_will_hold(it, prompt) for it in mine), default=0)
        return will_hold > 0 and will_hold >= LEAST_TOKENS + max(it.gives(prompt) for it in mine)

    def _mine(self, request: ModelRequest) -> list[Place]:
        """The places whose tokens a request may reuse."""
        mine = (it for it in self._all if it.namespace == request.namespace)
        return [*mine] if request.reuse_prefix else []

    def _hand_over(self, place: Place, namespace: str) -> None:
        """See that a place holds nothing of another namespace."""
        if place.namespace != namespace:
            self._keep(place)
            place.session.forget()
            place.namespace = namespace

    def _keep(self, place: Place) -> None:
        """Keep what a place holds, before it is overwritten."""
        if self._prefixes is not None:
            self._prefixes.of(place.namespace).hand_over(place.session, place.namespace)


class OnePlace:
    """The only place of a session that answers one request at a time.

    Args:
        session: The target; nothing else may use it.
        prefixes: Same as in `Places`.
        namespace: Same as in `Places`.
    """

    def __init__(self, session: OrtSession, prefixes: PrefixPool | None, namespace: str) -> None:
        self._session, self._prefixes, self._held_by = session, prefixes, namespace
        self._owner: Owner | None = None

    @property
    def is_full(self) -> bool:
        """Whether somebody has it."""
        return self._owner is not None and not self._owner.is_over

    def is_being_read(self, request: ModelRequest) -> bool:
        """False: a request waits for the other's end."""
        return False

    def taken(self, request: ModelRequest, owner: Owner) -> OrtSession:
        """The session, which nobody has; see `Places.taken`."""
        if request.namespace != self._held_by:
            if self._prefixes is not None:
                self._prefixes.of(self._held_by).hand_over(self._session, self._held_by)
            self._session.rewind(0)
            self._held_by = request.namespace
        self._owner = owner
        return self._session

    def begins(self, owner: Owner) -> None:
        """Nobody waits for that."""

    def leave(self, owner: Owner) -> None:
        """Free the place, if somebody has it."""
        if self._owner is owner:
            self._owner = None

    def run(self) -> bool:
        """False: the session runs within each step."""
        return False


def _will_hold(place: Place, prompt: NDArray[np.uint32]) -> int:
    """How many of a prompt's first tokens a place will hold that is still being read; else 0."""
    if place.owner is None or place.prompt is None:
        return 0
    will, is_read = common_len(place.prompt, prompt), place.session.rest > 0
    is_new = is_read and will > place.session.length
    return will if place.is_beginning or is_new else 0
