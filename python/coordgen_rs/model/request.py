"""A request to a model, ready to run: what it asks for, and what answers it.

In: a session that is this request's until it ends. Out: its steps. When its turn comes is not known
here (`engine.py`).
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import Sampling
from coordgen_rs.drafting.namespaces import Drafters, Kept
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import Step
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.target.prefixes import PrefixPool
from coordgen_rs.target.session import KeepsPrefixes, OnRead, Session
from coordgen_rs.threads.owner import Owner
from coordgen_rs.threads.tasks import Task

if TYPE_CHECKING:
    from coordgen_rs.grammar.matcher import Matcher


@dataclass(frozen=True)
class ModelRequest:
    """One request, ready to run; fields that `generate` has, too, are the same there.

    Attributes:
        asked: What it asks for.
        namespace: Whose request it is.
        drafters: None decodes plainly.
        beside: What is read and written on disk beside its steps; None does so within them.
    """

    asked: RequestOptions
    prompt_ids: NDArray[np.uint32]
    namespace: str
    drafters: Drafters | None
    sampling: Sampling | None
    grammar: "Matcher | None"
    prediction: NDArray[np.uint32] | None
    reuse_prefix: bool
    prefixes: PrefixPool | None
    stats: Stats
    beside: "Beside | None" = None

    def steps(self, session: Session) -> Generator[Step]:
        """The steps of the answer; errors are those of `generate` and of `Drafters.of`."""
        owner = Owner() if self.beside is None else self.beside.owner
        try:
            yield from self._steps(session, owner)
        finally:  # it is over before anything is called: an interrupt comes between no two of these
            owner.is_over = True
            if self.prefixes is not None:
                self.prefixes.look_again()

    def _steps(self, session: Session, owner: Owner) -> Generator[Step]:
        with ExitStack() as used:
            prefixes = self.prefixes
            if prefixes is not None and not self.reuse_prefix:
                if isinstance(session, KeepsPrefixes):  # it overwrites what others go on with
                    prefixes.hand_over(session, self.namespace)
                prefixes = None
            if prefixes is not None:
                prefixes.wait_beside(owner)
            keeping = _Keeping(session, prefixes, self.asked["on_read"], self.stats)
            used.callback(keeping.ends)
            grammar = None if self.grammar is None else used.enter_context(self.grammar.lent())
            begin: Callable[..., Generator[Step]] = plain
            if self.drafters is not None:
                kept = None if self.beside is None else self.beside.kept
                kept = kept or self.drafters.used(self.namespace, owner)
                memory = self.drafters.memory_of(kept, session)
                history: Any = memory.history
                if history is not None and self.beside is not None:
                    history = self.beside
                begin = partial(
                    generate,
                    drafter=memory.drafter,
                    history=history,
                    prediction=self.prediction,
                    trees=self.asked["trees"],
                )
            yield from self._begun(partial(begin, on_read=keeping.has_read), session, grammar)

    def _begun(
        self, begin: Callable[..., Generator[Step]], session: Session, grammar: "Matcher | None"
    ) -> Generator[Step]:
        return begin(
            session,
            self.prompt_ids,
            max_new_tokens=self.asked["max_new_tokens"],
            sampling=self.sampling,
            ignore_eos=self.asked["ignore_eos"],
            reuse_prefix=self.reuse_prefix,
            prefixes=self.prefixes,
            grammar=grammar,
            logprobs=self.asked["logprobs"],
            stats=self.stats,
        )


class Beside:
    """What a request reads and writes on disk, while others take steps.

    It is the history of its request's loop, for which it reads before, and writes later.

    Args:
        on_done: Called, by the thread that writes, when the request is stored.

    Attributes:
        owner: Whose is what the request uses until it is over.
        kept: What is kept for its namespace; None until it was read.
        storing: The storing of the finished request; None where there is none.
    """

    def __init__(self, on_done: Callable[[], object]) -> None:
        self.owner, self._on_done = Owner(), on_done
        self.kept: Kept | None = None
        self.storing: Task[None] | None = None

    def read(self, request: ModelRequest, session: Session, held: int) -> ModelRequest:
        """Read what a request needs; gives the request that needs to read nothing any more.

        Args:
            request: It may end meanwhile, and another may have its session: that is not touched.
            session: Same as in `PrefixPool.looked_up`.
            held: Same as in `PrefixPool.looked_up`.

        Raises:
            HistoryError, HistoryMismatchError, LookupTableError: Same as in `Drafters.of`.
        """
        if request.drafters is not None:
            self.kept = request.drafters.used(request.namespace, self.owner)
            if self.kept.history is not None:
                self.kept.history.refresh()
        prefixes = request.prefixes
        if prefixes is not None and request.reuse_prefix:
            prefixes = prefixes.looked_up(session, request.prompt_ids, held)
        return replace(request, prefixes=prefixes, beside=self)

    def refresh(self) -> None:
        """It was done by `read`."""

    def add(self, prompt_ids: ArrayLike, answer_ids: ArrayLike) -> None:
        """Store the finished request; errors are those of `History.add_later`."""
        if self.kept is not None and self.kept.history is not None:
            self.storing = self.kept.history.add_later(prompt_ids, answer_ids, self._on_done)


class _Keeping:
    """What is kept on disk of a request, while its prompt is read and when it ends.

    Args:
        session: What answers it.
        prefixes: Where it is kept; None keeps nothing.
        on_read: Told of what is read, too.
        stats: Tell what the session held when the request began.
    """

    def __init__(
        self, session: Session, prefixes: PrefixPool | None, on_read: OnRead, stats: Stats
    ) -> None:
        self._session, self._prefixes, self._on_read = session, prefixes, on_read
        self._stats = stats
        self._num_read = 0

    def has_read(self, num_read: int) -> None:
        """A part of the prompt was read: it is kept beside the rest."""
        if self._prefixes is not None:
            self._prefixes.store_up(self._session, self._since, ends=False)
        self._num_read = num_read
        if self._on_read is not None:
            self._on_read(num_read)

    def ends(self) -> None:
        """The request has ended."""
        if self._prefixes is not None:
            self._prefixes.store_up(self._session, self._since)

    @property
    def _since(self) -> int:
        """Tokens that were kept last, or were there already."""
        return self._stats.reused_tokens + self._num_read
