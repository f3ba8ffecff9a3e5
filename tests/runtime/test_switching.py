"""Whatever is loaded when, and whatever fails: the tokens are those of a session at rest."""

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from answers import tokens_of
from checkpoints import CHECKPOINTS, ROOT
from coordgen_rs import Bundle, DraftModel, OrtSession, Tokenizer, generate, make_drafter, plain
from coordgen_rs._core import BlockCost, strategies
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BlockLoadError, MemoryBudgetError, OptionError
from coordgen_rs.generation.stats import Stats
from coordgen_rs.runtime.cpu import CpuDevice

TASKS = ("rag", "ui", "summary", "reply")
TEXT = "\n".join((ROOT / "models" / "prompts" / f"{task}.txt").read_text() for task in TASKS)
TOKENS = Tokenizer(CHECKPOINTS["embedded"] / "tokenizer.json").encode(TEXT)
PROMPTS = [TOKENS[-n:] for n in (1, 60, 600)]
BLOCKS = 5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    out = tmp_path_factory.mktemp("bundles") / "five-blocks"
    export_checkpoint(CHECKPOINTS["embedded"], out, blocks=BLOCKS)
    written = Bundle.open(out)
    # Answers are as long as they may be, whatever the weights of the day say to these prompts.
    return replace(written, manifest=replace(written.manifest, end_token_ids=[]))


@pytest.fixture(scope="module")
def at_rest(bundle):
    return OrtSession(CpuDevice(bundle))


@pytest.fixture(scope="module")
def expected(at_rest):
    said = [tokens_of(plain(at_rest, prompt, max_new_tokens=24)) for prompt in PROMPTS]
    assert [len(answer) for answer in said] == [24] * len(PROMPTS)
    return said


def apart(bundle, **options):
    """A session whose blocks have two graphs to switch between."""
    return OrtSession(CpuDevice(bundle, share_graphs=False), **options)


def answer(session, prompt, stats=None):
    return tokens_of(generate(session, prompt, max_new_tokens=24, stats=stats))


def block_bytes(bundle):
    return [bundle.manifest.files[block.weights].num_bytes for block in bundle.manifest.blocks]


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("strategy", strategies())
def test_every_strategy_gives_the_same_tokens_in_both_directions(
    bundle, expected, strategy, preload
):
    session = apart(bundle, preload=preload, switch=strategy)
    for index in (2, 1, 0, 2):
        stats = Stats()
        assert answer(session, PROMPTS[index], stats) == expected[index]
        assert (stats.switching is None) == (len(PROMPTS[index]) == 1)


def test_a_cold_start_computes_while_it_loads(bundle, expected):
    session = apart(bundle, preload=False, switch="single")
    stats = Stats()
    assert answer(session, PROMPTS[2], stats) == expected[2]
    assert stats.switching.load_us > 0
    assert stats.switching.strategy == "single"
    for block in range(BLOCKS):
        assert not session.device.is_loaded(block, "prefill")
        assert session.device.is_loaded(block, "decode")
    assert stats.switching.peak_bytes == sum(block_bytes(bundle))
    assert stats.switching.to_json()["planned"]["lower_bound_us"] > 0


def test_unfit_costs_are_mended_prompt_by_prompt(bundle, expected):
    names = [
        f"{graph}_{what}_us" for graph in ("prefill", "decode") for what in ("load", "compute")
    ]
    unfit = BlockCost(**dict.fromkeys(names, 10**9), prefill_bytes=1, decode_bytes=1)
    session = apart(bundle, preload=False, switch="sync", costs=[unfit] * BLOCKS)
    planned = []
    for _ in range(6):
        session.switcher.only("prefill")
        stats = Stats()
        assert answer(session, PROMPTS[2], stats) == expected[2]
        planned.append(stats.switching.planned.makespan_us)
    assert all(later < 0.6 * earlier for earlier, later in pairwise(planned))


@pytest.mark.parametrize("failing", [0, 2, BLOCKS - 1])
@pytest.mark.parametrize("strategy", ["sync", "just_in_time"])
def test_a_load_that_fails_once_or_always_changes_no_token(bundle, expected, strategy, failing):
    for times in (1, 1000):
        session = prefill_only(bundle, switch=strategy)
        fail_loads(session, failing, "decode", times)
        stats = Stats()
        assert answer(session, PROMPTS[2], stats) == expected[2]
        assert f"block {failing}: its decode graph" in str(stats.switching.failures[0])
        assert answer(session, PROMPTS[1]) == expected[1]
        assert session.device.is_loaded(failing, "decode") == (times == 1)


def test_a_block_with_no_graph_is_a_named_error_and_the_session_recovers(bundle, expected):
    session = apart(bundle, preload=False, switch="single")
    undo = fail_loads(session, 3, "decode", 1000)
    with pytest.raises(BlockLoadError, match="block 3: its decode graph cannot be loaded"):
        answer(session, PROMPTS[2])
    undo()
    assert answer(session, PROMPTS[2]) == expected[2]


def test_a_slow_load_lets_the_others_compute_and_changes_no_token(bundle, expected):
    session = prefill_only(bundle, switch="async")
    may_go_on, load, run = threading.Event(), session.device.load, session.device.run
    runs = []

    def slow_load(block, graph):
        may_go_on.wait()
        load(block, graph)

    def counted_run(block, graph, buffers):
        runs.append((block, graph))
        if len(runs) == BLOCKS:  # a whole chunk was computed while the first load stood still
            may_go_on.set()
        run(block, graph, buffers)

    session.device.load, session.device.run = slow_load, counted_run
    stats = Stats()
    assert answer(session, PROMPTS[2], stats) == expected[2]
    assert {graph for _, graph in runs[:BLOCKS]} == {"prefill"}


