"""An object of every class of the core that has a state, twice the same, and all that it shows.

In: a seed. Out: the object after some calls that succeed, and what is seen of it from then on,
where it goes on as if nothing had happened.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coordgen_rs import _core
from coordgen_rs.errors import CoordgenError

VOCAB_SIZE, ROWS, ATTENDED = 12, 4, 40
KEY = bytes(32)


def tokens(*ids):
    return np.array(ids, np.uint32)


def text(seed, length):
    return np.random.default_rng(seed).integers(0, 4, length).astype(np.uint32)


def logits(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, VOCAB_SIZE)).astype(np.float32)


def step_inputs(rows=ROWS, attended=ATTENDED):
    arrays = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    return _core.StepInputs(*arrays, np.zeros((rows, attended), np.float32))


@contextmanager
def counting() -> Iterator[list[int]]:
    """How far another thread has counted, where no thread has to give the interpreter up.

    So it counts on only where a call lets go of the interpreter.
    """
    ended, counted, interval = threading.Event(), [0], sys.getswitchinterval()

    def count():
        while not ended.is_set():
            counted[0] += 1
            time.sleep(0)  # the only place where this thread lets go

    thread = threading.Thread(target=count)
    sys.setswitchinterval(3600)
    thread.start()
    try:
        yield counted
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()


def told(object: Any, looks: Iterable[Any]) -> list[Any]:
    """What each attribute, or call `(method, *arguments)`, gives; or the name of what it raises."""
    found = []
    for look in looks:
        name, *arguments = (look,) if isinstance(look, str) else look
        try:
            value = getattr(object, name)
            found.append(plainly(value if isinstance(look, str) else value(*arguments)))
        except CoordgenError as error:
            found.append(type(error).__name__)
    return found


def plainly(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plainly(each) for each in value]
    if isinstance(value, _core.StepInputs):
        return told(value, ["num_nodes", "input_ids", "position_ids", "mask"])
    if isinstance(value, _core.Accepted):
        return told(value, ["token_ids", "rows", "finish_reason", "sources"])
    return value


class Subject:
    """An object after some calls; `seen` uses it up."""

    def __init__(self, seed: int):
        self.seed = seed
        self.object = self.made()

    def made(self) -> Any:
        raise NotImplementedError

    def looks(self) -> Iterable[Any]:
        """The attributes and calls, in order, that show all of it."""
        raise NotImplementedError

    def seen(self) -> Any:
        return told(self.object, self.looks())


class OfStepInputs(Subject):
    def made(self):
        inputs = step_inputs()
        inputs.fill_chain(text(self.seed, 3), self.seed % 9)
        return inputs

    def looks(self):
        arrays = ("num_nodes", "input_ids", "position_ids", "mask")
        return [*arrays, ("fill_chain", tokens(1, 2), 11), *arrays]


class EvenOnly:
    """A grammar of even tokens."""

    def __init__(self):
        self.words = np.array([0b010101010101], np.uint32)

    def forced(self, path):
        return []

    def possible(self, token_ids, parents):
        return [token % 2 == 0 for token in token_ids]

    def after(self, path):
        return False

    def extend(self, token_ids):
        return False


class OfDrafter(Subject):
    def made(self):
        drafter = _core.Drafter(
            [step_inputs(2), step_inputs()],
            VOCAB_SIZE,
            sources=["automaton", "calibration", "reuse", "lookup-table"],
            costs=[(1.0, 0.01), (1.5, 0.01)],
            end_token_ids=[11],
        )
        if self.seed % 5 == 0:
            return drafter
        grammar = {"grammar": EvenOnly()} if self.seed % 2 else {}
        changed = {"frequency_penalty": 0.5, "logit_bias": {1: 0.5}} if self.seed % 2 else {}
        sampling = _core.Sampling(0.7, seed=self.seed, **changed) if self.seed % 3 else None
        begin = {"num_reused": 2, "logprobs": self.seed % 3 or None, **grammar}
        drafter.begin(text(self.seed, 9), 9, sampling, **begin)
        drafter.prefilled(logits(3, self.seed))
        if self.seed % 4 == 1:
            drafter.offer(8)
        if self.seed % 4 > 1:
            drafter.propose(8)
        if self.seed % 4 > 2:
            drafter.accept(logits(drafter.propose(8).rows, 1))
        return drafter

    def looks(self):
        yield from ("reads_prefill", "num_carried", "finish_reason", "accept_histogram")
        yield from ("per_source", "draft", "node_sources", ("accept", logits(ROWS, 5)))
        yield from (("take", 1, 0.5), ("accept", logits(1, 6)), ("offer", 9), ("take", 2))
        yield ("accept", logits(2))
        for past_len in range(10, 20):
            yield ("propose", past_len)
            yield from (("accept", logits(rows, past_len)) for rows in (2, ROWS))  # one fits
        yield from (("prefilled", logits(4, 8)), ("begin", text(0, 9), 5), ("propose", 8))
        yield ("accept", logits(ROWS))


class OfHostDrafter(Subject):
    def made(self):
        history = _core.SharedHistory(VOCAB_SIZE)
        history.remember(text(7, 30))
        drafter = _core.HostDrafter(VOCAB_SIZE, rows=[1, 2, 4, 8], history=history)
        if self.seed % 4:
            drafter.begin(text(self.seed, 12), text(1, 5))
            drafter.propose_tree(5)
            drafter.observe(text(self.seed + 1, 3))
            if self.seed % 4 > 1:
                drafter.propose_chain(3)
        return drafter

    def looks(self):
        yield from ("token_ids", "prompt_len", "accept_histogram", "per_source")
        for call in (
            ("observe", tokens(1, 2)),
            ("propose_tree", 6),
            ("observe", tokens(0, 3)),
            ("rewind", 13),
            ("propose_chain", 4),
        ):
            yield from (call, "accept_histogram")
        yield from (("begin", text(3, 20)), ("propose_tree", 7))


class OfSharedHistory(Subject):
    def made(self):
        history = _core.SharedHistory(VOCAB_SIZE, fleet=True, corpus=True)
        history.remember(text(self.seed, 20))
        if self.seed % 2:
            path = Path(tempfile.gettempdir()) / f"coordgen-subject-{id(self)}"
            documents = np.append(text(self.seed + 1, 30), _core.SharedHistory.TERMINATOR)
            _core.SharedHistory.write_index(path, documents.astype(np.uint32), VOCAB_SIZE, 1, KEY)
            history.open_index(path, KEY)
            history.open_fleet_index(path, KEY)
            history.open_corpus([path], KEY)
            path.unlink()
        history.remember(text(self.seed + 2, 20), 2)
        return history

    def seen(self):
        counts = ("num_recent_tokens", "num_indexed_tokens", "num_fleet_tokens")
        counts += ("covers", "is_damaged", "is_fleet_damaged")
        found = told(self.object, [*counts, "num_corpus_tokens", "is_corpus_damaged"])
        drafter = _core.HostDrafter(VOCAB_SIZE, history=self.object)
        for seed in (self.seed + 2, self.seed):
            found += told(drafter, [("begin", text(seed, 8)), ("propose_tree", 9)])
        return found


class OfLookupTable(Subject):
    def made(self):
        table = _core.LookupTable(3)
        table.learn(text(self.seed, 5), logits(5, self.seed))
        return table

    def looks(self):
        return ["k", "num_rows", *(("row", each) for each in range(VOCAB_SIZE))]


class OfModelDraft(Subject):
    def made(self):
        draft = _core.ModelDraft([step_inputs()], VOCAB_SIZE, end_token_ids=[11])
        self.drafter = _core.Drafter(
            [step_inputs()], VOCAB_SIZE, sources=["draft-model"], model_draft=draft
        )
        if self.seed % 4:
            self.drafter.begin(text(self.seed, 1 + self.seed % 4), 9)
            draft.take_realignment()
        if self.seed % 4 > 1 and draft.next_step(4) is not None:
            draft.read(logits(ROWS, self.seed), 0)
        return draft

    def seen(self):
        looks = ["threshold", ("reading_cost",), ("unread",), ("take_realignment",)]
        for seed in range(3):
            looks += [("next_step", 4), ("read", logits(ROWS, seed), 0)]
        return [*told(self.object, looks), told(self.drafter, [("propose", 8)])]


class OfSuffixAutomaton(Subject):
    def made(self):
        automaton = _core.SuffixAutomaton()
        automaton.extend(text(self.seed, 30))
        return automaton

    def looks(self):
        yield from (("extend", tokens(1, 2)), ("__len__",), "match_len", "num_states", "num_edges")
        for pair in (tokens(one, other) for one in range(4) for other in range(4)):
            yield from (("count", pair), ("last_end", pair))


class OfPromptLookup(Subject):
    def made(self):
        lookup = _core.PromptLookup()
        lookup.extend(text(self.seed, 30))
        return lookup

    def looks(self):
        return [("propose",)]


class OfSeenTokens(Subject):
    def made(self):
        seen = _core.SeenTokens(VOCAB_SIZE)
        seen.extend(text(self.seed, 6))
        return seen

    def seen(self):
        drawn = _core.Sampling(0, repetition_penalty=2.0, frequency_penalty=0.5).draw
        rows = logits(ROWS, self.seed)
        return [len(self.object), [drawn(row, 0, self.object) for row in rows]]


class OfBatcher(Subject):
    def made(self):
        costs = [(1.0, 0.01), 1.5] if self.seed % 3 else None
        batcher = _core.Batcher([1, 4], costs, 6)
        for step in range(self.seed % 5):
            batcher.share([], [(9, 0)] * step)
            batcher.took(1 + self.seed % 4, 0.5)
        return batcher

    def looks(self):
        worths = np.array([1.0, 0.7, 0.4, 0.1], np.float32)
        yield from (("share", [(worths, 1, 9)] * num, [(5, 1)] * 2) for num in range(4))
        yield from (("took", 3, 1.0), ("share", [(worths, 1, 0)], []))


class Store:
    """Loads and releases at once."""

    def load(self, block, graph):
        pass

    def release(self, block, graph):
        pass


class OfSwitcher(Subject):
    def made(self):
        figures = ("load_us", "compute_us", "bytes")
        cost = {f"{graph}_{each}": 10 for graph in ("prefill", "decode") for each in figures}
        budget = 10 if self.seed % 2 else None
        strategy = "auto" if budget else "sync"
        switcher = _core.Switcher(
            Store(), [_core.BlockCost(**cost)] * 3, 8, 4, strategy=strategy, memory_budget=budget
        )
        if self.seed % 5 == 0:
            return switcher
        switcher.only("prefill" if self.seed % 3 else "decode")
        switcher.begin(16)
        switcher.begin_pass()
        for block in range(self.seed % 5 - 1):
            switcher.enter(block)
            if (self.seed, block) != (14, 2):
                switcher.leave()
        return switcher

    def seen(self):
        switcher = self.object
        found = told(switcher, ["is_streaming", "memory_budget", "keeps_both", ("leave",)])
        for block in (0, 1, 2):  # to the end of a pass, wherever that is
            found += told(switcher, [("enter", block), ("leave",)])[1:]
        for _ in range(2):
            found += told(switcher, [("begin_pass",)])
            for block in (0, 1, 2):
                [entered, left] = told(switcher, [("enter", block), ("leave",)])
                found += [entered not in (None, "CallOrderError"), left]
        try:
            report = switcher.finish()
            found += [report.strategy, report.failures]
        except CoordgenError as error:
            found.append(str(error))
        return [*found, switcher.resident()]


class OfSimulatedClock(Subject):
    def made(self):
        clock = _core.SimulatedClock()
        clock.advance(self.seed)
        return clock

    def seen(self):
        return told(self.object, ["now_us", ("seconds",)])


class OfExpertStore(Subject):
    def made(self):
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, "experts")
        np.repeat(np.arange(8, dtype=np.uint8), 4096).tofile(file)
        regions = [(0, 0, 4, 4096), (0, 4 * 4096, 4, 4096)]
        store = _core.ExpertStore([file], regions, budget=5 * 4096 if self.seed % 2 else None)
        for layer in range(self.seed % 3):
            store.bring(layer % 2, [self.seed % 4, (self.seed + 1) % 4], 1)
        return store

    def seen(self):
        store = self.object
        held = [store.array(layer)[::4096].tolist() for layer in (0, 1)]
        # Within a budget it depends on the readers which experts were there already.
        num_read = None if self.seed % 2 else store.num_read
        return [held, num_read, store.report()["asked"], store.take_failure()]


class OfLock(Subject):
    def made(self):
        self.folder = tempfile.TemporaryDirectory()
        return _core.Lock(Path(self.folder.name))

    def seen(self):
        return [self.object.is_mine, _core.Lock(Path(self.folder.name)).is_anothers]


SUBJECTS = {
    getattr(_core, subject.__name__.removeprefix("Of")): subject
    for subject in Subject.__subclasses__()
}

STATELESS = {
    "Accepted", "Action", "BlockCost", "DraftMethod", "DraftSource", "DynamicTree", "PhraseTable",
    "Plan", "Run", "Sampling", "SwitchReport",
}  # fmt: skip
"""Classes whose objects never change: every attribute is read-only."""
