"""A request to a model, ready to run: what it asks for, and what answers it.

In: a session that is this request's until it ends. Out: its steps. When its turn comes is not known
here (`turns.py`, `rounds.py`).
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Sampling
from coordgen_rs.drafting.namespaces import Drafters
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import Step
from coordgen_rs.model.options import AskedOptions
from coordgen_rs.target.prefixes import PrefixPool
from coordgen_rs.target.session import KeepsPrefixes, OnRead, Session

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

    asked: AskedOptions
    prompt_ids: NDArray[np.uint32]
    namespace: str
    drafters: Drafters | None
    sampling: Sampling | None
    grammar: "Matcher | None"
    prediction: NDArray[np.uint32] | None
    reuse_prefix: bool
    prefixes: PrefixPool | None
    stats: Stats

    def steps(self, session: Session) -> Generator[Step]:
        """The steps of the answer; errors are those of `generate` and of `Drafters.of`."""
        with ExitStack() as used:
            prefixes = self.prefixes
            if prefixes is not None and not self.reuse_prefix:
                if isinstance(session, KeepsPrefixes):  # it overwrites what others go on with
                    prefixes.hand_over(session, self.namespace)
                prefixes = None
            if prefixes is not None:
                used.enter_context(prefixes.beside_request())
            keeping = _Keeping(session, prefixes, self.asked.on_read, self.stats)
            used.callback(keeping.ends)
            grammar = None if self.grammar is None else used.enter_context(self.grammar.lent())
            begin: Callable[..., Generator[Step]] = plain
            if self.drafters is not None:
                memory = used.enter_context(self.drafters.used(self.namespace, session))
                begin = partial(
                    generate,
                    drafter=memory.drafter,
                    history=memory.history,
                    prediction=self.prediction,
                    trees=self.asked.trees,
                )
            yield from self._begun(partial(begin, on_read=keeping.has_read), session, grammar)

    def _begun(
        self, begin: Callable[..., Generator[Step]], session: Session, grammar: "Matcher | None"
    ) -> Generator[Step]:
        return begin(
            session,
            self.prompt_ids,
            max_new_tokens=self.asked.max_new_tokens,
            sampling=self.sampling,
            ignore_eos=self.asked.ignore_eos,
            reuse_prefix=self.reuse_prefix,
            prefixes=self.prefixes,
            grammar=grammar,
            logprobs=self.asked.logprobs,
            stats=self.stats,
        )


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
