"""The loop over an engine that runs the model itself, and what the loop needs of it: a `Host`.

In: a host, a drafter, a prompt. Out: the tokens that the host says, several a step. How a token is
chosen from a row is the host's own affair: its samplers, its logits processors. Hosts of given
engines stand in the files beside this one.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.generation.request import admit

ROWS = (1, 2, 4, 8, 16)
"""Default numbers of rows per step."""

_WARM_UPS, _ROUNDS = 1, 5
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 256
"""Steps before another round of measuring: twice as many each time."""


class Host(Protocol):
    """A model with a cache, run by another engine; the cache holds the committed tokens.

    Attributes:
        takes_trees: Whether it verifies trees; otherwise chains only.
        commit: "compact" keeps an accepted path on any branch; "canonical" keeps only what lies on
            the first path (nodes 0, 1, 2, ..), for engines in which a token computed on a side
            branch has other bits than the same token in a chain.
        capacity: Tokens that its cache holds.
        vocab_size: Number of ids in its vocabulary.
    """

    takes_trees: bool
    commit: str
    capacity: int
    vocab_size: int

    def clear(self) -> None:
        """Forget all tokens, and whatever an interrupted step left."""

    def read(self, token_ids: NDArray[np.uint32]) -> None:
        """Compute and commit the prompt, `(tokens,) u32`, as the engine's own loop does.

        What the engine says behind it is asked for as `choose(0)`.
        """

    def run(self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
        """Compute a tree behind the committed tokens; nothing of it is committed yet.

        Args:
            token_ids: `(nodes,) u32`; node 0 is the last token given out.
            parents: `(nodes,) u32`; every parent comes before its children.
        """

    def choose(self, row: int) -> int:
        """The token that the engine says after node `row` of the last run, or after the prompt.

        Asked along the accepted path, from the root on, once for each node.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Commit nodes of the last run, a path from the root on, and drop the others."""


class HostStep(NamedTuple):
    """The result of one run of the engine; the first run reads the prompt.

    Attributes:
        token_ids: New tokens, in order; the last is the engine's own, those before it were drafted.
        num_drafted: Draft tokens that were verified.
    """

    token_ids: list[int]
    num_drafted: int


def make_drafter(
    host: Host,
    *,
    rows: Sequence[int] = ROWS,
    costs: Sequence[float] | None = None,
    end_token_ids: Collection[int] = (),
    history: SharedHistory | None = None,
) -> HostDrafter:
    """A drafter for the requests of a host, one after the other.

    Args:
        host: The engine.
        rows: Numbers of rows that a step may have, ascending.
        costs: Cost of a step with each number, from `measured_costs`; None where rows are free.
        end_token_ids: Tokens that end an answer.
        history: Finished requests to draft from.

    Raises:
        OptionError: Rows or costs are unusable, the host verifies fewer branches than rows have, or
            the history is of another vocabulary.
    """
    most = max(rows, default=1)
    num_branches = getattr(host, "num_branches", most)  # of hosts that have a limit
    if host.takes_trees and most - 1 > num_branches:
        raise OptionError(
            f"a step of {most} rows may have {most - 1} branches, the host {num_branches}: give "
            "fewer rows, or open it with n_seq_max as large as the largest number of rows"
        )
    return HostDrafter(
        host.vocab_size,
        rows=rows,
        costs=costs,
        commit=host.commit,
        end_token_ids=sorted(end_token_ids),
        history=history,
    )


def measured_costs(
    host: Host, rows: Sequence[int] = ROWS, prompt_ids: ArrayLike | None = None
) -> list[float]:
    """The time of a step with each number of rows, in microseconds, measured on this machine.

    The host is cleared, reads the prompt, and runs chains behind it; the least of a few runs
    counts. Measure anew where drafts do not pay as they should: the machine may have been busy.

    Args:
        host: The engine.
        rows: Numbers of rows.
        prompt_ids: `(tokens,)` integers that stand before the step; 128 tokens, or as many as fit,
            by default.

    Raises:
        OptionError: The host's cache holds too few tokens, or the prompt is not integers.
        ShapeError, TokenOutOfRangeError: The prompt cannot be used.
    """
    costs = StepCosts(rows)
    costs.begin(host, prompt_ids)
    return costs.us


class StepCosts:
    """What a step with each number of rows takes: the least of the last five rounds of measuring.

    Measuring goes on, ever more rarely, so that no moment in which the machine was busy counts for
    good.

    Args:
        rows: Numbers of rows, ascending.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self._seconds = {width: deque[float](maxlen=_ROUNDS) for width in rows}
        self._pause = self._num_left = _FIRST_PAUSE

    @property
    def us(self) -> list[float]:
        """Microseconds for each number of rows; more rows never take less."""
        return list(accumulate((1e6 * min(taken) for taken in self._seconds.values()), max))

    def begin(self, host: Host, prompt_ids: ArrayLike | None = None) -> None:
        """Measure a few rounds; the host is cleared.

        Args:
            host: The engine.
            prompt_ids: Same as in `measured_costs`.

        Raises:
            OptionError: The host's cache holds too few tokens, or the prompt is not integers.
            ShapeError, TokenOutOfRangeError: The prompt cannot be used.
        """
        room = host.capacity - max(self._seconds)
        if room < 1:
            raise OptionError(
                f"the cache holds {host.capacity} tokens: too few to measure steps of "
                f"{max(self._seconds)} rows"
            )
        usual = np.arange(min(128, room)) * 37 % min(host.vocab_size, 1024)
        prompt = arguments.token_ids(
            "the prompt", usual if prompt_ids is None else prompt_ids, host.vocab_size
        )
        host.clear()
        host.read(prompt)
        for _ in range(_WARM_UPS + _ROUNDS):
            self.measure(host, prompt, host.choose)
        host.clear()

    def measure(
        self, host: Host, token_ids: NDArray[np.uint32], wait: Callable[[int], object]
    ) -> None:
        """Run a chain of each width behind what the host holds, which is left as it is.

        The widths take turns, so that a disturbance meets all of them.

        Args:
            host: The engine.
            token_ids: `(tokens,) u32`, what the chains are made of, at least one.
            wait: Called with 0; returns once the first row's scores are there.
        """
        for width, taken in self._seconds.items():
            chain = np.resize(token_ids, width)
            parents = np.maximum(np.arange(width) - 1, 0).astype(np.uint32)
            start = time.perf_counter()
            host.run(chain, parents)
            wait(0)
            taken.append(time.perf_counter() - start)
            host.keep([])

    def count_step(self) -> bool:
        """Count a step of an answer; returns whether it is time to measure again."""
        self._num_left -= 1
        if self._num_left:
            return False
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._num_left = self._pause
        return True