def test_an_exception_in_the_prefill_leaves_a_session_that_goes_on(bundle, expected):
    session = prefill_only(bundle, switch="greedy")

    def interrupt(logits):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.prefill(PROMPTS[2], on_logits=interrupt)
    assert answer(session, PROMPTS[2]) == expected[2]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("share_graphs", [True, False])
def test_a_target_larger_than_its_memory_is_streamed_within_it(
    bundle, expected, share, share_graphs
):
    budget = int(share * sum(block_bytes(bundle)))
    session = OrtSession(CpuDevice(bundle, share_graphs=share_graphs), memory_budget=budget)
    for index in (2, 1, 0):
        stats = Stats()
        assert answer(session, PROMPTS[index], stats) == expected[index]
        if stats.switching is not None:
            assert stats.switching.peak_bytes <= budget
    assert tokens_of(plain(session, PROMPTS[2], max_new_tokens=24)) == expected[2]
    session.switcher.settle("auto", None)
    assert answer(session, PROMPTS[2]) == expected[2]


def test_a_read_error_in_the_middle_of_a_verification_is_named_and_mended(bundle, expected):
    session = OrtSession(CpuDevice(bundle), memory_budget=sum(block_bytes(bundle)) // 2)
    steps = generate(session, PROMPTS[2], max_new_tokens=24)
    given = next(steps).token_ids
    undo = fail_loads(session, 4, "decode", 1000)
    with pytest.raises(BlockLoadError, match="block 4"):
        list(steps)
    assert session.length >= len(PROMPTS[2]) - 1 + len(given)
    undo()
    assert answer(session, PROMPTS[2]) == expected[2]


def test_other_work_goes_on_while_a_step_waits_for_a_block(bundle, expected):
    session = OrtSession(CpuDevice(bundle), memory_budget=max(block_bytes(bundle)))
    answered = answer(session, PROMPTS[1])
    may_go_on, load = threading.Event(), session.device.load

    def slow_load(block, graph):
        may_go_on.wait()
        load(block, graph)

    worked = []

    def work(wait_us):
        worked.append(wait_us)
        if len(worked) == 3:
            may_go_on.set()
        return True

    inputs = session.step_inputs[0]
    inputs.fill_chain(np.array(answered[-1:], np.uint32), session.length)
    want = session.step(inputs).copy()
    session.device.load, session.gap_work = slow_load, work
    assert np.array_equal(session.step(inputs), want)
    assert len(worked) >= 3
    assert answered == expected[1]


def test_a_draft_model_goes_on_while_blocks_load_and_changes_no_token(bundle, expected):
    session = OrtSession(CpuDevice(bundle), memory_budget=max(block_bytes(bundle)))
    drafting = DraftModel(OrtSession(CpuDevice(bundle)))
    drafter = make_drafter(session, "edgellm", draft_model=drafting)
    drafted, load, draft_on = threading.Semaphore(0), session.device.load, drafter.draft_on

    def slow_load(block, graph):
        drafted.acquire()  # compute waits, and the model was asked to draft meanwhile
        load(block, graph)

    def noticed_draft_on(wait_us):
        assert wait_us >= 0
        has_more = draft_on(1e9)  # nobody knows how long: it waits for this
        drafted.release()
        return has_more

    drafter.draft_on = noticed_draft_on
    options = {"drafter": drafter, "max_new_tokens": 24, "provisional": True}
    steps = []
    for step in generate(session, PROMPTS[1], **options):
        steps.append(step)
        if len(steps) == 2:
            session.device.load = slow_load
    drafted.release(100)  # what is being loaded for a pass that will not come
    assert tokens_of(steps) == expected[1]
    assert session.gap_work is None
    assert drafter.num_provisional > 0
    announced = [step.provisional for step in steps if not step.token_ids]
    confirmed = [step for step in steps if step.token_ids]
    assert len(announced) == len(confirmed)
    for path, step in zip(announced, confirmed, strict=True):
        assert step.provisional == ()
        assert list(path[: step.accept_len]) == step.token_ids[: len(path[: step.accept_len])]


def test_a_budget_below_one_block_names_the_least(bundle):
    least = max(block_bytes(bundle))
    with pytest.raises(MemoryBudgetError, match=f"{least} bytes are the least"):
        answer(OrtSession(CpuDevice(bundle), memory_budget=least - 1), PROMPTS[1])


def test_an_unknown_strategy_is_refused_by_name(bundle, at_rest, expected):
    with pytest.raises(OptionError, match=r'"later".*just_in_time'):
        OrtSession(CpuDevice(bundle), switch="later")
    with pytest.raises(OptionError, match=r'"later".*just_in_time'):
        at_rest.switcher.settle("later")
    assert answer(at_rest, PROMPTS[1]) == expected[1]


def prefill_only(bundle, **options):
    """A session that stands on G1, as before a first prompt."""
    session = apart(bundle, preload=False, **options)
    session.switcher.ensure("prefill")
    return session


def fail_loads(session, block, graph, times):
    """Make loads of one graph fail so many times; returns what ends it."""
    load, left = session.device.load, [times]

    def failing(number, name):
        if (number, name) == (block, graph) and left[0]:
            left[0] -= 1
            raise OSError("input/output error")
        load(number, name)

    session.device.load = failing

    def undo():
        session.device.load = load

    return undo
