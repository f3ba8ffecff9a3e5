"""What drafting costs a step as Python sees it, and what extending an automaton costs.

    pytest benches/test_drafting.py

A recorded text plays the target, so that drafts are accepted as often as lookups deserve. With
`--benchmark-disable` everything runs once, as a check.
"""

import numpy as np
import pytest

from coordgen_rs._core import Drafter, SharedHistory, StepInputs, SuffixAutomaton

LENGTHS = (1_000, 100_000, 1_000_000)
STEPS = 1_000
ATTENDED = 4_352


def make_text(length, vocab_size=4_096):
    """Zipf-like words, and now and then a passage that was there before."""
    numbers = np.random.default_rng(0)
    words = (numbers.zipf(1.3, length) % vocab_size).astype(np.uint32)
    for start in range(300, length - 60, 120):
        source, copied = numbers.integers(0, start - 60), numbers.integers(5, 60)
        words[start : start + copied] = words[source : source + copied]
    return words


def make_inputs(rows, attended=ATTENDED):
    """Step inputs as on a CPU, and the parents that a fill writes."""
    parents = np.zeros(attended, np.int32)
    path = parents, np.zeros(1, np.int32), np.zeros(2, np.int32)
    return StepInputs(np.zeros(rows, np.int64), np.zeros(rows, np.int64), path=path), parents


def make_masked_inputs(rows, attended):
    """Step inputs as on an NPU."""
    mask = np.zeros((1, 1, rows, attended), np.float32)
    return StepInputs(np.zeros(rows, np.int64), np.zeros(rows, np.int64), mask)


class Replay:
    """A request whose target says a recorded answer.

    What stands before it is the prompt, or, with `remembered`, the history of earlier requests.
    """

    def __init__(self, length, rows, vocab_size, *, remembered=False):
        text = make_text(length + 20 * STEPS)
        self.answer = text[length:]
        self.given_out = 0
        history = SharedHistory(vocab_size)
        if remembered:
            history.remember(text[:length])
        self.drafter = Drafter([make_inputs(rows)[0]], vocab_size, history=history)
        self.drafter.begin(text[length - 100 if remembered else 0 : length], len(self.answer))
        self.logits = np.zeros((rows, vocab_size), np.float32)
        self.said = (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def propose(self):
        return self.drafter.propose(self.given_out % (ATTENDED - len(self.logits)))

    def run_target(self, inputs):
        """What a session does between `propose` and `accept`."""
        nodes = np.arange(inputs.num_nodes)
        depths = inputs.position_ids[nodes] - inputs.position_ids[0]
        self.logits[self.said] = 0
        self.said = nodes, self.answer[self.given_out + depths]
        self.logits[self.said] = 1

    def accept(self):
        return self.drafter.accept(self.logits)

    def check(self, accepted):
        start, self.given_out = self.given_out, self.given_out + len(accepted.token_ids)
        np.testing.assert_array_equal(accepted.token_ids, self.answer[start : self.given_out])


@pytest.fixture(params=LENGTHS)
def length(request):
    return request.param


steps = pytest.mark.parametrize(("rows", "vocab_size"), [(16, 4_096), (32, 4_096), (32, 151_936)])


@steps
def test_propose(benchmark, length, rows, vocab_size):
    replay = Replay(length, rows, vocab_size)
    proposed = []

    def setup():
        if proposed:
            replay.run_target(proposed.pop())
            replay.check(replay.accept())

    benchmark.pedantic(
        lambda: proposed.append(replay.propose()), setup=setup, rounds=STEPS, warmup_rounds=20
    )
    setup()


@steps
def test_accept(benchmark, length, rows, vocab_size):
    replay = Replay(length, rows, vocab_size)
    accepted = []

    def setup():
        if accepted:
            replay.check(accepted.pop())
        replay.run_target(replay.propose())

    benchmark.pedantic(
        lambda: accepted.append(replay.accept()), setup=setup, rounds=STEPS, warmup_rounds=20
    )
    replay.check(accepted.pop())


@pytest.mark.parametrize(("rows", "vocab_size"), [(16, 4_096), (16, 151_936)])
def test_step_with_history(benchmark, length, rows, vocab_size):
    """`propose` and `accept` of a recorded answer: what drafting costs a step, inputs included."""
    replay = Replay(length, rows, vocab_size, remembered=True)
    accepted = []

    def setup():
        if accepted:
            replay.check(accepted.pop())

    def step():
        replay.propose()
        accepted.append(replay.drafter.accept_recorded(replay.answer[replay.given_out :][:64]))

    benchmark.pedantic(step, setup=setup, rounds=STEPS, warmup_rounds=20)
    setup()
    if benchmark.enabled:
        benchmark.extra_info["p99_us"] = float(1e6 * np.percentile(benchmark.stats.stats.data, 99))


def time_fill(benchmark, inputs):
    """Times fills with a binary tree of 16 nodes; returns its parents, and where it was last."""
    past_len = 0
    token_ids = np.arange(16, dtype=np.uint32)
    parents = (np.maximum(token_ids, 1) - 1) // 2

    def fill():
        nonlocal past_len
        past_len = (past_len + 3) % (inputs.attended - 16)
        inputs.fill(token_ids, parents, past_len)

    benchmark(fill)
    return parents, past_len


@pytest.mark.parametrize("attended", LENGTHS)
def test_fill(benchmark, attended):
    inputs, written = make_inputs(16, attended)
    parents, _ = time_fill(benchmark, inputs)
    np.testing.assert_array_equal(written[:16], [-1, *parents[1:]])


@pytest.mark.parametrize("attended", LENGTHS)
def test_fill_with_a_mask(benchmark, attended):
    inputs = make_masked_inputs(16, attended)
    _, past_len = time_fill(benchmark, inputs)
    path = past_len + np.array([0, 1, 3, 7, 15])
    seen = np.flatnonzero(inputs.mask[0, 0, 15] == 0)
    np.testing.assert_array_equal(seen, [*range(past_len), *path])


def test_extend(benchmark, length):
    text = make_text(length)

    def extend():
        automaton = SuffixAutomaton()
        for start in range(0, length, 1_000):
            automaton.extend(text[start : start + 1_000])
        return automaton

    automaton = benchmark.pedantic(extend, rounds=3)
    assert len(automaton) == length
    assert automaton.last_end(text[-20:]) == length
    assert length < 10_000 or automaton.memory_bytes() < 60 * length
