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
    StepInputs,
    SuffixAutomaton,
    plan,
    top_k,
)
from core_subjects import counting

KEY = bytes(32)
ROWS, VOCAB_SIZE = 16, 100_000


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).standard_normal((ROWS, VOCAB_SIZE), np.float32)


@pytest.fixture
def others_go_on_during():
    """Whether another thread ran during one of some calls."""
    with counting() as counted:

        def goes_on(call):
            before = counted[0]
            call()
            return counted[0] > before

        yield lambda call: any(goes_on(call) for _ in range(200))


def test_what_is_short_keeps_the_interpreter(others_go_on_during):
    assert not others_go_on_during(lambda: LookupTable().num_rows)


def test_reading_a_prompts_logits(others_go_on_during, logits):
    inputs = StepInputs(
        np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1, 1, 8), np.float32)
    )
    drafter = Drafter([inputs], VOCAB_SIZE, sources=["calibration"])
    drafter.begin(np.zeros(200 * ROWS, np.uint32), 1)
    assert others_go_on_during(lambda: drafter.prefilled(logits))
    assert others_go_on_during(lambda: top_k(logits))


def test_look_up_tables(others_go_on_during, logits, tmp_path):
    table, contexts = LookupTable(), np.arange(ROWS, dtype=np.uint32)
    path = tmp_path / "table"
    large = np.random.default_rng(0).standard_normal((2_000, 2_000), np.float32)
    table.learn(np.arange(2_000, dtype=np.uint32), large)  # else opening it is too short to tell
    assert others_go_on_during(lambda: LookupTable().learn(contexts, logits))
    assert others_go_on_during(lambda: table.save(path, 2_000, KEY))
    assert others_go_on_during(lambda: LookupTable.open(path, 2_000, KEY))


def test_accepting_where_a_source_learns_from_every_row(others_go_on_during, logits):
    inputs = StepInputs(
        np.zeros(ROWS, np.int64), np.zeros(ROWS, np.int64), np.zeros((ROWS, 1_000), np.float32)
    )
    drafter = Drafter([inputs], VOCAB_SIZE, sources=["automaton", "lookup-table"])
    drafter.begin(np.arange(200, dtype=np.uint32) % 7, 2_000)

    def step():
        drafter.propose(199)
        drafter.accept(logits)

    assert others_go_on_during(step)


def test_texts_of_sources(others_go_on_during):
    text = np.arange(100_000, dtype=np.uint32) % 50
    assert others_go_on_during(lambda: SuffixAutomaton().extend(text))
    assert others_go_on_during(lambda: PromptLookup().extend(text))


def test_a_drafter_for_an_engine(others_go_on_during):
    drafter, text = HostDrafter(50), np.arange(100_000, dtype=np.uint32) % 50
    assert others_go_on_during(lambda: drafter.begin(text))
    assert others_go_on_during(lambda: drafter.rewind(len(text)))
    assert others_go_on_during(lambda: drafter.follow(text[1:]))


def test_the_index_of_a_history(others_go_on_during, tmp_path):
    tokens = np.append(np.arange(20_000) % 50, SharedHistory.TERMINATOR).astype(np.uint32)
    path = tmp_path / "index"
    assert others_go_on_during(lambda: SharedHistory.write_index(path, tokens, 50, 1, KEY))


@pytest.fixture
def history(tmp_path):
    """A history over 200,000 tokens in a file."""
    tokens = np.random.default_rng(0).integers(0, 4, 200_000).astype(np.uint32)
    path = tmp_path / "index"
    SharedHistory.write_index(path, np.append(tokens, SharedHistory.TERMINATOR), 4, 1, KEY)
    history = SharedHistory(4)
    history.open_index(path, KEY)
    return history


def many_rows(sources, history=None):
    rows = 500
    inputs = StepInputs(
        np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros((rows, 1_000), np.float32)
    )
    drafter = Drafter([inputs], 4, sources=sources, history=history)
    drafter.begin(np.random.default_rng(1).integers(0, 4, 400), 10_000)
    return drafter


def test_drafting_where_a_file_is_read(others_go_on_during, history):
    drafter, answer = many_rows([], history), np.random.default_rng(2).integers(0, 4, 300)
    assert others_go_on_during(lambda: drafter.propose(399))
    assert others_go_on_during(lambda: drafter.offer(399))
    host = HostDrafter(4, rows=[1, 500], history=history)
    host.begin(answer)
    assert others_go_on_during(host.propose_chain)
    assert others_go_on_during(host.propose_tree)
    assert others_go_on_during(lambda: host.observe(answer))

    def step():
        drafter.propose(399)
        others_before = drafter.accept_recorded
        others_before(answer)

    assert others_go_on_during(step)


def test_drafting_where_no_file_is_read_keeps_the_interpreter(others_go_on_during):
    drafter = many_rows(["automaton"])
    assert not others_go_on_during(lambda: drafter.propose(399))
    assert not others_go_on_during(lambda: drafter.offer(399))
    host = HostDrafter(4, rows=[1, 100], history=SharedHistory(4))
    host.begin([0, 1, 2, 3, 0, 1])
    assert not others_go_on_during(host.propose_tree)
    assert not others_go_on_during(lambda: host.observe([1, 2]))


def test_what_was_shared_is_read_ahead(others_go_on_during, tmp_path):
    tokens = np.random.default_rng(0).integers(0, 4, 3_000_000).astype(np.uint32)
    path = tmp_path / "index"
    SharedHistory.write_index(path, np.append(tokens, SharedHistory.TERMINATOR), 4, 1, KEY)
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


def test_a_table_of_phrases_and_many_observed_tokens(others_go_on_during):
    tokens, chances = np.arange(100_000, dtype=np.uint32), np.full(100_000, 0.5, np.float32)
    assert others_go_on_during(lambda: PhraseTable(tokens, tokens, tokens, chances))
    drafter = HostDrafter(100_000)
    drafter.begin([1])
    assert others_go_on_during(lambda: drafter.observe(tokens))


def test_planning(others_go_on_during):
    blocks = [BlockCost.guessed(10**7, 256, 32)] * 48
    assert others_go_on_during(lambda: plan(blocks, 256, 32, 10_000, strategy="just_in_time"))
