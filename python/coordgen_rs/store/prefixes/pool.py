"""Prefixes of earlier requests, kept so that dialogues that take turns do not throw each other out.

In: a session, and the prompt that is to be read next. Out: a session that holds as much of that
prompt as it, or what is kept, ever had of it. It computes nothing, and changes no token.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import arguments
from coordgen_rs.store.background import Lease, NotCopied
from coordgen_rs.store.prefixes.prefix import KeepsPrefixes, SavedPrefix
from coordgen_rs.store.prefixes.store import PrefixStore

LEAST_TOKENS = 16
"""Fewer tokens are computed again sooner than kept."""


class PrefixPool(NotCopied):
    """Saved prefixes of one target; those least recently used go first.

    Args:
        most_bytes: Most bytes of all that are kept. While one is saved, its bytes come on top.
        namespace: The namespace whose tokens the session holds at first.
        store: Where prefixes are kept on disk; None for nowhere.

    Attributes:
        store: The `store` argument.

    Raises:
        OptionError: `most_bytes` is negative or no integer.
    """

    def __init__(
        self, most_bytes: int, namespace: str = "", store: PrefixStore | None = None
    ) -> None:
        self._most_bytes = arguments.count("most_bytes", most_bytes, least=0)
        self.store, self._namespace = store, namespace
        self._kept: list[_Kept] = []  # the latest last; of all namespaces, which share it
        self._looked_up: list[SavedPrefix | None] = []  # one, if that was done before

    def of(self, namespace: str) -> "PrefixPool":
        """The same pool for a session that holds tokens of a namespace."""
        pool = PrefixPool(self._most_bytes, namespace, self.store)
        pool._kept = self._kept
        return pool

    def held(self, session: object, prompt: NDArray[np.uint32]) -> int:
        """How many of a prompt's first tokens a session holds, or could be given from memory.

        Args:
            session: The one that is to read the prompt, of the thread that asks.
            prompt: Same as in `switch`.
        """
        if not isinstance(session, KeepsPrefixes):
            return 0
        held = session.reachable(common_len(session.reusable_ids, prompt))
        return max(held, *(kept.reachable(prompt) for kept in self._mine()), 0)

    def looked_up(self, session: object, prompt: NDArray[np.uint32], held: int) -> "PrefixPool":
        """The same pool, which has read what is on disk of a prompt: `switch` reads nothing.

        Args:
            session: Tells the shapes of what is kept; another thread may use it meanwhile.
            prompt: Same as in `switch`.
            held: Same as `held` tells.
        """
        pool = self.of(self._namespace)
        if isinstance(session, KeepsPrefixes):
            pool._looked_up = [self._found(session, prompt, held)]
        return pool

    @property
    def nbytes(self) -> int:
        """Bytes of all that are kept."""
        return sum(kept.prefix.nbytes for kept in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def hand_over(self, session: KeepsPrefixes, namespace: str) -> None:
        """Keep what a session holds: it is to be rewound, and is another namespace's then."""
        if len(session.reusable_ids) >= LEAST_TOKENS:
            self._keep(session)
        self._namespace = namespace

    def switch(self, session: KeepsPrefixes, prompt: NDArray[np.uint32]) -> int:
        """Save what a prompt is about to overwrite, and put back what is kept of it.

        Args:
            session: Of the same target as all others.
            prompt: `(tokens,) u32`, at least one.

        Returns:
            How many of the prompt's first tokens are kept, also where more than these are needed to
            put them back.
        """
        held = session.reachable(common_len(session.reusable_ids, prompt))
        best = max(self._mine(), key=lambda kept: kept.reachable(prompt), default=None)
        if len(session.reusable_ids) - held >= LEAST_TOKENS:
            self._keep(session)
        num_known = 0
        if best is not None:
            num_tokens, num_known = best.reachable(prompt), common_len(best.token_ids, prompt)
            if num_tokens - held >= LEAST_TOKENS:
                session.restore_prefix(best.prefix, num_tokens)
                self._use(best)
                held = num_tokens
        found = self._looked_up.pop() if self._looked_up else self._found(session, prompt, held)
        if found is not None and len(found.token_ids) > held:
            session.restore_prefix(found, len(found.token_ids))
        return num_known

    def wait_beside(self, request: Lease) -> None:
        """What is kept on disk is written when no request runs: wait until this one is over."""
        if self.store is not None:
            self.store.writer.wait_beside(request)

    def look_again(self) -> None:
        """A request is over."""
        if self.store is not None:
            self.store.writer.look_again()

    def store_up(self, session: object, since: int = 0, *, ends: bool = True) -> None:
        """Keep on disk what a session holds, if there is a store.

        Args:
            session: Same as in `PrefixStore.save`, and so are the others.
            since: How many of its tokens were there when it was last kept.
            ends: Whether its request has ended.
        """
        if self.store is not None and isinstance(session, KeepsPrefixes):
            self.store.save(session, self._namespace, since, ends=ends)

    def _found(
        self, session: KeepsPrefixes, prompt: NDArray[np.uint32], held: int
    ) -> SavedPrefix | None:
        """What is kept on disk of a prompt, where it is more than a session holds."""
        if self.store is None or len(prompt) - 1 - held < LEAST_TOKENS:
            return None
        return self.store.find(session, prompt, self._namespace, held)

    def _mine(self) -> list["_Kept"]:
        return [kept for kept in self._kept if kept.namespace == self._namespace]

    def _use(self, latest: "_Kept") -> None:
        """Make a prefix the last to go; the order of others stays."""
        self._kept.sort(key=lambda kept: kept is latest)

    def _keep(self, session: KeepsPrefixes) -> None:
        """Keep what a session holds, in place of what that begins with."""
        if not self._most_bytes:
            return
        ids = session.reusable_ids
        mine = self._mine()
        same = next((kept for kept in mine if _begins_with(kept.token_ids, ids)), None)
        if same is not None:
            self._use(same)
            return
        saved = session.saved_prefix()
        if saved.nbytes > self._most_bytes:  # it would only throw all others out
            return
        covered = {id(kept) for kept in mine if _begins_with(ids, kept.token_ids)}
        self._kept[:] = [kept for kept in self._kept if id(kept) not in covered]
        self._kept.append(_Kept(self._namespace, saved))
        while self.nbytes > self._most_bytes:
            del self._kept[0]