def generate(
    host: Host,
    prompt_ids: ArrayLike,
    *,
    drafter: HostDrafter,
    max_new_tokens: int,
    end_token_ids: Collection[int] = (),
    history: SharedHistory | None = None,
    draft_until: int | None = None,
) -> Generator[HostStep]:
    """Yield the tokens that the engine says, several a step.

    What agrees with the engine's own choice is accepted, so the tokens are those that it says
    without drafts, as far as its arithmetic does not depend on how many rows a run has.
    After stopping early, the host holds exactly the committed tokens.

    Args:
        host: The engine; what it holds is forgotten.
        prompt_ids: `(tokens,)` integers, at least one.
        drafter: From `make_drafter`; keep one to keep what it learned.
        max_new_tokens: Most new tokens; the host's capacity is another limit.
        end_token_ids: Tokens that end an answer.
        history: Remembers the request when it has ended.
        draft_until: Tokens of prompt and answer that drafts may reach; None for the capacity.

    Raises:
        OptionError: The prompt is not integers, or `max_new_tokens` is below 1.
        ShapeError: The prompt has more than one dimension.
        EmptyPromptError: The prompt has no token.
        PromptTooLongError: It has more than the host's cache holds.
        TokenOutOfRangeError: It holds an unknown token.
    """
    prompt, left, _ = admit(host, prompt_ids, max_new_tokens)
    propose = drafter.propose_tree if host.takes_trees else partial(_propose_chain, drafter)
    until = host.capacity if draft_until is None else min(draft_until, host.capacity)
    drafter.begin(prompt)
    text = prompt.tolist()
    try:
        host.clear()
        host.read(prompt)
        num_drafted, new_tokens = 0, [host.choose(0)]
        while True:
            drafter.observe(np.array(new_tokens, np.uint32))
            text += new_tokens
            left = 0 if new_tokens[-1] in end_token_ids else left - len(new_tokens)
            if left == 0 and history is not None:
                history.remember(drafter.token_ids)
            yield HostStep(new_tokens, num_drafted)
            if left == 0:
                return
            token_ids, parents = propose(max(0, min(left - 1, until - len(text))))
            host.run(token_ids, parents)
            rows, new_tokens = _walk(
                host, token_ids.tolist(), parents.tolist(), end_token_ids, left
            )
            host.keep(rows)
            num_drafted = len(token_ids) - 1
    finally:
        if drafter.token_ids.tolist() == text:  # else it is at another request by now
            drafter.end()


def _propose_chain(
    drafter: HostDrafter, max_tokens: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """A drafted chain, in the form of a tree."""
    chain = drafter.propose_chain(max_tokens)
    token_ids = np.concatenate([drafter.token_ids[-1:], chain])
    return token_ids, np.maximum(np.arange(len(token_ids)) - 1, 0).astype(np.uint32)


def _walk(
    host: Host, token_ids: list[int], parents: list[int], ends: Collection[int], left: int
) -> tuple[list[int], list[int]]:
    """The nodes that the engine agrees with, root included, and what it says after each."""
    children = {(parents[node], token_ids[node]): node for node in range(1, len(token_ids))}
    rows, said = [0], [host.choose(0)]
    while len(said) < left and said[-1] not in ends:
        node = children.get((rows[-1], said[-1]))
        if node is None or (host.commit == "canonical" and node != rows[-1] + 1):
            break
        rows.append(node)
        said.append(host.choose(node))
    return rows, said


class Follower:
    """Drafts for an engine that passes its whole text at each step; remembers finished texts.

    Args:
        drafter: The drafter, used for one request after the other.
        history: Receives each text that is not continued; None for none.
    """

    def __init__(self, drafter: HostDrafter, history: SharedHistory | None = None) -> None:
        self.drafter, self._history = drafter, history

    def chain(self, token_ids: NDArray[np.uint32], max_tokens: int) -> NDArray[np.uint32]:
        """Draft behind a text.

        Args:
            token_ids: `(tokens,) u32`, prompt and answer so far.
            max_tokens: Most draft tokens.

        Returns:
            `(tokens,) u32`.

        Raises:
            EmptyPromptError, TokenOutOfRangeError, ShapeError: The text cannot be followed.
        """
        before = self.drafter.token_ids
        goes_on = np.array_equal(before, token_ids[: len(before)])
        if self._history is not None and not goes_on:
            self._history.remember(before)
        self.drafter.follow(token_ids)
        return self.drafter.propose_chain(max_tokens)
