"""One request's place in a batch: a `Session` whose runs are shared with those of others.

In: what its request asks for, a tree to verify or tokens to read. Out: what came of it, once the
batch has run; asked for earlier, it runs alone. Who else takes part is not known here.
"""

from collections.abc import Sequence as Several
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs, SwitchReport
from coordgen_rs.errors import CallOrderError, ShapeError, arguments
from coordgen_rs.runtime.batch.sharing import Offers, SharesRuns
from coordgen_rs.runtime.cached_session import CachedSession, turn_of
from coordgen_rs.runtime.kv_cache import KvCache
from coordgen_rs.runtime.session import OnLogits, OnRead, StepCost

if TYPE_CHECKING:
    from coordgen_rs.runtime.batch.batch import Batch


_NUMBERS = count()


class Verifying(NamedTuple):
    """A request that decodes.

    Attributes:
        offers: What drafts for it.
    """

    offers: Offers


class Reading(NamedTuple):
    """A request whose prompt is read.

    What is left of it follows from what is committed: an interrupt comes between no two of these.

    Attributes:
        token_ids: All of it, `(tokens,) u32`.
        start: How many tokens stand before it.
        on_logits: Same as in `Session.prefill`.
    """

    token_ids: NDArray[np.uint32]
    start: int
    on_logits: OnLogits


class Sequence(CachedSession, SharesRuns):
    """A session that shares its runs.

    Args:
        batch: Runs it.
        number: Its place there.
        cache: Its keys and values.

    Attributes:
        number: The `number` argument.
        steps: Its own step inputs' buffers, by rows.
        asked: What it waits for; None where it waits for nothing.
        reading_since: The smaller, the longer it has been reading.
        num_gained: Tokens of steps that it has committed so far, of all its requests.
        is_driven: Same as in `SharesRuns`.
    """

    def __init__(self, batch: "Batch", number: int, cache: KvCache) -> None:
        session = batch.session
        super().__init__(session.bundle, cache)
        self.cache: KvCache = cache
        self._batch, self.number = batch, number
        self._capacity = session.capacity
        self.is_exact_after_prefill = session.is_exact_after_prefill
        self.is_exact_on_branches = session.is_exact_on_branches
        self.is_exact_at_any_rows = session.is_exact_at_any_rows
        self.steps = {rows: session.device.buffers(rows) for rows in session.widths}
        self.step_inputs: Several[StepInputs] = [it.inputs for it in self.steps.values()]
        self.step_costs: Several[StepCost] | None = session.step_costs
        self.asked: Verifying | Reading | None = None
        self.reading_since = self.num_gained = 0
        self.is_driven, self._turn = False, 0
        self._failure: Exception | None = None
        self._verified: tuple[StepInputs, NDArray[np.float32]] | None = None

    @property
    def allowed_commits(self) -> Several[str]:
        """Ways to commit that are allowed."""
        return self._batch.session.allowed_commits

    def offer(self, offers: Offers) -> None:
        """Ask for a step: what it holds is told by `taken` once it has run."""
        self._verified = self._failure = None
        self.asked = Verifying(offers)

    def taken(self) -> StepInputs:
        """The inputs of the step that was asked for, which has run, or runs now, alone.

        Raises:
            CallOrderError: None was asked for.
            Others are those of `Session.step`, and of what drafts.
        """
        self._run_alone_if_asked()
        if self._verified is None:
            raise CallOrderError("no step was asked for")
        return self._verified[0]

    def step(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Same as in `Session`; where others took part, the logits are those of its nodes alone.

        Raises:
            CallOrderError: Another request has asked for a step.
            Others are those of `OrtSession.step`.
        """
        if self._verified is None or self._verified[0] is not inputs:
            self.offer(_Filled(inputs))
            self._run_alone_if_asked()
        verified, self._verified = self._verified, None
        if verified is None:
            raise CallOrderError("the step was asked for by another request")
        return verified[1]

    def ask_to_read(self, token_ids: NDArray[np.uint32], on_logits: OnLogits = None) -> None:
        """Ask for tokens to be read behind the committed ones; `rest` tells how many are left.

        Args:
            token_ids: `(tokens,) u32`.
            on_logits: Same as in `prefill`.

        Raises:
            OptionError, TokenOutOfRangeError: Same as in `OrtSession.prefill`.
            ShapeError: The tokens do not fit into the cache, or have more than one dimension.
        """
        token_ids = arguments.token_ids("prefill", token_ids, self.vocab_size)
        if self.length + len(token_ids) > self.capacity:
            raise ShapeError(
                f"{self.length} committed and {len(token_ids)} new tokens exceed the capacity of "
                f"{self.capacity}"
            )
        self._verified = self._failure = None
        self.asked = Reading(token_ids, self.length, on_logits) if len(token_ids) else None
        self.reading_since = next(_NUMBERS)
        self._turn = turn_of(self, len(token_ids))

    @property
    def rest(self) -> int:
        """Tokens that are still to be read."""
        return len(self.left(self.asked)) if isinstance(self.asked, Reading) else 0

    def left(self, asked: Reading) -> NDArray[np.uint32]:
        """What is still to be read of what it has `asked`, `(tokens,) u32`."""
        return asked.token_ids[self.length - asked.start :]

    def check(self) -> None:
        """Raise what a run of others has failed with."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self.asked = None
            raise failure

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

    def num_readable(self, asked: Reading) -> int:
        """How many of the tokens that it has `asked` to read one run may read.

        A state is kept where a turn may end.
        """
        to_turn, rest = self._turn - self.length, len(self.left(asked))
        return min(rest, to_turn) if to_turn > 0 else rest

    @property
    def is_waiting(self) -> bool:
        """Whether what was asked for has not run."""
        if isinstance(self.asked, Reading) and not self.rest:
            self.asked = None  # an interrupt came before it could be told
        return self.asked is not None

    def run_alone(self) -> None:
        """Run what was asked for, without others."""
        self._batch.run([self])

    def withdraw(self) -> None:
        """Ask for nothing any more."""
        self.asked = self._verified = self._failure = None

    def failed(self, error: Exception) -> None:
        """Take what a run has failed with; it is raised when the result is asked for."""
        self.asked, self._verified, self._failure = None, None, error

    def begin_run(self, *, reads: bool) -> None:
        """A run of the batch begins, whether or not it has rows of this sequence.

        Args:
            reads: Whether it has, and they are a chain that is to be committed whole.
        """
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
        if isinstance(self.asked, Reading):
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

    def close(self) -> None:
        """Release nothing: the graphs are the batch's."""

    def _read(self, token_ids: NDArray[np.uint32]) -> SwitchReport | None:
        return self.prefill(token_ids)

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Same as in `Session`."""
        super().commit(rows)
        self.num_gained += len(rows)

    def _keep_given(self, rows: NDArray[np.intp], start: int) -> None:
        """Nothing is kept."""

    def _forget_given(self, length: int) -> None:
        """Nothing is kept."""

    def _run_alone_if_asked(self) -> None:
        if self.asked is not None:
            self.run_alone()
        self.check()


class _Filled:
    """Offers a step that is filled already, as a whole."""

    def __init__(self, inputs: StepInputs) -> None:
        self._inputs = inputs

    def propose(self, past_len: int) -> StepInputs:
        return self._inputs

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        num_nodes = self._inputs.num_nodes
        return np.ones(num_nodes, np.float32), num_nodes

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        return self._inputs
