"""What updating a look-up table costs, against numpy; and how much of it other work hides.

    pytest benches/test_lookup_table.py
    pytest benches/test_lookup_table.py --benchmark-timer=time.thread_time

81 rows of Qwen2.5's vocabulary, as Token Recycling's tree and its root have. Reading the logits is
what takes the time: `learn_from_top_8` updates the table alone. The second command counts what the
caller's own thread computes: there `a_step_that_learns` is the work alone and little more, for the
rows are read by another. With `--benchmark-disable` everything runs once, as a check.
"""

import numpy as np
import pytest

from coordgen_rs._core import Drafter, LookupTable, StepInputs

ROWS, VOCAB_SIZE = 81, 151_936
CONTEXTS = np.arange(ROWS, dtype=np.uint32)


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).standard_normal((ROWS, VOCAB_SIZE), np.float32)


def numpy_update(token_ids, probabilities, logits):
    """The known implementations' way: the top 8 by a partial sort, and their softmax."""
    best = np.argpartition(logits, -8, axis=1)[:, -8:]
    scores = np.take_along_axis(logits, best, 1)
    order = np.argsort(-scores, axis=1)
    token_ids[CONTEXTS] = np.take_along_axis(best, order, 1)
    terms = np.exp(logits - logits.max(1, keepdims=True))
    of_best = np.take_along_axis(terms, token_ids[CONTEXTS].astype(np.int64), 1)
    probabilities[CONTEXTS] = of_best / terms.sum(1, keepdims=True)


def test_numpy_argpartition(benchmark, logits):
    token_ids = np.zeros((VOCAB_SIZE, 8), np.uint32)
    probabilities = np.zeros((VOCAB_SIZE, 8), np.float32)
    benchmark(numpy_update, token_ids, probabilities, logits)
    assert (token_ids[CONTEXTS, 0] == logits.argmax(1)).all()


def test_numpy_max(benchmark, logits):
    largest = benchmark(lambda: logits.max(1))
    assert largest[0] == max(logits[0])


def test_learn(benchmark, logits):
    table = LookupTable()
    benchmark(table.learn, CONTEXTS, logits)
    assert [table.row(context)[0][0] for context in range(ROWS)] == logits.argmax(1).tolist()


def test_learn_from_top_8(benchmark, logits):
    table, best = LookupTable(), np.ascontiguousarray(logits[:, :100])
    benchmark(table.learn, CONTEXTS, best)
    assert table.num_rows == ROWS


class Steps:
    """A drafter that learns from wide steps, and the work of a session between two of them."""

    def __init__(self, logits):
        arrays = np.zeros(ROWS, np.int64), np.zeros(ROWS, np.int64)
        inputs = StepInputs(*arrays, np.zeros((1, 1, ROWS, 512), np.float32))
        table = LookupTable()
        table.learn(logits.argmax(1).astype(np.uint32), logits)
        self.drafter = Drafter(
            [inputs], VOCAB_SIZE, sources=["lookup-table"], lookup_table=table, tree="static"
        )
        self.logits, self.other = logits, logits[:32].copy()
        self.drafter.begin(CONTEXTS[:1], 1 << 20)
        self.drafter.propose(0)

    def work(self):
        return max(self.other.max() for _ in range(12))

    def step(self, *, beside):
        self.drafter.accept(self.logits)
        if beside:
            self.work()
        self.drafter.propose(0)
        if not beside:
            self.work()


@pytest.mark.parametrize("beside", [False, True], ids=["work_after", "work_beside"])
def test_a_step_that_learns(benchmark, logits, beside):
    steps = Steps(logits)
    benchmark(steps.step, beside=beside)
    assert steps.drafter.finish_reason is None


def test_the_work_alone(benchmark, logits):
    benchmark(Steps(logits).work)
