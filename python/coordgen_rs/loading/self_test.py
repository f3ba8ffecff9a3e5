"""Tests a bundle on this machine: which widths and branches are exact, and what each width costs.

Losslessness rests on one fact: a row's bits depend neither on the width of the graph that computes
it, nor on the other rows. That a compact commit is exact rests on one more: they do not depend on
slots either. An arithmetic library may break this on some processor, so it is tested when a bundle
is first opened on a machine, and a step of each width is timed (`session.py` keeps the result on
disk).
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import StepInputs
from coordgen_rs.bundle.directory import Progress
from coordgen_rs.errors import NonFiniteLogitsError, ProviderError
from coordgen_rs.loading.directory import KINDS
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import StepCost
from coordgen_rs.store.prefixes.prefix import SavedPrefix

_NUM_TOKENS = 24
_CHAIN_TOKENS = 8
_FEW_TOKENS = 3
_LONG_TOKENS = 1024
_CUTS = (0, 1, 5)
_TIMED_SECONDS = 1.0
_TIMED_ROUNDS = (3, 40)
_BUDGET_SECONDS = 5.0  # for each of the loops that wait for a disk
_LONGEST_US = 1e12
_MOST_EXPERTS = 1e9


@dataclass(frozen=True)
class SelfTest:
    """Result of the self-test of one bundle, machine and number of threads.

    Attributes:
        exact_widths: Widths whose rows are bit-equal to those of the narrowest graph.
        exact_prefill: Whether rows of the prefill graphs are bit-equal to them too.
        exact_branches: Whether rows on a side branch of a draft tree are, so that `commit="auto"`
            commits them in one piece.
        exact_any_rows: Whether rows of runs of other numbers of rows are, too, so that the rest of
            a prompt is read in one run.
        step_us: Width to the shortest measured time of a step after a few tokens, microseconds.
        few_tokens: How many those were.
        long_step_us: The same behind as many as fit, but 1,024 at most.
        long_tokens: How many those were; `few_tokens` where no more fit or none costs more.
        experts: Width to the experts of all layers that a step of unrelated tokens reads: within a
            memory budget those that are not in memory, on average; empty where there are none.
        expert_us: What a step takes longer for one of them, microseconds.
        files: File name to its size in bytes and its modification time in ns when its SHA-256
            was last verified.
    """

    exact_widths: list[int]
    exact_prefill: bool
    exact_branches: bool
    exact_any_rows: bool
    step_us: dict[int, float]
    few_tokens: int
    long_step_us: dict[int, float]
    long_tokens: int
    experts: dict[int, float]
    expert_us: float
    files: dict[str, list[int]]

    def tells_of(self, widths: Sequence[int]) -> bool:
        """Whether it can be the result for a session of these widths: a record may be damaged."""
        both = (self.step_us, self.long_step_us)
        times = [times.get(width, -1.0) for times in both for width in widths]
        are_times = all(0 < time < _LONGEST_US for time in times)
        counts = [self.experts.get(width, -1.0) for width in widths] if self.experts else []
        are_counts = counts == sorted(counts) and all(0 <= it < _MOST_EXPERTS for it in counts)
        return (
            are_times
            and are_counts
            and 0 <= self.expert_us < _LONGEST_US
            and widths[0] in self.exact_widths
            and set(self.exact_widths) <= set(widths)
        )

    def cost(self, width: int) -> StepCost:
        """The cost of a step of a width: a line through the two measured times."""
        few, more = self.step_us[width], self.long_step_us[width]
        more_tokens = self.long_tokens - self.few_tokens
        per_token = max(more - few, 0.0) / more_tokens if more_tokens > 0 else 0.0
        return StepCost(few, per_token, self.experts.get(width, 0.0), self.expert_us)


def run_self_test(
    session: OrtSession,
    files: dict[str, list[int]],
    on_progress: Progress | None = None,
) -> SelfTest:
    """Measure exactness and step times of all widths of `session`; its cache is emptied.

    Raises:
        NonFiniteLogitsError: A row of logits holds NaN, or has no finite maximum.
        ProviderError: The narrowest graph gives other logits each time.
    """
    num_tokens = min(_NUM_TOKENS, session.capacity)
    # Where experts wait for a disk, few different tokens are asked about, which read few of them.
    num_different = _FEW_TOKENS if _is_within_budget(session) else num_tokens
    different = np.random.default_rng(0).integers(session.vocab_size, size=num_different)
    tokens = np.resize(different, num_tokens)
    chain_len = min(_CHAIN_TOKENS, (num_tokens + 1) // 2)
    context, chain = np.split(tokens.astype(np.uint32), [num_tokens - chain_len])
    expected = decode_chain(session, session.widths[0], context, chain)
    if not np.isfinite(expected.max(axis=1)).all():  # where no argmax is defined, as in the core
        raise NonFiniteLogitsError(
            f"{session.bundle.shown}: the model's logits are NaN or infinite; its weights are "
            "damaged, or too large for this provider"
        )
    exact = []
    for done, width in enumerate(session.widths):
        if on_progress is not None:
            on_progress(f"trying width {width}", done, len(session.widths))
        if np.array_equal(decode_chain(session, width, context, chain), expected):
            exact.append(width)
    if not exact or exact[0] != session.widths[0]:
        raise ProviderError(
            f"{session.bundle.shown}: width {session.widths[0]} gives other logits each time, "
            "so no step can be verified"
        )
    prefilled = decode_chain(session, session.widths[0], context, chain, "prefill")
    exact_prefill = np.array_equal(prefilled, expected)
    on_branch = chain[: exact[-1] - 1]
    exact_branches = len(on_branch) < 2 or np.array_equal(
        side_branch(session, context, on_branch), expected[: len(on_branch)]
    )
    exact_any_rows = _reads_rests(session) and all(
        np.array_equal(decode_rests(session, context, chain, cut), expected) for cut in _CUTS
    )
    session.rewind(len(context))
    few, step_us = session.length, _step_us(session, on_progress)
    experts = _experts_read(session)
    expert_us = _expert_us(session, step_us[session.widths[-1]]) if experts else 0.0
    long, long_step_us = min(session.capacity - session.widths[-1], _LONG_TOKENS), step_us
    is_steady = session.device.is_host and not _is_within_budget(session)
    if is_steady and long > few:  # elsewhere a step attends to all slots anyway
        _fill_cache(session, long)
        long_step_us = _step_us(session, on_progress)
    long = session.length
    session.forget()
    return SelfTest(
        exact,
        exact_prefill,
        exact_branches,
        exact_any_rows,
        step_us,
        few,
        long_step_us,
        long,
        experts,
        expert_us,
        files,
    )


def _reads_rests(session: OrtSession) -> bool:
    """Whether the rest of a prompt may be read in one run: by this package's own products.

    The test cannot try all numbers of rows. Where blocks are switched there are no rests.
    """
    is_own = not KINDS[session.bundle.form].is_foreign
    has_symbolic_rows = session.bundle.manifest.has_symbolic_rows
    return is_own and has_symbolic_rows and session.switcher.keeps_both


def decode_chain(
    session: OrtSession,
    width: int,
    context: NDArray[np.uint32],
    chain: NDArray[np.uint32],
    graphs: Literal["prefill", "decode"] = "decode",
) -> NDArray[np.float32]:
    """Logits `(len(chain), vocab_size)` of a chain decoded at one width after a context.

    The context is computed by the prefill graph or the decode graphs. Rows that the chain leaves
    free hold other tokens as a second branch, as in a draft tree.
    """
    session.rewind(0)
    session.prefill(context, graphs)
    return _decoded(session, width, chain)


def decode_rests(
    session: OrtSession, context: NDArray[np.uint32], chain: NDArray[np.uint32], cut: int
) -> NDArray[np.float32]:
    """The same at the narrowest width, the context being read as the rests of two prompts.

    Each in one run: `cut` tokens, then those behind them.
    """
    before, session.is_exact_at_any_rows = session.is_exact_at_any_rows, True
    try:
        session.rewind(0)
        session.prefill(context[:cut])
        session.prefill(context[cut:])
    finally:
        session.is_exact_at_any_rows = before
    return _decoded(session, session.widths[0], chain)


def _decoded(session: OrtSession, width: int, chain: NDArray[np.uint32]) -> NDArray[np.float32]:
    rows = []
    for start in range(0, len(chain), width):
        part = chain[start : start + width]
        num_spare = width - len(part)
        spare = np.arange(1, 1 + num_spare) % session.vocab_size
        if _is_within_budget(session):
            spare = np.resize(chain, num_spare)
        logits = session.step(_chain_inputs(session, width, part, spare))
        rows.append(logits[: len(part)].copy())
        session.commit(np.arange(len(part), dtype=np.uint32))
    return np.concatenate(rows)


def side_branch(
    session: OrtSession, context: NDArray[np.uint32], chain: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """Logits of `chain` as the second branch of a tree, behind a branch of one other token."""
    session.rewind(0)
    session.prefill(context, "decode")
    other = (chain[1:2] + 1) % session.vocab_size
    token_ids = np.concatenate([chain[:1], other, chain[1:]])
    parents = np.array([0, 0, 0, *range(2, len(chain))], np.uint32)[: len(token_ids)]
    inputs = next(inputs for inputs in session.step_inputs if inputs.rows >= len(token_ids))
    inputs.fill(token_ids, parents, session.length)
    return np.delete(session.step(inputs)[: len(token_ids)], 1, axis=0)


def _chain_inputs(
    session: OrtSession, width: int, chain: NDArray[np.uint32], spare: NDArray[np.integer[Any]]
) -> StepInputs:
    """A chain, and `spare` tokens as a second branch in the rows that it leaves free."""
    inputs = next(inputs for inputs in session.step_inputs if inputs.rows == width)
    token_ids = np.concatenate([chain, spare.astype(np.uint32)])
    parents = np.maximum(np.arange(width) - 1, 0).astype(np.uint32)
    parents[len(chain) : len(chain) + 1] = 0  # the spare rows start a second branch at the root
    inputs.fill(token_ids, parents, session.length)
    return inputs


def _fill_cache(session: OrtSession, num_tokens: int) -> None:
    """Commit `num_tokens` tokens whose keys and values are the first one's.

    Slots that were never written would not do: the system has one page of zeros for all of them,
    which a processor's cache holds. A row behind 4,064 tokens of SmolLM2-135M so took half the
    time. Those that are written take memory, so only as many are as tell what a token costs.
    """

    def repeated(array: NDArray[Any]) -> NDArray[Any]:
        _, heads, _, head_dim = array.shape
        return np.broadcast_to(array, (1, heads, num_tokens, head_dim))

    saved = session.saved_prefix()
    layers = [
        (repeated(keys[:, :, :1]), repeated(values[:, :, :1])) for keys, values in saved.layers
    ]
    states = None if saved.states is None else [saved.states[-1].behind(num_tokens)]
    tokens = np.zeros(num_tokens, np.uint32)
    session.restore_prefix(SavedPrefix(tokens, layers, states), num_tokens)


def _step_us(session: OrtSession, on_progress: Progress | None) -> dict[int, float]:
    """The shortest time of a step for each width; the widths are measured in turns.

    Where experts are kept within a budget, it is the mean over steps of other tokens each time:
    what a step reads from the disk belongs to what it costs. No step costs more than narrower steps
    that add up to as many rows, and one that was not reached in time as much.
    """
    clock, is_within = _clock(session), _is_within_budget(session)
    times: dict[int, list[float]] = {width: [] for width in session.widths}
    begin = time.perf_counter()
    for done in range(_TIMED_ROUNDS[1]):
        if done >= _TIMED_ROUNDS[0] and time.perf_counter() - begin > _TIMED_SECONDS:
            break
        if on_progress is not None:
            on_progress("timing steps", done, _TIMED_ROUNDS[1])
        for width in _reached(session, begin):
            inputs = _unrelated(session, width, done)
            start = clock()
            session.step(inputs)
            times[width].append(1e6 * (clock() - start))
    of_times = mean if is_within else min
    # Rounded first: rounded costs of parts may add up to less than their rounded sum.
    found = {width: round(of_times(each), 1) for width, each in times.items() if each}
    for width in session.widths[1:]:
        in_parts = (-(-width // other) * found[other] for other in session.widths if other < width)
        found[width] = min(found.get(width, float("inf")), *in_parts)
    return found


def _clock(session: OrtSession) -> Callable[[], float]:
    """What times steps, in seconds.

    Other processes must not make some widths look expensive for good. If this thread computes, only
    its own CPU time counts.
    """
    waits = session.switcher.is_streaming or _is_within_budget(session)
    # Windows counts a thread's time in ticks of 15.6 ms, which most steps do not take.
    has_clock = session.device.is_host and not waits and sys.platform != "win32"
    return time.thread_time if has_clock else time.perf_counter


def _is_within_budget(session: OrtSession) -> bool:
    """Whether experts are kept within a memory budget."""
    return session.expert_report() is not None


def _unrelated(session: OrtSession, width: int, number: int) -> StepInputs:
    """A step of unrelated tokens; within a budget they are others for each number and width.

    The same again would find its experts in memory, but no text repeats a step.
    """
    first = 0
    if _is_within_budget(session):
        first = number * sum(session.widths) + sum(w for w in session.widths if w < width)
    tokens = np.arange(first, first + width) % session.vocab_size
    return _chain_inputs(session, width, tokens[:1].astype(np.uint32), tokens[1:])


def _experts_read(session: OrtSession) -> dict[int, float]:
    """Experts of all layers that a step of each width reads whose tokens are unrelated."""
    counts: dict[int, list[float]] = {width: [] for width in session.widths}
    begin = time.perf_counter()
    for number in range(_TIMED_ROUNDS[0] if _is_within_budget(session) else 1):
        for width in _reached(session, begin):
            inputs = _unrelated(session, width, number)
            session.step(inputs)
            if inputs.experts_read is None:
                return {}
            counts[width].append(inputs.experts_read[1])
    reached = {width: mean(each) for width, each in counts.items() if each}
    widest = max(reached)  # of wider ones no more is known than that rows are alike
    each = (reached.get(width, reached[widest] * width / widest) for width in session.widths)
    return dict(zip(session.widths, accumulate(each, max), strict=True))


def _reached(session: OrtSession, begin: float) -> Iterator[int]:
    """The widths to be timed, narrowest first.

    Where experts wait for a disk, that ends after some seconds, which began at `begin`: a wide step
    of unrelated tokens may read most of a file that is larger than memory.
    """
    for number, width in enumerate(session.widths):
        is_late = time.perf_counter() - begin > _BUDGET_SECONDS
        if number and is_late and _is_within_budget(session):
            return
        yield width


def _expert_us(session: OrtSession, step_us: float) -> float:
    """What an expert costs that is read once more.

    Within a memory budget that is the wait for one that is not in memory. Elsewhere all rows of one
    more step are alike, so they read the same experts, but are as many as in the widest step, which
    takes `step_us`.
    """
    width = session.widths[-1]
    before = session.expert_report()
    if before is not None:
        begin = time.perf_counter()
        for number in range(_TIMED_ROUNDS[0]):
            for each in _reached(session, begin):
                session.step(_unrelated(session, each, number))
        told = session.expert_report()
        if told is None or not (waits := told.since(before)).misses:
            return 0.0
        return round(1e6 * waits.waited_s / waits.misses, 4)
    clock, unrelated = _clock(session), _unrelated(session, width, 0)
    session.step(unrelated)
    more = _all_read(unrelated)
    inputs = next(inputs for inputs in session.step_inputs if inputs.rows == width)
    parents = np.zeros(width, np.uint32)
    alike_us = float("inf")
    for _ in range(_TIMED_ROUNDS[0]):
        inputs.fill(np.zeros(width, np.uint32), parents, session.length)
        start = clock()
        session.step(inputs)
        alike_us = min(alike_us, 1e6 * (clock() - start))
    fewer = _all_read(inputs)
    return round(max(step_us - alike_us, 0.0) / (more - fewer), 4) if more > fewer else 0.0


def _all_read(inputs: StepInputs) -> float:
    """Experts that the last step with these inputs has read for all rows; 0 where nobody counts."""
    return 0.0 if inputs.experts_read is None else inputs.experts_read[1]
