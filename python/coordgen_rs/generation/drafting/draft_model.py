"""A draft model: a smaller model whose guesses the target verifies (EdgeLLM III-B, III-C).

In: a session of the draft model. Out: a token tree in the core, which grows by one token per step.
The core decides which token is read next, when to stop and what pays; the model's steps are run
here.
"""

import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np

from coordgen_rs._core import Drafter, DraftMethod, ModelDraft, StepInputs, least_that_pays
from coordgen_rs.errors import DraftModelError, NonFiniteLogitsError, arguments
from coordgen_rs.generation.drafting.proposer import WrappedDrafter
from coordgen_rs.loading.session import open_session
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS, KvCache
from coordgen_rs.runtime.heads import DraftHead
from coordgen_rs.runtime.heads.assistant import AssistantSession
from coordgen_rs.runtime.heads.mtp import MtpSession
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.background import NotCopied
from coordgen_rs.text.tokenizer import Tokenizer

ANY_DEPTH = 1 << 32
"""Deeper than any draft."""


class DraftModel(NotCopied):
    """A model that drafts for one target. What it has read stays in the cache of its session.

    Args:
        session: The draft model; nothing else may use it.
        least_that_pays: Cost of drafting and verifying a token, as a share of a target's step. A
            branch less likely than that is not followed, and with 1 the model is never run. 0, as
            in the paper, if the cost does not matter.
        method: Drafts as this method does; None as "edgellm-ours".

    Attributes:
        session: The `session` argument.
        least_that_pays: The `least_that_pays` argument.
        clock: Tells the time of the session in seconds, which may be simulated.
        core: The tree, for `Drafter(model_draft=...)`.

    Raises:
        OptionError: `least_that_pays` is not 0 to 1.
        DraftModelError: The model has recurrent layers.
    """

    _is_broken = False

    def __init__(
        self,
        session: Session,
        *,
        least_that_pays: float = 0.0,
        method: DraftMethod | None = None,
    ) -> None:
        least_that_pays = arguments.number("least_that_pays", least_that_pays)
        arguments.of_type("method", method, DraftMethod)
        if isinstance(session, OrtSession) and session.cache.states is not None:
            # All branches of its tree stay committed, each with keys and values of its own.
            raise DraftModelError(
                f"{session.bundle.shown} has recurrent layers, whose states hold one branch of a "
                "tree alone: it cannot draft for another model"
            )
        self.session, self.least_that_pays = session, least_that_pays
        self.clock: Callable[[], float] = getattr(session, "clock", time.perf_counter)
        self._last_us: deque[float] = deque(maxlen=8)  # of steps of a token, beside no loads
        self.core = ModelDraft(
            session.step_inputs,
            session.vocab_size,
            end_token_ids=session.end_token_ids,
            costs=session.step_costs,
            least_that_pays=least_that_pays,
            method=method,
            num_scored=session.num_scored if isinstance(session, DraftHead) else None,
        )

    @classmethod
    def mtp_of(cls, target: Session) -> Self | None:
        """The target's own head for further tokens (MTP) or its drafter; None for neither.

        Raises:
            BundleError: It cannot be loaded.
        """
        if not isinstance(target, OrtSession) or not target.bundle.manifest.has_draft_head:
            return None
        kind = MtpSession if target.bundle.manifest.assistant is None else AssistantSession
        session = kind(target)
        return cls(session, least_that_pays=_least_that_pays(session, target))

    @classmethod
    def open(cls, path: Path | str, target: OrtSession) -> Self:
        """Open a bundle as the draft model of `target`; measured costs decide what pays.

        Its keys and values are held as those of the target. A bundle for an NPU holds them in one
        form alone, so it drafts only for a target that holds them in float32.

        Args:
            path: The bundle's directory.
            target: The target it will draft for.

        Raises:
            DraftModelError: It has another tokenizer or vocabulary.
            BundleError: It cannot be used.
        """
        cache = target.cache
        form = cache.form if isinstance(cache, KvCache) else KV_FORMS[0]
        session = open_session(path, threads=target.threads, kv_cache=form)
        _check_same_tokens(session, target)
        return cls(session, least_that_pays=_least_that_pays(session, target))

    @property
    def is_own_head(self) -> bool:
        """Whether it is the target's own head for further tokens."""
        return isinstance(self.session, DraftHead)

    @property
    def step_us(self) -> float:
        """Microseconds of the fastest of the last steps that read one token; 0 before the first."""
        return min(self._last_us, default=0.0)

    def reading_cost(self) -> float:
        """Microseconds of reading what it has not read yet; 0 for one that reads no text."""
        session = self.session
        if isinstance(session, DraftHead) and not session.reads_text:
            return 0.0
        return self.core.reading_cost()

    def close(self) -> None:
        """Release what the draft model holds."""
        self.session.close()

    def shaped(self, method: DraftMethod) -> "DraftModel":
        """The same model, drafting as a method does; with a new tree if it drafts otherwise."""
        least = self.least_that_pays if method.weighs_model else 0.0
        if least == self.least_that_pays and self.core.drafts_as(method):
            return self
        return DraftModel(self.session, least_that_pays=least, method=method)

    def drafter(self, drafter: Drafter, max_tokens: int, **options: bool) -> "ModelDrafter":
        """A `ModelDrafter` of this model, as up to version 0.2.

        Args:
            drafter: Same as in `ModelDrafter`.
            max_tokens: Same as in `ModelDrafter`.
            options: Same as in `ModelDrafter`.
        """
        told = "DraftModel.drafter(drafter, n) is now ModelDrafter(drafter, draft_model, n)"
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return ModelDrafter(drafter, self, max_tokens, **options)

    def draft(self, max_tokens: int, max_depth: int = ANY_DEPTH) -> int:
        """Grow the tree until it is good enough or full; how many steps that took.

        Args:
            max_tokens: Same as in `step`.
            max_depth: Same as in `step`.
        """
        num_steps = 0
        while self.step(max_tokens, max_depth):
            num_steps += 1
        return num_steps

    def step(
        self, max_tokens: int, max_depth: int = ANY_DEPTH, *, provisional: bool = False
    ) -> bool:
        """Read one more token, or what the model has not yet read of the request.

        Anything may happen between two steps; the next one continues from there.

        Args:
            max_tokens: Most tokens that the tree may hold.
            max_depth: Most tokens of a branch.
            provisional: Go on although the tree is good enough: the target verifies it meanwhile.
                The next tree is the same, and takes fewer steps.

        Returns:
            False if nothing was done, because the tree is good enough, or because drafting never
            pays, as the core decides.

        Raises:
            NonFiniteLogitsError: The model gives NaN; a target's own head then drafts nothing more.
        """
        session = self.session
        if self._is_broken or not self.catch_up():
            return False
        if provisional and session.length + max_tokens >= session.capacity:
            return False  # the next draft finds the room that it would have
        inputs = self.core.next_step(max_tokens, max_depth, provisional=provisional)
        if inputs is None or session.length + inputs.num_nodes > session.capacity:
            return False  # a step that is not read is asked for again
        start, length = self.clock(), session.length
        logits = session.step(inputs)
        try:
            # Rows of all branches stay in their slots: a later row sees those on its path.
            session.commit(np.arange(inputs.num_nodes, dtype=np.uint32))
            self.core.read(logits, inputs.num_nodes - 1)
        except BaseException as error:
            session.rewind(length)  # what is not read is asked for again
            if not (isinstance(error, NonFiniteLogitsError) and isinstance(session, DraftHead)):
                raise
            self._is_broken = True
            warnings.warn(
                "the model's head for further tokens (MTP) gives NaN or infinite logits: it drafts "
                "nothing more; export the bundle again",
                stacklevel=2,
            )
            return False
        if inputs.num_nodes == 1 and not provisional:
            self._last_us.append(1e6 * (self.clock() - start))
        return True

    def catch_up(self) -> bool:
        """Follow the request, and read what is too long for a step.

        Returns:
            False if it is too long for the cache: then nothing can be drafted.
        """
        realignment = self.core.take_realignment()
        if realignment is not None:
            length, rows = realignment
            self.session.rewind(length)
            self.session.commit(rows)
        num_unread = self.core.num_unread
        if num_unread > self.session.step_inputs[-1].rows:
            if self.session.length + num_unread > self.session.capacity:
                return False
            self.session.prefill(self.core.unread()[:-1])
            self.core.skip(num_unread - 1)
        return True


