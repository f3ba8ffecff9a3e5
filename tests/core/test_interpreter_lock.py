"""Long calls let go of the interpreter: other threads go on meanwhile."""

import numpy as np
import pytest

from coordgen_rs._core import (
    BlockCost,
    Drafter,
    HostDrafter,
    LookupTable,
    PhraseTable,
    PromptLookup,
    SharedHistory,
    SuffixAutomaton,
    plan,
    top_k,
)
from core_subjects import KEY, counting, step_inputs

ROWS, VOCAB_SIZE = 16, 100_000
# Made here: NumPy lets go of the interpreter, too.
TEXT = np.arange(100_000, dtype=np.uint32)
WORDS, CHANCES = TEXT % 50, np.full(len(TEXT), 0.5, np.float32)
DOCUMENT = np.append(WORDS[:20_000], SharedHistory.TERMINATOR).astype(np.uint32)
LOGITS = np.random.default_rng(0).standard_normal((ROWS, VOCAB_SIZE), np.float32)


def random_tokens(num_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 4, num_tokens).astype(np.uint32)


def written(path, num_tokens):
    """An index of so many tokens."""
    text = np.append(random_tokens(num_tokens), SharedHistory.TERMINATOR)
    SharedHistory.write_index(path, text, 4, 1, KEY)
    return path


@pytest.fixture
def others_go_on_during():
    """Whether another thread ran during one of some calls."""
    with counting() as counted:

        def goes_on(call, *arguments):
            before = counted[0]
            call(*arguments)
            return counted[0] > before

        yield lambda *call: any(goes_on(*call) for _ in range(200))


def test_what_is_short_keeps_the_interpreter(others_go_on_during):
    assert not others_go_on_during(lambda: LookupTable().num_rows)


@pytest.mark.parametrize(
    "call",
    [
        lambda _: top_k(LOGITS),
        lambda _: LookupTable().learn(TEXT[:ROWS], LOGITS),
        lambda _: SuffixAutomaton().extend(WORDS),
        lambda _: PromptLookup().extend(WORDS),
        lambda folder: SharedHistory.write_index(folder / "index", DOCUMENT, 50, 1, KEY),
        lambda _: PhraseTable(TEXT, TEXT, TEXT, CHANCES),
        lambda _: plan(
            [BlockCost.guessed(10**7, 256, 32)] * 48, 256, 32, 10_000, strategy="just_in_time"
        ),
    ],
)
def test_a_long_call_lets_go_of_it(others_go_on_during, tmp_path, call):
    assert others_go_on_during(call, tmp_path)


def test_a_look_up_table_in_a_file(others_go_on_during, tmp_path):
    table, path = LookupTable(), tmp_path / "table"
    large = np.random.default_rng(0).standard_normal((2_000, 2_000), np.float32)
    table.learn(TEXT[:2_000], large)  # else opening it is too short to tell
    assert others_go_on_during(table.save, path, 2_000, KEY)
    assert others_go_on_during(LookupTable.open, path, 2_000, KEY)


def test_accepting_where_a_source_learns_from_every_row(others_go_on_during):
    drafter = Drafter([step_inputs(ROWS, 1_000)], VOCAB_SIZE, sources=["automaton", "lookup-table"])
    drafter.begin(TEXT[:200] % 7, 2_000)

    def step():
        drafter.propose(199)
        drafter.accept(LOGITS)

    assert others_go_on_during(step)
    drafter = Drafter([step_inputs(1)], VOCAB_SIZE, sources=["calibration"])
    drafter.begin(np.zeros(200 * ROWS, np.uint32), 1)
    assert others_go_on_during(drafter.prefilled, LOGITS)


def test_a_drafter_for_an_engine(others_go_on_during):
    drafter = HostDrafter(50)
    assert others_go_on_during(drafter.begin, WORDS)
    assert others_go_on_during(drafter.rewind, len(WORDS))
    assert others_go_on_during(drafter.follow, WORDS[1:])
    drafter = HostDrafter(len(TEXT))
    drafter.begin([1])
    assert others_go_on_during(drafter.observe, TEXT)


def many_rows(sources, history=None):
    drafter = Drafter([step_inputs(500, 1_000)], 4, sources=sources, history=history)
    drafter.begin(random_tokens(400, 1), 10_000)
    return drafter


def test_drafting_where_a_file_is_read(others_go_on_during, tmp_path):
    history = SharedHistory(4)
    history.open_index(written(tmp_path / "index", 200_000), KEY)
    drafter, answer = many_rows([], history), random_tokens(300, 2)
    assert others_go_on_during(drafter.propose, 399)
    assert others_go_on_during(drafter.offer, 399)
    host = HostDrafter(4, rows=[1, 500], history=history)
    host.begin(answer)
    assert others_go_on_during(host.propose_chain)
    assert others_go_on_during(host.propose_tree)
    assert others_go_on_during(host.observe, answer)

    def step():
        drafter.propose(399)
        drafter.accept_recorded(answer)

    assert others_go_on_during(step)


def test_drafting_where_no_file_is_read_keeps_the_interpreter(others_go_on_during):
    drafter = many_rows(["automaton"])
    assert not others_go_on_during(drafter.propose, 399)
    assert not others_go_on_during(drafter.offer, 399)
    host = HostDrafter(4, rows=[1, 100], history=SharedHistory(4))
    host.begin([0, 1, 2, 3, 0, 1])
    assert not others_go_on_during(host.propose_tree)
    assert not others_go_on_during(host.observe, [1, 2])


def test_what_was_shared_is_read_ahead(others_go_on_during, tmp_path):
    path = written(tmp_path / "index", 3_000_000)
    history = SharedHistory(4, fleet=True, corpus=True)
    assert not history.is_shared_cold
    assert not history.warm_shared()
    history.open_fleet_index(path, KEY)
    history.open_corpus([path], KEY)
    assert history.is_shared_cold
    calls = 1
    while history.warm_shared():
        calls += 1
    assert calls == 4  # two files of 16 to 32 MiB
    assert not history.is_shared_cold
    history.open_fleet_index(path, KEY)
    assert others_go_on_during(history.warm_shared)
