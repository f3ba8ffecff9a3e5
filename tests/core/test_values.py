"""What the core takes and gives: integers of any kind, values of a wrong type, copies of values."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from coordgen_rs import (
    Drafter,
    DraftMethod,
    DraftSource,
    DynamicTree,
    HostDrafter,
    LookupTable,
    PromptLookup,
    Sampling,
    SeenTokens,
    SharedHistory,
    SuffixAutomaton,
    draft_methods,
    draft_sources,
)
from coordgen_rs._core import BlockCost, move_rows
from coordgen_rs.errors import (
    CallOrderError,
    CoordgenError,
    OptionError,
    ShapeError,
    TokenOutOfRangeError,
)
from core_subjects import step_inputs

TEXT = [1, 2, 3, 4, 1, 2]
SAME = {
    "int64": np.array(TEXT),
    "int8": np.array(TEXT, np.int8),
    "uint64": np.array(TEXT, np.uint64),
    "big-endian": np.array(TEXT, ">i4"),
    "strided": np.array([TEXT, TEXT], np.uint32).T[:, 0],
    "reversed": np.array(TEXT[::-1], np.uint32)[::-1],
    "read-only": np.frombuffer(np.array(TEXT).tobytes(), np.int64),
    "list": TEXT,
    "tuple": tuple(TEXT),
    "range": range(1, 7),
    "numpy's integers": [np.int64(id) for id in TEXT],
    "objects": np.array(TEXT, object),
}


def found_by_all(text):
    """What all that takes tokens makes of a text."""
    host, history = HostDrafter(10), SharedHistory(10)
    host.begin(text, text)
    host.observe(text)
    host.follow([*text, *text, 9])
    history.remember(text)
    drafter = Drafter([step_inputs()], 10, history=history)
    drafter.begin(text, 5, prediction=text)
    drafter.propose(5)
    accepted = drafter.accept_recorded(text)
    automaton, lookup, seen = SuffixAutomaton(), PromptLookup(), SeenTokens(10)
    seen.restart(text)
    for source in (automaton, lookup, seen):
        source.extend(text)
    filled = step_inputs(6)
    filled.fill_chain(text, 0)
    table = LookupTable()
    table.learn(text, np.eye(6, 10, dtype=np.float32))
    return (
        host.token_ids.tolist(),
        host.propose_chain(4).tolist(),
        drafter.draft[0].tolist(),
        accepted.token_ids.tolist(),
        automaton.count(text),
        lookup.propose().tolist(),
        len(seen),
        filled.input_ids.tolist(),
        table.num_rows,
    )


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_integers_of_any_type_and_order_are_taken(text):
    expected = TEXT if not isinstance(text, range) else list(text)
    assert found_by_all(text) == found_by_all(np.array(expected, np.uint32))


def test_sources_answer_about_any_part_of_their_text():
    automaton, lookup = SuffixAutomaton(), PromptLookup()
    automaton.extend(TEXT)
    assert (automaton.contains([2, 3]), automaton.contains([2, 1])) == (True, False)
    assert (automaton.last_end([1, 2]), automaton.last_end([2, 1])) == (6, None)
    assert (len(automaton), automaton.match_len, automaton.num_states > 6) == (6, 2, True)
    lookup.extend(TEXT)
    assert lookup.propose().tolist() == [3, 4, 1, 2]
    lookup.clear()
    assert lookup.propose().size == 0
    for source in (automaton, lookup):
        for wrong in (["a"], np.zeros(3), np.zeros((2, 2), np.uint32)):
            with pytest.raises(ShapeError):
                source.extend(wrong)


def test_tensors_are_taken():
    torch = pytest.importorskip("torch")
    assert found_by_all(torch.tensor(TEXT)) == found_by_all(np.array(TEXT, np.uint32))


@pytest.mark.parametrize("wrong", [-1, 2**32, -(2**70), 2**64, 2**63])
def test_an_id_out_of_range_is_named(wrong):
    with pytest.raises(TokenOutOfRangeError, match=f"prompt_ids holds the token id {wrong}"):
        HostDrafter(10).begin([1, wrong])
    with pytest.raises(TokenOutOfRangeError, match=f"token_ids holds the token id {wrong}"):
        SharedHistory(10).remember([1, wrong])
    with pytest.raises(OptionError, match=f"rows holds {wrong}"):
        move_rows([], [0, wrong], 0)


NO_INTEGERS = [[1.5], np.zeros(3), "abc", b"ab", ["a"], [None], None, object(), [True], {1}]


@pytest.mark.parametrize(
    "wrong", [*NO_INTEGERS, [[1, 2]], np.zeros((2, 2), np.uint32), 5, [1, [2]]]
)
def test_what_is_no_row_of_integers_is_refused_by_name(wrong):
    with pytest.raises(ShapeError, match="prompt_ids must"):
        HostDrafter(10).begin(wrong)


def begun():
    drafter = HostDrafter(10)
    drafter.begin(TEXT)
    return drafter


OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
OF_SAMPLING += ("presence_penalty", "frequency_penalty")
REFUSED = {
    **{name: lambda one, name=name: Sampling(**{name: one}) for name in OF_SAMPLING},
    "vocab_size": lambda one: HostDrafter(one),
    "max_tokens": lambda one: begun().propose_chain(one),
    "num_tokens": lambda one: begun().rewind(one),
    "past_len": lambda one: Drafter([step_inputs()], 10).propose(one),
    "k": lambda one: LookupTable(one),
    "budget": lambda one: DynamicTree(one),
    "threshold": lambda one: DynamicTree(threshold=one),
}


@pytest.mark.parametrize(
    "wrong",
    ["x", object(), [1], -7, 1e300, 10**400, b"x"],
    ids=["text", "object", "list", "below", "float", "large", "bytes"],
)
@pytest.mark.parametrize("name", REFUSED)
def test_a_value_of_a_wrong_type_is_refused_by_name(name, wrong):
    with pytest.raises(OptionError, match=rf"^{name} is "):
        REFUSED[name](wrong)


def test_other_wrong_values_are_errors_of_their_own_too():
    of_hosts = {"method": 3, "commit": 3, "costs": "x", "history": 3, "rows": "x"}
    for call in (
        lambda: begun().propose_tree(-1),
        *(lambda one=one: HostDrafter(10, **dict([one])) for one in of_hosts.items()),
        lambda: HostDrafter(10, end_token_ids=[-1]),
        lambda: SharedHistory("x"),
        lambda: SharedHistory(10, fleet=3),
        lambda: SharedHistory(10).remember([1], "x"),
        lambda: SeenTokens("x"),
        lambda: Sampling(logit_bias=3),
        lambda: Sampling().check_tokens("x"),
        lambda: LookupTable().row(-1),
        lambda: DraftMethod("x"),
        lambda: DraftSource(3),
    ):
        with pytest.raises(CoordgenError):
            call()


def test_a_vocabulary_without_tokens_is_refused():
    for made in (
        HostDrafter,
        SharedHistory,
        SeenTokens,
        lambda size: Drafter([step_inputs()], size),
    ):
        with pytest.raises(OptionError, match="vocab_size is 0"):
            made(0)


def test_rewinding_before_a_request_is_a_call_out_of_order():
    with pytest.raises(CallOrderError):
        HostDrafter(10).rewind(1)
    drafter = begun()
    drafter.end()
    with pytest.raises(CallOrderError):
        drafter.rewind(0)


def test_costs_that_are_refused_are_shown_as_they_were_given():
    with pytest.raises(OptionError, match=r"costs is \[1, \(2, 0\.5\), -3\], but"):
        HostDrafter(10, rows=[1, 2, 3], costs=[1.0, (2.0, 0.5), -3.0])


VALUES = [
    Sampling(),
    Sampling(0.7, top_k=40, top_p=0.9, min_p=0.1, seed=2**64 - 1),
    Sampling(0, repetition_penalty=1.1, presence_penalty=-1, frequency_penalty=0.3),
    Sampling(logit_bias={5: 1.5, 7: float("-inf")}),
    DynamicTree(),
    DynamicTree(
        20, counts_paths=True, depth_decay=0.1, width_decay=0.2, threshold=0.3, update_interval=4
    ),
    BlockCost.guessed(1_000, 10, 2),
    *draft_methods(),
    *draft_sources(),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_can_be_pickled_and_copied(value):
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert again == value
        assert repr(again) == repr(value)
    assert [value == other for other in VALUES].count(True) == 1


def test_a_value_is_shown_as_it_is_made():
    assert repr(Sampling()) == "Sampling()"
    assert repr(Sampling(0.7, top_p=0.9, seed=3)) == "Sampling(temperature=0.7, top_p=0.9, seed=3)"
    biased = Sampling(logit_bias=dict.fromkeys(range(300), 1.0))
    assert repr(biased).endswith("3: 1.0, .. 300 in all})")
    for value in VALUES[:6]:
        assert eval(repr(value), {**globals(), "inf": float("inf")}) == value


def _use_in_threads(num_threads, use):
    with ThreadPoolExecutor(num_threads) as pool:
        for used in [pool.submit(use) for _ in range(num_threads)]:
            used.result()


def test_threads_may_share_a_drafter_for_an_engine():
    drafter, text = HostDrafter(50), np.arange(2_000) % 50

    def use():
        for _ in range(100):
            drafter.begin(text)
            drafter.observe([3, 4])
            drafter.propose_chain(4)
            drafter.propose_tree()
            drafter.follow(text)
            assert drafter.prompt_len == len(text)
            assert drafter.per_source.keys()
            assert drafter.memory_bytes()

    _use_in_threads(8, use)


@pytest.mark.parametrize("source", [SuffixAutomaton(), PromptLookup()], ids=lambda it: type(it))
def test_threads_may_share_a_source(source):
    text = np.arange(20_000) % 50

    def use():
        for _ in range(30):
            source.extend(text)
            source.memory_bytes()
            source.clear()

    _use_in_threads(4, use)
