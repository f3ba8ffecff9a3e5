"""The switcher through the binding: stores in Python, signals and exceptions."""

import gc
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from coordgen_rs._core import BlockCost, Switcher
from coordgen_rs.errors import BlockLoadError, CallOrderError, OptionError
from coordgen_rs.runtime.forward import one_pass as passing
from coordgen_rs.runtime.forward import reading, running

PREFILL_ROWS, DECODE_ROWS = 8, 4
COST = BlockCost(
    prefill_load_us=10,
    prefill_compute_us=10,
    prefill_bytes=5,
    decode_load_us=10,
    decode_compute_us=10,
    decode_bytes=3,
)


class TellingStore:
    """Notes its calls; `before_load` may wait or raise."""

    def __init__(self, before_load=lambda block, graph: None):
        self.calls, self.held, self.before_load = [], set(), before_load

    def load(self, block, graph):
        self.calls.append(("load", block, graph))
        self.before_load(block, graph)
        self.held.add((block, graph))

    def release(self, block, graph):
        self.calls.append(("release", block, graph))
        self.held.remove((block, graph))


def over(store, num_blocks, **settled):
    return Switcher(store, [COST] * num_blocks, PREFILL_ROWS, DECODE_ROWS, **settled)


def on_g1(store, num_blocks, **settled):
    switcher = over(store, num_blocks, **settled)
    switcher.ensure("prefill")
    return switcher


def said_by(code):
    """What a program prints that ends well and says nothing else."""
    code = f"import atexit, os, signal, sys, threading\n{IMPORT}{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


IMPORT = "from coordgen_rs._core import BlockCost, Switcher\n"


def one_pass(switcher, num_blocks):
    """The graph of each block's run."""
    switcher.begin_pass()
    graphs = []
    for block in range(num_blocks):
        graphs.append(switcher.enter(block))
        switcher.leave()
    return graphs


def test_a_prompt_is_read_by_its_plan_and_reported_on():
    store = TellingStore()
    switcher = on_g1(store, 2, strategy="sync")
    store.calls.clear()
    switcher.begin(2 * PREFILL_ROWS)
    graphs = [graph for _ in range(2) for graph in one_pass(switcher, 2)]
    report = switcher.finish()
    assert graphs == ["prefill"] * 4
    assert store.held == {(0, "decode"), (1, "decode")}
    changes = (("load", "decode"), ("release", "prefill"))
    assert sorted(store.calls) == [(kind, it, graph) for kind, graph in changes for it in (0, 1)]
    assert switcher.resident() == [(False, True), (False, True)]
    assert [switcher.step_graph(block) for block in (0, 1)] == ["decode", "decode"]
    assert (report.strategy, report.planned.strategy) == ("sync", "sync")
    assert (report.peak_bytes, report.num_under_other_graph, report.failures) == (10, 0, [])
    told = report.to_json()
    assert told["planned"]["makespan_us"] == report.planned.makespan_us
    figures = {"makespan_us", "prefill_us", "exposed_load_us", "peak_bytes", "lower_bound_us"}
    assert told["planned"].keys() == figures
    assert (told["strategy"], told["failures"]) == ("sync", [])
    switcher.only("prefill")
    assert store.held == {(0, "prefill"), (1, "prefill")}


def test_what_the_store_raises_is_the_cause_and_the_block_goes_on():
    def no_room(block, graph):
        if (block, graph) == (1, "decode"):
            raise MemoryError("no room")

    store = TellingStore(no_room)
    switcher = on_g1(store, 2, strategy="sync")
    switcher.begin(PREFILL_ROWS)
    one_pass(switcher, 2)
    report = switcher.finish()
    assert store.held == {(0, "decode"), (1, "prefill")}
    assert [switcher.step_graph(block) for block in (0, 1)] == ["decode", "prefill"]
    [failure] = report.failures
    assert isinstance(failure, BlockLoadError)
    assert str(failure) == "block 1: its decode graph cannot be loaded: MemoryError: no room"
    assert isinstance(failure.__cause__, MemoryError)
    assert report.to_json()["failures"] == [str(failure)]


