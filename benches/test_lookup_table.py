"""What updating a look-up table costs, against numpy.

    pytest benches/test_lookup_table.py

81 rows of Qwen2.5's vocabulary, as Token Recycling's tree and its root have. Reading the logits is
what takes the time: `learn_from_top_8` updates the table alone. `learn` reads on one thread, a step
of a drafter on as many as there are cores. With `--benchmark-disable` everything runs once, as a
check.
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


def test_a_step_that_learns(benchmark, logits):
    arrays = np.zeros(ROWS, np.int64), np.zeros(ROWS, np.int64)
    inputs = StepInputs(*arrays, np.zeros((1, 1, ROWS, 512), np.float32))
    table = LookupTable()
    table.learn(logits.argmax(1).astype(np.uint32), logits)
    drafter = Drafter(
        [inputs], VOCAB_SIZE, sources=["lookup-table"], lookup_table=table, tree="static"
    )
    drafter.begin(CONTEXTS[:1], 1 << 20)

    def step():
        drafter.propose(0)
        drafter.accept(logits)

    benchmark(step)
    assert drafter.finish_reason is None
