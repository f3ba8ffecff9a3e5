"""One request's place in a batch: a `Session` whose runs are shared with those of others.

In: what its request asks for, a tree to verify or tokens to read. Out: what came of it, once the
batch has run; asked for earlier, it runs alone. Who else takes part is not known here.
"""

from collections.abc import Callable
from collections.abc import Sequence as Several
from itertools import count

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.runtime.caches.cached_session import CachedSession, turn_of
from coordgen_rs.runtime.caches.kv_cache import Cache
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import OnLogits, OnRead, Prefill, SharedSession, StepCost

_NUMBERS = count()


class Sequence(CachedSession, SharedSession):
    """A session that shares its runs.

    Args:
        session: The target of all sequences of its batch.
        run: Runs a step of some of them, if they wait: `Batch.run`.
        number: Its number there, from 0.
        cache: Its keys and values.

    Attributes:
        number: The `number` argument.
        steps: Its own step inputs' buffers, by rows.
        reading_since: The smaller, the longer it has been reading.
        num_gained: Tokens of steps that it has committed so far, of all its requests.
        Others are those of `SharedSession` and `CachedSession`.
    """

    def __init__(
        self,
        session: OrtSession,
        run: Callable[[Several["Sequence"]], object],
        number: int,
        cache: Cache,
    ) -> None:
        super().__init__(session.bundle, cache, session.allowed_commits)
        self._run, self.number = run, number
        self.capacity = session.capacity
        self.is_exact_after_prefill = session.is_exact_after_prefill
        self.is_exact_on_branches = session.is_exact_on_branches
        self.is_exact_at_any_rows = session.is_exact_at_any_rows
        self.steps = {rows: session.device.buffers(rows) for rows in session.widths}
        self.step_inputs: Several[StepInputs] = [it.inputs for it in self.steps.values()]
        self.step_costs: Several[StepCost] | None = session.step_costs
        self.reading_since = self.num_gained = self._turn = 0

    def ask_to_read(self, token_ids: NDArray[np.uint32], on_logits: OnLogits = None) -> None:
        """Ask for tokens to be read; same as in `SharedSession`."""
        token_ids = self._readable(token_ids)
        self._verified = self._failure = None
        self.asked = Prefill(token_ids, self.length, on_logits) if len(token_ids) else None
        self.reading_since = next(_NUMBERS)
        self._turn = turn_of(self, len(token_ids))

    def prefill(
        self,
        token_ids: NDArray[np.uint32],
        *,
        on_logits: OnLogits = None,
        on_read: OnRead = None,
    ) -> SwitchReport | None:
        """Same as in `Session`; it runs alone."""
        self.ask_to_read(token_ids, on_logits)
        while self.rest:
            self.run_alone()
            self.check()
            if on_read is not None:
                on_read(len(token_ids) - self.rest)
        return None

    def num_readable(self, asked: Prefill) -> int:
        """How many of the tokens that it has `asked` to read one run may read.

        A state is kept where a turn may end.
        """
        to_turn, rest = self._turn - self.length, len(self.left(asked))
        return min(rest, to_turn) if to_turn > 0 else rest

    def run_alone(self) -> None:
        """Run what was asked for, without others."""
        self._run([self])

    def begin_run(self, *, reads: bool) -> None:
        """A run of the batch begins, whether or not it has rows of this sequence.

        Args:
            reads: Whether it has, and they are a chain that is to be committed whole.
        """
        self._ask_again()
        self._written = self._run_at = self.length  # until all of it is
        if self.cache.states is not None:
            self.cache.states.before_run(self.length, reads=reads)

    def write(self, token_ids: NDArray[np.int64], first_row: int) -> None:
        """The run has rows of these tokens behind the committed ones, from `first_row` on."""
        self._token_ids[self.length : self.length + len(token_ids)] = token_ids
        if self.cache.states is not None:
            self.cache.states.first_row = first_row

    def end_run(self) -> None:
        """All layers have run."""
        if self.cache.states is not None:
            self.cache.states.after_run(self.length)

    def has_verified(self, inputs: StepInputs, logits: NDArray[np.float32]) -> None:
        """The run is over that was to verify a tree."""
        self._written = self.length + inputs.num_nodes
        self.asked, self._verified = None, (inputs, logits)

    def has_read(self, num_tokens: int) -> None:
        """The run is over that has read some of the tokens: they are committed."""
        if isinstance(self.asked, Prefill):
            self._written = self.length + num_tokens
            self._commit(np.arange(num_tokens, dtype=np.uint32))
            states = self.cache.states
            if states is not None and self.length == self._turn:
                states.keep_turn(self.length)
            if not self.rest:
                self.asked = None

    def take_prefix(self, other: "Sequence", num_tokens: int) -> None:
        """Commit the first tokens of another sequence, in place of all that is there.

        Where layers are recurrent, those up to the latest of its snapshots.

        Args:
            other: One of the same batch.
            num_tokens: At most as many as its `reusable_ids`, and reachable there.
        """
        held = other.prefix_in_place(num_tokens)
        self.restore_prefix(held, held.reachable(num_tokens))

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Same as in `Session`."""
        super().commit(rows)
        self.num_gained += len(rows)

    def close(self) -> None:
        """Release nothing: the graphs are the batch's."""
