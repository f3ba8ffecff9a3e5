"""A request to a model: what it asks for, and what it holds from its beginning to its end.

In: a session that is this request's until it ends. Out: its steps. When its turn comes is not known
here (`engine.py`).
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import Sampling
from coordgen_rs.drafting.drafter import Drafters, DraftState
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import Step
from coordgen_rs.model.answer import Detokenized
from coordgen_rs.model.events import Events
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.background import Lease, Task
from coordgen_rs.store.prefixes.pool import PrefixPool
from coordgen_rs.store.prefixes.prefix import KeepsPrefixes

if TYPE_CHECKING:
    from coordgen_rs.grammar.matcher import Matcher


@dataclass(eq=False)
class ModelRequest:
    """One request; fields that `generate` has, too, are the same there.

    It is the history of its own loop: what is drafted from is read before it begins, and what it
    has said is stored while others take steps.

    Attributes:
        options: What it asks for.
        namespace: Whose request it is.
        drafters: None decodes plainly.
        detokenize: What makes text of its steps.
        prefixes: What is kept of earlier requests; None for nothing, and until it has read.
        drafts: What drafts for its namespace; None until it has read.
        owner: Whose is what it uses until it is over. What others hold of a request is this alone:
            the request refers to its events, and so to who reads them.
        running: What is made of its steps; None until it has a slot.
        storing: The storing of the finished request; None where there is none.
        events: Where the reads go.
        on_read: Called behind each chunk of the prompt with how many tokens were computed.
        on_stored: Called, by the thread that writes, when the request is stored.
    """

    options: RequestOptions
    prompt_ids: NDArray[np.uint32]
    namespace: str
    drafters: Drafters | None
    sampling: Sampling | None
    grammar: "Matcher | None"
    prediction: NDArray[np.uint32] | None
    reuse_prefix: bool
    stats: Stats
    detokenize: Callable[[Generator[Step]], Generator[Detokenized]]
    prefixes: PrefixPool | None = None
    drafts: DraftState | None = None
    owner: Lease = field(default_factory=Lease)
    running: Generator[Detokenized] | None = None
    storing: Task[None] | None = None
    events: Events = field(init=False)
    on_read: Callable[[int], object] = field(init=False)
    on_stored: Callable[[], object] = field(init=False)

    def read_files(self, prefixes: PrefixPool | None, session: Session, held: int) -> None:
        """Read what it needs from disk.

        Args:
            prefixes: What is kept of earlier requests of its namespace; None for nothing.
            session: It may end meanwhile, and another may have its session: that is not touched.
            held: Same as in `PrefixPool.looked_up`.

        Raises:
            HistoryError, HistoryMismatchError, LookupTableError: Same as in `Drafters.acquire`.
        """
        if self.drafters is not None:
            self.drafts = self.drafters.acquire(self.namespace, self.owner)
            if self.drafts.history is not None:
                self.drafts.history.refresh()
        if prefixes is not None and self.reuse_prefix:
            prefixes = prefixes.looked_up(session, self.prompt_ids, held)
        self.prefixes = prefixes

    def steps(self, session: Session) -> Generator[Step]:
        """The steps of the answer; errors are those of `generate` and of `Drafters.drafter_of`."""
        prefixes, num_read = self.prefixes, 0
        if prefixes is not None and not self.reuse_prefix:
            if isinstance(session, KeepsPrefixes):  # it overwrites what others go on with
                prefixes.hand_over(session, self.namespace)
            prefixes = None

        def keep(*, ends: bool = True) -> None:
            """Keep what was read and said since it was last kept, or was there already."""
            if prefixes is not None:
                prefixes.store_up(session, self.stats.reused_tokens + num_read, ends=ends)

        def has_read(count: int) -> None:
            nonlocal num_read
            keep(ends=False)
            num_read = count
            self.on_read(count)

        try:
            if prefixes is not None:
                prefixes.wait_beside(self.owner)
            with ExitStack() as used:
                used.callback(keep)
                grammar = None if self.grammar is None else used.enter_context(self.grammar.lent())
                yield from self._loop(session)(
                    session,
                    self.prompt_ids,
                    max_new_tokens=self.options["max_new_tokens"],
                    sampling=self.sampling,
                    ignore_eos=self.options["ignore_eos"],
                    reuse_prefix=self.reuse_prefix,
                    prefixes=self.prefixes,
                    grammar=grammar,
                    logprobs=self.options["logprobs"],
                    on_read=has_read,
                    stats=self.stats,
                )
        finally:  # it is over before anything is called: an interrupt comes between no two of these
            self.owner.is_over = True
            if self.prefixes is not None:
                self.prefixes.look_again()

    def _loop(self, session: Session) -> Callable[..., Generator[Step]]:
        """What makes the steps: `generate`, or `plain` without drafters."""
        if self.drafters is None or self.drafts is None:
            return plain
        return partial(
            generate,
            drafter=self.drafters.drafter_of(self.drafts, session),
            history=None if self.drafts.history is None else self,  # type: ignore[arg-type]
            prediction=self.prediction,
            trees=self.options["trees"],
        )

    def refresh(self) -> None:
        """It was done by `read_files`."""

    def add(self, prompt_ids: ArrayLike, answer_ids: ArrayLike) -> None:
        """Store the finished request; errors are those of `History.add_later`."""
        if self.drafts is not None and self.drafts.history is not None:
            history = self.drafts.history
            self.storing = history.add_later(prompt_ids, answer_ids, self.on_stored)
