"""A request to a model, ready to run: what it asks for, and what answers it.

In: a session that is this request's until it ends. Out: its steps. When its turn comes is not known
here (`engine.py`).
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import Sampling
from coordgen_rs.drafting.namespaces import Drafters, Kept
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import Step
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.background import Lease, Task
from coordgen_rs.store.prefixes.pool import PrefixPool
from coordgen_rs.store.prefixes.prefix import KeepsPrefixes

if TYPE_CHECKING:
    from coordgen_rs.grammar.matcher import Matcher


@dataclass(frozen=True)
class ModelRequest:
    """One request, ready to run; fields that `generate` has, too, are the same there.

    Attributes:
        asked: What it asks for.
        namespace: Whose request it is.
        drafters: None decodes plainly.
    """

    asked: RequestOptions
    prompt_ids: NDArray[np.uint32]
    namespace: str
    drafters: Drafters | None
    sampling: Sampling | None
    grammar: "Matcher | None"
    prediction: NDArray[np.uint32] | None
    reuse_prefix: bool
    stats: Stats
    prefixes: PrefixPool | None = None

    def steps(self, session: Session, beside: "Beside") -> Generator[Step]:
        """The steps of the answer; errors are those of `generate` and of `Drafters.memory_of`.

        Args:
            session: Makes them.
            beside: What it reads and writes on disk; it has read.
        """
        try:
            yield from self._steps(session, beside)
        finally:  # it is over before anything is called: an interrupt comes between no two of these
            beside.owner.is_over = True
            if self.prefixes is not None:
                self.prefixes.look_again()

    def _steps(self, session: Session, beside: "Beside") -> Generator[Step]:
        asked, prefixes, num_read = self.asked, self.prefixes, 0
        if prefixes is not None and not self.reuse_prefix:
            if isinstance(session, KeepsPrefixes):  # it overwrites what others go on with
                prefixes.hand_over(session, self.namespace)
            prefixes = None
        if prefixes is not None:
            prefixes.wait_beside(beside.owner)

        def keep(*, ends: bool = True) -> None:
            """Keep what was read and said since it was last kept, or was there already."""
            if prefixes is not None:
                prefixes.store_up(session, self.stats.reused_tokens + num_read, ends=ends)

        def has_read(count: int) -> None:
            nonlocal num_read
            keep(ends=False)
            num_read = count
            if asked["on_read"] is not None:
                asked["on_read"](count)

        begin: Callable[..., Generator[Step]] = plain
        with ExitStack() as used:
            used.callback(keep)
            grammar = None if self.grammar is None else used.enter_context(self.grammar.lent())
            if self.drafters is not None and beside.kept is not None:
                memory = self.drafters.memory_of(beside.kept, session)
                begin = partial(
                    generate,
                    drafter=memory.drafter,
                    history=None if memory.history is None else beside,  # type: ignore[arg-type]
                    prediction=self.prediction,
                    trees=asked["trees"],
                )
            yield from begin(
                session,
                self.prompt_ids,
                max_new_tokens=asked["max_new_tokens"],
                sampling=self.sampling,
                ignore_eos=asked["ignore_eos"],
                reuse_prefix=self.reuse_prefix,
                prefixes=self.prefixes,
                grammar=grammar,
                logprobs=asked["logprobs"],
                on_read=has_read,
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
        self.owner, self._on_done = Lease(), on_done
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
        return replace(request, prefixes=prefixes)

    def refresh(self) -> None:
        """It was done by `read`."""

    def add(self, prompt_ids: ArrayLike, answer_ids: ArrayLike) -> None:
        """Store the finished request; errors are those of `History.add_later`."""
        if self.kept is not None and self.kept.history is not None:
            self.storing = self.kept.history.add_later(prompt_ids, answer_ids, self._on_done)