def test_a_block_with_nothing_is_named_and_loads_when_asked_again():
    broken = [True]

    def fail(block, graph):
        if broken:
            raise OSError("gone")

    switcher = over(TellingStore(fail), 1, strategy="single")
    for ask in (lambda: switcher.ensure("decode"), lambda: switcher.step_graph(0)):
        with pytest.raises(BlockLoadError, match=r"block 0: its decode graph .* gone") as raised:
            ask()
        assert isinstance(raised.value.__cause__, OSError)
    switcher.begin(1)
    with pytest.raises(BlockLoadError, match="block 0") as raised:
        switcher.enter(0)
    assert isinstance(raised.value.__cause__, OSError)
    switcher.cancel()
    broken.clear()
    switcher.ensure("decode")
    assert switcher.enter(0) == "decode"


def test_releases_that_raise_go_to_the_unraisable_hook(monkeypatch):
    store, seen = TellingStore(), []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: seen.append(told.exc_type))
    switcher = on_g1(store, 1)
    store.held.clear()
    switcher.only("decode")
    assert seen == [KeyError]
    assert switcher.resident() == [(False, True)]


WAITS = {
    "ensure": "switcher.ensure('decode')",
    "enter": "switcher.enter(0)",
    "finish": "switcher.cancel(); switcher.finish()",
    "begin": "switcher.cancel(); switcher.begin(1)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_the_wait_and_the_process_ends_while_loading(wait):
    begin = "" if wait == "ensure" else "switcher.begin(1); loading.wait()"
    code = f"""
class Store:
    def load(self, block, graph):
        loading.set()
        is_waiting.wait()
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait()
    def release(self, block, graph): pass

loading, is_waiting, go_on = threading.Event(), threading.Event(), threading.Event()
switcher = Switcher(Store(), [BlockCost.guessed(1, 1, 1)], 1, 1, strategy="single")
{begin}
try:
    is_waiting.set()
    {WAITS[wait]}
except KeyboardInterrupt:
    atexit.register(go_on.set)  # called before the switcher's own, which came first
    print("interrupted")
"""
    assert said_by(code) == "interrupted\n"


class CtrlC:
    """A store; once armed, a load ends with a Ctrl-C whose handler runs only after the wait."""

    def __init__(self):
        self.store = TellingStore(self._before_load)
        self.is_loading, self._is_armed, self._may_end = (threading.Event() for _ in range(3))

    def arm(self):
        self._is_armed.set()

    def at_next_wait(self):
        self._may_end.set()

    def _before_load(self, block, graph):
        if self._is_armed.is_set():
            self.is_loading.set()
            self._may_end.wait()
            self._is_armed.clear()
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # a load goes on only once the main thread waits
    gc.disable()  # a collection has callbacks, which would swallow the interrupt
    yield CtrlC()
    gc.enable()
    sys.setswitchinterval(interval)


def read(switcher, num_blocks, before_block=lambda block: None):
    with reading(switcher, PREFILL_ROWS):
        with passing(switcher):
            for block in range(num_blocks):
                before_block(block)
                with running(switcher, block):
                    pass
        return switcher.finish()


def test_ctrl_c_at_the_end_of_a_wait_enters_nothing(ctrl_c):
    switcher = over(ctrl_c.store, 1, strategy="single")
    ctrl_c.arm()
    switcher.begin(PREFILL_ROWS)
    ctrl_c.at_next_wait()
    with pytest.raises(KeyboardInterrupt):
        switcher.enter(0)
    assert switcher.enter(0) == "decode"
    switcher.leave()
    assert not switcher.finish().failures


def test_after_ctrl_c_in_a_streamed_pass_the_next_prompt_is_read(ctrl_c):
    switcher = over(ctrl_c.store, 3, memory_budget=3)
    read(switcher, 3)
    seen = []

    def before_block(block):
        seen.append(block)
        if block == 0:
            ctrl_c.arm()
        else:
            ctrl_c.at_next_wait()

    with pytest.raises(KeyboardInterrupt):
        read(switcher, 3, before_block)
    assert seen == [0, 1]
    assert read(switcher, 3).strategy == "streaming"


def test_after_ctrl_c_as_a_prompt_begins_the_next_is_read(ctrl_c):
    switcher = over(ctrl_c.store, 2, strategy="single")
    ctrl_c.arm()
    switcher.begin(PREFILL_ROWS)
    ctrl_c.is_loading.wait()
    switcher.cancel()
    ctrl_c.at_next_wait()
    with pytest.raises(KeyboardInterrupt), reading(switcher, PREFILL_ROWS):
        pytest.fail("nothing is read after Ctrl-C")
    assert read(switcher, 2).strategy == "single"


def test_after_ctrl_c_as_a_pass_begins_the_next_prompt_is_read(ctrl_c):
    switcher = over(ctrl_c.store, 3, memory_budget=3)
    switcher.begin(PREFILL_ROWS)
    ctrl_c.arm()
    ctrl_c.at_next_wait()
    with pytest.raises(KeyboardInterrupt), passing(switcher):
        pytest.fail("nothing runs after Ctrl-C")
    assert read(switcher, 3).strategy == "streaming"


def test_dropping_it_while_the_store_wants_the_interpreter_does_not_deadlock():
    began, go_on = threading.Event(), threading.Event()

    def slow(block, graph):
        began.set()
        go_on.wait()

    store = TellingStore(slow)
    switcher = over(store, 2, strategy="single")
    switcher.begin(1)
    began.wait()
    switcher.cancel()
    threading.Thread(target=go_on.set).start()
    del switcher
    assert len(store.held) == 1


@pytest.mark.parametrize("keeps_report", [False, True])
def test_a_store_that_holds_its_switcher_is_collected_after_a_failed_load(keeps_report):
    def no_room(block, graph):
        raise MemoryError("no room")

    store = TellingStore(no_room)
    store.switcher = over(store, 1, strategy="single")
    store.switcher.begin(1)
    with pytest.raises(BlockLoadError):
        store.switcher.enter(0)
    store.switcher.cancel()
    report = store.switcher.finish()
    assert isinstance(report.failures[0].__cause__, MemoryError)
    if keeps_report:
        store.report = report
    gone = weakref.ref(store)
    del store, report
    gc.collect()
    assert gone() is None


def test_a_store_that_calls_its_switcher_is_refused_and_the_interpreter_ends():
    code = """
class Store:
    def load(self, block, graph): call()
    def release(self, block, graph): pass

for call in (
    lambda: switcher.ensure("prefill"),
    lambda: switcher.only("prefill"),
    lambda: switcher.step_graph(0),
    lambda: switcher.begin(1),
    lambda: switcher.stand_by(),
    lambda: switcher.enter(0),
    lambda: switcher.try_enter(0),
    lambda: switcher.finish(),
):
    switcher = Switcher(Store(), [BlockCost.guessed(1, 1, 1)], 1, 1)
    try:
        switcher.ensure("decode")
    except Exception as error:
        print(type(error).__name__, type(error.__cause__).__name__)
"""
    assert said_by(code) == 8 * "BlockLoadError CallOrderError\n"


def test_wrong_calls_are_named():
    switcher = on_g1(TellingStore(), 2, strategy="sync")
    for error, message, call in (
        (OptionError, "number of blocks is 0", lambda: over(TellingStore(), 0)),
        (OptionError, r'"later".*just_in_time', lambda: switcher.settle("later")),
        (OptionError, "memory_budget is -1", lambda: switcher.settle("auto", -1)),
        (OptionError, "prefill, decode", lambda: switcher.ensure("both")),
        (OptionError, "prompt tokens is 0", lambda: switcher.begin(0)),
        (OptionError, "block is 2", lambda: switcher.enter(2)),
        (OptionError, "block is 2", lambda: switcher.step_graph(2)),
        (CallOrderError, "leave", switcher.leave),
        (CallOrderError, "block 0 next", lambda: (switcher.begin(1), switcher.enter(1))),
        (CallOrderError, "2 runs", switcher.finish),
        (BlockLoadError, "cancelled", lambda: (switcher.close(), switcher.begin(1))),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_load_that_dropped_its_own_switcher_ends_before_the_interpreter_does():
    code = """
class Store:
    def load(self, block, graph):
        has_begun.wait()
        held.clear()
        is_dropped.set()
        go_on.wait()
        print("loaded", flush=True)
    def release(self, block, graph): pass

has_begun, is_dropped, go_on = threading.Event(), threading.Event(), threading.Event()
held = [Switcher(Store(), [BlockCost.guessed(1, 1, 1)], 1, 1, strategy="single")]
held[0].begin(1)
has_begun.set()
is_dropped.wait()
sys.setswitchinterval(3600)  # the load goes on only where somebody waits for it
atexit.register(go_on.set)  # called before the switcher's own, which came first
"""
    assert said_by(code) == "loaded\n"