class ModelDrafter(WrappedDrafter):
    """A drafter with a draft model; used like any drafter.

    Args:
        drafter: A drafter with the source "draft-model" over the same tree.
        model: Runs before each proposal.
        max_tokens: Most tokens that the model drafts per proposal.
        in_gaps: Whether it keeps drafting while the target waits for its blocks.
        weighs: Whether it is run only where that pays by measured costs.

    Attributes:
        model: The `model` argument.
        model_s: Seconds that the model has run for proposals. All of these are in total.
        drafting_s: Seconds of them in which it drafted, and did not read the text.
        gap_s: Seconds that it has run while the target waited.
        num_runs: Its steps for proposals.
        num_provisional: Its steps while the target waited.
        num_drafted: Tokens that it drafted.
    """

    def __init__(
        self,
        drafter: Drafter,
        model: DraftModel,
        max_tokens: int,
        *,
        in_gaps: bool = True,
        weighs: bool = True,
    ) -> None:
        super().__init__(drafter)
        self.model, self._max_tokens = model, max_tokens
        self._in_gaps, self._weighs = in_gaps, weighs
        self._drafts = False  # the model drafts the step at hand
        self._max_depth = ANY_DEPTH
        self._gap_step_us = 0.0  # what a step takes beside loads, about
        self.model_s = self.drafting_s = self.gap_s = 0.0
        self.num_runs = self.num_provisional = self.num_drafted = 0

    def propose(self, past_len: int) -> StepInputs:
        """Let the model draft if that pays, then propose; same as in `Drafter`."""
        clock = self.model.clock
        start = clock()
        self._drafts = not self._weighs or self._pays(past_len)
        if self._drafts:
            room, self._max_depth = self.drafter.draft_room(past_len)
            room = min(room, self._max_tokens)
            self._drafts = min(room, self._max_depth) > 0  # nothing is read in vain
        if self._drafts:
            self.model.catch_up()
            caught_up = clock()
            self.num_runs += self.model.draft(room, self._max_depth)
            # What it really takes: between its steps there is more to do than they cost.
            drafting, reading = clock() - caught_up, caught_up - start
            self.drafter.model_ran(1e6 * drafting, catching_up=1e6 * reading)
            self.num_drafted += self.model.core.num_drafted
            self.drafting_s += drafting
        self.model_s += clock() - start
        return super().propose(past_len)

    def _pays(self, past_len: int) -> bool:
        model = self.model
        return self.drafter.model_pays(
            past_len, a_token=model.least_that_pays, catching_up=model.reading_cost()
        )

    def draft_on(self, wait_us: float) -> bool:
        """Draft one more token while the target waits for its blocks (EdgeLLM III-D).

        What was read of what follows the target's answer takes no step of the next draft. An error
        ends it in this step of the target, whose answer it does not break: the next draft does
        the same again, and raises what it then meets.

        Args:
            wait_us: Microseconds that it is expected to wait: nothing is begun that takes longer.

        Returns:
            False if there is nothing more to draft in this time.
        """
        if not (self._in_gaps and self._drafts):
            return False
        expected_us = max(self.model.step_us, self._gap_step_us)
        if expected_us > wait_us:
            self._gap_step_us *= 0.9  # tried again later: what is not run is not measured
            return False
        start = self.model.clock()
        try:
            drafted = self.model.step(2 * self._max_tokens, self._max_depth, provisional=True)
        except Exception:
            drafted = self._drafts = False
        took_s = self.model.clock() - start
        self.gap_s += took_s
        if drafted:
            # One slow step is no rule: it doubles what is expected at most.
            self._gap_step_us = min(1e6 * took_s, 2 * expected_us or 1e6 * took_s)
            self.num_provisional += 1
        return drafted


def _least_that_pays(session: Session, target: OrtSession) -> float:
    return least_that_pays(
        session.step_inputs, session.step_costs, target.step_inputs, target.step_costs
    )


def _check_same_tokens(session: OrtSession, target: OrtSession) -> None:
    """Check that every id means the same to both models.

    Raises:
        DraftModelError: One does not; the message names the first.
    """
    shown = session.bundle.shown
    if session.vocab_size != target.vocab_size:
        raise DraftModelError(
            f"{shown} has a vocabulary of {session.vocab_size} tokens, but the target has "
            f"{target.vocab_size}: it cannot draft for it"
        )
    tokenizer, targets = Tokenizer.of(session.bundle), Tokenizer.of(target.bundle)
    for token_id in range(target.vocab_size):
        one, other = tokenizer.token(token_id), targets.token(token_id)
        if one != other:
            raise DraftModelError(
                f"{shown} has a different tokenizer from the target: id {token_id} is {one!r}, "
                f"but {other!r} in the target"
            )
