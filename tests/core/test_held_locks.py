"""Nobody waits for a lock with the interpreter in hand: every method, while one is held.

Where a method did, the test would stand still for ever: so would the process.
"""

import threading
import time
from functools import partial

import pytest

from coordgen_rs import _core
from coordgen_rs.errors import CoordgenError
from core_subjects import (
    SUBJECTS,
    VOCAB_SIZE,
    OfLookupTable,
    OfModelDraft,
    OfSharedHistory,
    OfSwitcher,
    Store,
    counting,
    logits,
    step_inputs,
    text,
    tokens,
)

ARGUMENTS = {
    "drafts_as": [_core.draft_method("edgellm")],
    "remember": [tokens(1, 2)],
    "open_index": ["/nowhere/index", bytes(32)],
    "open_corpus": [["/nowhere/index"], bytes(32)],
    "is_whole_index": ["/nowhere/index", bytes(32)],
    "open_fleet_index": ["/nowhere/index", bytes(32)],
    "write_index": ["/nowhere/index", tokens(2**32 - 1), 5, 1, bytes(32)],
    "write_gathered_index": ["/nowhere/index", [], [], 5, bytes(32)],
    "learn": [tokens(1, 2), logits(2)],
    "row": [1],
    "save": ["/nowhere/table", VOCAB_SIZE, bytes(32)],
    "open": ["/nowhere/table", VOCAB_SIZE, bytes(32)],
    "skip": [0],
    "wait_us": [0],
    "next_step": [4],
    "read": [logits(4), 0],
    "begin": [16],
    "ensure": ["prefill"],
    "only": ["prefill"],
    "step_graph": [0],
    "enter": [0],
    "try_enter": [0],
}
"""By method; those that are left out take none."""

HOLDERS = {
    _core.LookupTable: OfLookupTable,
    _core.ModelDraft: OfModelDraft,
    _core.SharedHistory: OfSharedHistory,
    _core.Switcher: OfSwitcher,
}
ATTRIBUTES = sorted(
    (held.__name__, name)
    for held in HOLDERS
    for name in vars(held)
    if not name.startswith("_") and name != "TERMINATOR"
)


@pytest.fixture
def waits_while_held():
    """Whether a call waits for what is held; meanwhile other threads count on."""
    with counting() as counted:
        yield partial(_waits, counted)


def _waits(counted, holder, call):
    entered, is_over, failed = threading.Event(), threading.Event(), []

    def run():
        entered.set()
        try:
            call()
        except CoordgenError:
            pass
        except Exception as error:
            failed.append(error)
        finally:
            is_over.set()

    def waits_now():
        thread.start()
        entered.wait()
        before = counted[0]
        while counted[0] < before + 3 and not is_over.is_set():
            time.sleep(0)
        return not is_over.is_set()

    thread = threading.Thread(target=run)
    waited = _core._while_held(holder, waits_now)
    thread.join()
    if failed:
        raise failed[0]  # a call that this table has wrong waits for nothing
    return waited


@pytest.mark.parametrize(("of", "name"), ATTRIBUTES)
def test_other_threads_go_on_while_a_call_waits_for_what_is_held(waits_while_held, of, name):
    holder = HOLDERS[getattr(_core, of)](3).object

    def call():
        found = getattr(holder, name)
        if callable(found):
            found(*ARGUMENTS.get(name, []))

    waits_while_held(holder, call)


def test_every_class_with_a_lock_is_held(waits_while_held):
    for held in HOLDERS:
        assert waits_while_held(HOLDERS[held](3).object, lambda: None) is False
    for held in set(SUBJECTS) - set(HOLDERS):
        with pytest.raises(CoordgenError, match="no lock"):
            _core._while_held(SUBJECTS[held](0).object, lambda: None)


def drafter_over(holder):
    """A drafter that reads from the holder, with a request begun."""
    source, name = {
        _core.LookupTable: ("lookup-table", "lookup_table"),
        _core.ModelDraft: ("draft-model", "model_draft"),
        _core.SharedHistory: ("automaton", "history"),
    }[type(holder)]
    drafter = _core.Drafter([step_inputs()], VOCAB_SIZE, sources=[source], **{name: holder})
    drafter.begin(text(5, 9), 9)
    drafter.propose(8)
    return drafter


@pytest.mark.parametrize("kind", [OfLookupTable, OfModelDraft, OfSharedHistory])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("begin", [text(5, 9), 9]),
        ("prefilled", [logits(2)]),
        ("model_pays", [8]),
        ("propose", [8]),
        ("accept", [logits(4)]),
        ("accept_recorded", [tokens(1, 2, 3, 0, 1, 2)]),
        ("memory_bytes", []),
        ("end", []),
    ],
)
def test_other_threads_go_on_while_a_drafter_waits(waits_while_held, kind, name, arguments):
    holder = kind(5).object
    waits_while_held(holder, partial(getattr(drafter_over(holder), name), *arguments))


def test_a_drafter_for_an_engine_waits_without_the_interpreter(waits_while_held):
    history = OfSharedHistory(2).object
    drafter = _core.HostDrafter(VOCAB_SIZE, history=history)
    drafter.begin(text(4, 8))
    for call in (
        partial(drafter.propose_tree, 9),
        partial(drafter.propose_chain, 9),
        partial(drafter.observe, tokens(1, 2)),
        partial(drafter.rewind, 8),
        partial(drafter.follow, text(5, 9)),
        partial(drafter.begin, text(4, 8)),
        drafter.memory_bytes,
        drafter.end,
    ):
        waits_while_held(history, call)
    drafter.begin(text(4, 8))
    assert waits_while_held(history, lambda: drafter.propose_tree(9))


def test_a_switcher_is_made_while_another_is_held(waits_while_held):
    cost = _core.BlockCost.guessed(1_000, 8, 4)
    holder = OfSwitcher(3).object
    made = []
    waits_while_held(holder, lambda: made.append(_core.Switcher(Store(), [cost], 8, 4)))
    assert len(made) == 1
    assert waits_while_held(holder, holder.resident)


def test_a_table_answers_whoever_has_waited():
    table, answered = OfLookupTable(0).object, []
    thread = threading.Thread(target=lambda: answered.append(table.num_rows))
    _core._while_held(table, thread.start)
    thread.join()
    assert answered == [table.num_rows]