class _Kept(NamedTuple):
    """A saved prefix, and its namespace."""

    namespace: str
    prefix: SavedPrefix

    @property
    def token_ids(self) -> NDArray[np.uint32]:
        return self.prefix.token_ids

    def reachable(self, prompt: NDArray[np.uint32]) -> int:
        """How many of a prompt's first tokens it puts back without any being read again."""
        return self.prefix.reachable(common_len(self.token_ids, prompt))


def _begins_with(token_ids: NDArray[np.uint32], others: NDArray[np.uint32]) -> bool:
    return np.array_equal(token_ids[: len(others)], others)


class Reused(NamedTuple):
    """What a session holds of a prompt, the prompt's last token never among it.

    Attributes:
        num_tokens: The first tokens, which need not be computed.
        num_again: Those behind them that it holds, too, and that are computed again: the states of
            recurrent layers can be gone back to at some lengths only.
    """

    num_tokens: int
    num_again: int


def reused(
    session: object, prompt: NDArray[np.uint32], prefixes: PrefixPool | None = None
) -> Reused:
    """What of a prompt the session holds.

    Args:
        session: The target; one that does not know its tokens holds none.
        prompt: `(tokens,) u32`, at least one.
        prefixes: Where more of them may be kept: then the session gets those.
    """
    if not isinstance(session, KeepsPrefixes):
        return Reused(0, 0)
    kept = 0 if prefixes is None else prefixes.switch(session, prompt)
    held = common_len(session.reusable_ids, prompt)
    reachable = session.reachable(held)
    return Reused(reachable, max(kept, held) - reachable)


def common_len(held: NDArray[np.uint32], prompt: NDArray[np.uint32]) -> int:
    """The length of the longest common prefix, which ends before the prompt's last token."""
    held = held[: max(len(prompt) - 1, 0)]
    differing = np.flatnonzero(held != prompt[: len(held)])
    return int(differing[0]) if len(differing) else len(held)
