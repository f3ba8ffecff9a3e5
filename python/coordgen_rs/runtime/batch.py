"""The runs of several sequences: whoever waits takes part in the next.

In: sequences that wait, each for a tree to be verified or a prompt to be read: a `Session` whose
runs are shared with those of others, and which runs alone where it is asked for what came of it
earlier. Out: one run of all blocks over their rows, and the head over those that decode. How many
rows each gets is decided in the core (`src/batch`); a row computes what it would compute alone
(`src/kernels`).
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Batcher, StepInputs, SwitchReport
from coordgen_rs.errors import OptionError
from coordgen_rs.runtime.caches.cached_session import CachedSession, turn_of
from coordgen_rs.runtime.caches.kv_cache import Cache, KvCache
from coordgen_rs.runtime.cpu import cache_of, path_buffers
from coordgen_rs.runtime.device import Buffers
from coordgen_rs.runtime.machine import memory_bytes
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import (
    FilledStep,
    OnLogits,
    OnRead,
    Prefill,
    Proposer,
    SharedSession,
    StepCost,
)

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
        self, token_ids: NDArray[np.uint32], *, on_logits: OnLogits = None, on_read: OnRead = None
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


_EXACT_ROWS = 64
"""Up to so many rows a run has as many as are needed; beyond, a multiple of `_WIDE_ROWS`."""
_WIDE_ROWS = 16
_LOGITS_ROWS = 32
"""Rows of a prompt whose logits are in memory at a time."""
_MOST_TOGETHER, _SHARE_OF_MEMORY = 4, 0.25
"""Most requests that run together where nobody says how many, and what their caches may take."""


class _Part(NamedTuple):
    """A sequence's rows in a run.

    Attributes:
        sequence: Whose they are.
        inputs: The tree that is verified; None where tokens are read.
        first: The first row.
        num_rows: How many there are.
        read: What is read, as it was asked for: its request may give up meanwhile.
    """

    sequence: Sequence
    inputs: StepInputs | None
    first: int
    num_rows: int
    read: Prefill | None = None

    @property
    def rows(self) -> slice:
        """Which rows they are."""
        return slice(self.first, self.first + self.num_rows)


@dataclass
class BatchStats:
    """What the runs of a batch were made of so far.

    Attributes:
        runs: How many there were.
        requests: Requests that had rows in them: two that take part in a run count twice.
        rows: Rows of all of them.
        decode_rows: How many of these verified what requests are about to say; prompts had the
            others.
        prompt_tokens_beside: Tokens of prompts that were read in runs in which others decoded.
    """

    runs: int = 0
    requests: int = 0
    rows: int = 0
    decode_rows: int = 0
    prompt_tokens_beside: int = 0

    def add(self, decoding: list[int], reading: list[int]) -> None:
        """Count a run.

        Args:
            decoding: Rows of each request that decodes in it.
            reading: Tokens that are read in it of each prompt.
        """
        self.runs += 1
        self.requests += len(decoding) + len(reading)
        self.rows += sum(decoding) + sum(reading)
        self.decode_rows += sum(decoding)
        if decoding:
            self.prompt_tokens_beside += sum(reading)


class Batch:
    """Sequences of a target that run together.

    Args:
        session: The target, on CPU; nothing else may use it.
        num_sequences: Most requests at a time, at least 1.

    Attributes:
        session: The `session` argument.
        sequences: One for each of them.
        counts: What its runs were made of.

    Raises:
        OptionError: The target cannot run several (`why_alone`), or memory has no room for them.
    """

    def __init__(self, session: OrtSession, num_sequences: int) -> None:
        why = why_alone(session)
        if why is not None:
            raise OptionError(f"parallel is {num_sequences}, but {why}")
        needed, memory = num_sequences * session.cache.nbytes, memory_bytes()
        if memory is not None and needed > memory:
            raise OptionError(
                f"parallel is {num_sequences}, but the caches of so many requests take up to "
                f"{needed / 1e9:.1f} GB, and this machine has {memory / 1e9:.1f} GB: take fewer, "
                "less context, or kv_cache q8"
            )
        manifest = session.bundle.manifest
        own = session.cache
        form = own.form if isinstance(own, KvCache) else "f32"
        self.session, self.counts = session, BatchStats()
        self._cache = cache_of(manifest, form, num_sequences)
        caches = (self._cache.sequence(number) for number in range(num_sequences))
        self.sequences = [
            Sequence(session, self.run, number, cache) for number, cache in enumerate(caches)
        ]
        widest = session.widths[-1]
        most = max(manifest.prefill_rows, num_sequences * widest)
        self._whole = path_buffers(most, manifest, self._cache)
        self._buffers: dict[int, Buffers] = {}
        self._batcher = Batcher(session.widths, session.step_costs, most)
        self._paid: list[tuple[Sequence, int, float]] = []

    def run(self, some: Several[Sequence] | None = None) -> bool:
        """Run a step of those that wait.

        Args:
            some: Take part, if they wait; None for all.

        Returns:
            Whether there was anything to run. What fails is told to those who take part.
        """
        waiting = [it for it in self.sequences if it.is_waiting]
        if some is not None:
            waiting = [it for it in waiting if it in some]
        self._learn_gain()
        try:
            parts = self._whole_step(waiting[0]) if len(waiting) == 1 else self._share_rows(waiting)
        except Exception as error:
            for sequence in waiting:
                sequence.failed(_copied(error))
            return True
        if not parts:
            return bool(waiting)
        try:
            self._compute(parts)
        except Exception as error:
            for part in parts:
                part.sequence.failed(_copied(error))
        return True

    def _learn_gain(self) -> None:
        """Learn what the last shared step has brought."""
        paid, self._paid = self._paid, []
        if paid:
            gained = sum(sequence.num_gained - before for sequence, before, _ in paid)
            self._batcher.took(gained, sum(cost for _, _, cost in paid))

    def _whole_step(self, sequence: Sequence) -> list[_Part]:
        """The rows of a sequence that waits alone: it chooses by itself, or reads a whole chunk."""
        asked = sequence.asked
        if asked is None:
            return []
        if not isinstance(asked, Prefill):
            inputs = asked.propose(sequence.length)
            rows = asked.rows if isinstance(asked, FilledStep) else inputs.rows
            return [_Part(sequence, inputs, 0, rows)]
        most_rows = self.session.bundle.manifest.prefill_rows
        num_tokens = min(sequence.num_readable(asked), most_rows)
        return [_Part(sequence, None, 0, num_tokens, asked)]

    def _share_rows(self, waiting: Several[Sequence]) -> list[_Part]:
        """Who gets which rows: those that decode first."""
        offered = list[tuple[Sequence, Proposer, NDArray[np.float32], int]]()
        for sequence in waiting:
            asked = sequence.asked
            if asked is not None and not isinstance(asked, Prefill):
                try:
                    offered.append((sequence, asked, *asked.offer(sequence.length)))
                except Exception as error:
                    sequence.failed(error)
        reading = [(it, it.asked) for it in waiting if isinstance(it.asked, Prefill)]
        reading.sort(key=lambda pair: pair[0].reading_since)
        nodes, tokens, costs = self._batcher.share(
            [(worths, least, sequence.length) for sequence, _, worths, least in offered],
            [(sequence.num_readable(asked), sequence.length) for sequence, asked in reading],
        )
        parts, first = list[_Part](), 0
        for (sequence, asked, _, _), num_nodes, cost in zip(offered, nodes, costs, strict=True):
            try:
                inputs = asked.take(num_nodes, cost)
            except Exception as error:
                sequence.failed(error)
                continue
            parts.append(_Part(sequence, inputs, first, inputs.num_nodes))
            self._paid.append((sequence, sequence.num_gained, cost))
            first += inputs.num_nodes
        for (sequence, read), num_tokens in zip(reading, tokens, strict=True):
            if num_tokens:
                parts.append(_Part(sequence, None, first, num_tokens, read))
                first += num_tokens
        return parts

    def _compute(self, parts: Several[_Part]) -> None:
        """Run all blocks over the rows, and the head over those whose logits are asked for."""
        last = parts[-1]
        buffers = self._of(last.first + last.num_rows)
        num_nodes = last.num_rows if last.inputs is None else last.inputs.num_nodes
        self._fill(buffers, parts, last.first + num_nodes)
        session = self.session
        with session.open_device():
            session.switcher.ensure("prefill", "decode")
            session.forward.embed(buffers)
            for block in range(session.device.num_blocks):
                session.device.run(block, "decode", buffers)
            for sequence in self.sequences:
                sequence.end_run()
            self._deliver(parts, buffers)
        self.counts.add(
            [part.num_rows for part in parts if part.inputs is not None],
            [part.num_rows for part in parts if part.inputs is None],
        )

    def _deliver(self, parts: Several[_Part], buffers: Buffers) -> None:
        """Tell what came of a run: those that read first, as their logits are nobody's for long."""
        device = self.session.device
        for part in parts:
            if part.inputs is None:
                try:
                    if part.read is not None and part.read.on_logits is not None:
                        for first in range(part.rows.start, part.rows.stop, _LOGITS_ROWS):
                            end = min(first + _LOGITS_ROWS, part.rows.stop)
                            part.read.on_logits(device.logits(buffers, first, end))
                    part.sequence.has_read(part.num_rows)
                except Exception as error:
                    part.sequence.failed(error)
        num_verified = max((part.rows.stop for part in parts if part.inputs is not None), default=0)
        logits = device.logits(buffers, 0, num_verified) if num_verified else None
        for part in parts:
            if part.inputs is not None and logits is not None:
                part.sequence.has_verified(part.inputs, logits[part.rows])

    def _fill(self, buffers: Buffers, parts: Iterable[_Part], num_rows: int) -> None:
        """Fill all that the graphs read."""
        ids, positions, path = buffers.input_ids, buffers.position_ids, buffers.path or {}
        parents, sequences, lengths = path["parents"], path["sequences"], path["lengths"]
        ids[num_rows:] = positions[num_rows:] = 0
        path["span"][:] = 0, num_rows
        reading = {part.sequence.number for part in parts if part.inputs is None}
        for sequence in self.sequences:  # also those without rows: what is pending is applied
            lengths[sequence.number] = sequence.length
            sequence.begin_run(reads=sequence.number in reading)
        for part in parts:
            sequence, rows = part.sequence, part.rows
            length = sequence.length
            sequences[rows] = sequence.number
            if part.inputs is not None:
                ids[rows] = part.inputs.input_ids[: part.num_rows]
                positions[rows] = part.inputs.position_ids[: part.num_rows]
                own = sequence.steps[part.inputs.rows].path or {}
                parents[rows] = own["parents"][: part.num_rows] + part.first
                rows = slice(rows.start, rows.start + part.inputs.num_nodes)
            elif part.read is not None:
                ids[rows] = sequence.left(part.read)[: part.num_rows]
                positions[rows] = np.arange(length, length + part.num_rows)
                parents[rows] = np.arange(rows.start - 1, rows.stop - 1)
            parents[part.first] = -1
            sequence.write(ids[rows], part.first)

    def _of(self, num_rows: int) -> Buffers:
        """Buffers of at least so many rows, which are bound once."""
        if num_rows > _EXACT_ROWS:
            num_rows = min(-(-num_rows // _WIDE_ROWS) * _WIDE_ROWS, self._whole.rows)
        found = self._buffers.get(num_rows)
        if found is None:
            found = self._buffers[num_rows] = self._whole.part(0, num_rows)
        return found


def why_alone(session: OrtSession) -> str | None:
    """Why a target runs one request at a time; None where it may run several."""
    if not session.device.is_host:
        return f"on {session.device.provider} requests run one at a time"
    if session.device.reads_tokens:
        return "folders of other tools run one request at a time"
    if session.switcher.memory_budget is not None or not session.switcher.keeps_both:
        budget = session.switcher.memory_budget
        why = "blocks are switched" if budget is None else "a memory budget has blocks loaded"
        return f"{why} one by one, for one request"
    if not (session.is_exact_on_branches and session.is_exact_at_any_rows):
        return "its rows were not exact beside others when it was tested"
    if not session.is_exact_after_prefill:
        return "its prefill graphs were not exact when it was tested"
    return None


def most_together(session: OrtSession) -> int:
    """How many requests a target may well run at a time: their caches take a quarter of memory."""
    memory = memory_bytes()
    if memory is None:
        return _MOST_TOGETHER
    return max(1, min(_MOST_TOGETHER, int(_SHARE_OF_MEMORY * memory) // session.cache.nbytes))


def _copied(error: Exception) -> Exception:
    """The same error, with a traceback of its own."""
    try:
        copied = type(error)(*error.args)
    except Exception:  # a class with arguments of its own
        return error
    copied.__cause__ = error
    return copied
