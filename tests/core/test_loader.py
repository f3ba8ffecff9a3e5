"""The loader through the binding: stores in Python, signals, exceptions, and real sessions."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from coordgen_rs._core import Loader
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BlockLoadError, CallOrderError, OptionError, ShapeError
from coordgen_rs.target.blocks import CpuBlocks
from coordgen_rs.target.buffers import Buffers
from coordgen_rs.target.kv_cache import KvCache
from coordgen_rs.target.onnx_runtime import set_threads


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


def on_g1(store, num_blocks, **options):
    loader = Loader(store, num_blocks, **options)
    for block in range(num_blocks):
        loader.ensure(block, "prefill")
    return loader


def runs(graphs, num_blocks):
    return [(index % num_blocks, index // num_blocks, g, 0, 0) for index, g in enumerate(graphs)]


def switch(block, after_runs):
    return [
        ("release", block, "prefill", after_runs, 0, 0),
        ("load", block, "decode", after_runs, 0, 0),
    ]


def test_a_timetable_is_carried_out_in_its_order_beside_the_runs():
    store = TellingStore()
    loader = on_g1(store, 2, num_bytes=[(5, 3), (7, 2)])
    store.calls.clear()
    loader.begin(runs(["prefill", "prefill", "decode", "decode"], 2), switch(0, 1) + switch(1, 2))
    graphs = []
    for block in (0, 1, 0, 1):
        graphs.append(loader.enter(block))
        loader.leave()
    report = loader.finish()
    assert graphs[:2] == ["prefill", "prefill"]  # then the clock decides
    assert store.calls == [action[:3] for action in switch(0, 1) + switch(1, 2)]
    assert store.held == {(0, "decode"), (1, "decode")}
    assert loader.resident() == [(False, True), (False, True)]
    assert [run[:3] for run in report.runs] == [run[:3] for run in runs(graphs, 2)]
    assert [action[:3] for action in report.actions] == store.calls
    assert report.peak_bytes == 12
    assert (report.failures, report.is_cancelled) == ([], False)
    loader.release(1, "decode")
    assert store.held == {(0, "decode")}
    loader.release_all()
    assert store.held == set()


def test_what_the_store_raises_is_the_cause_and_the_block_goes_on():
    def no_room(block, graph):
        if (block, graph) == (1, "decode"):
            raise MemoryError("no room")

    store = TellingStore(no_room)
    loader = on_g1(store, 2)
    loader.begin(runs(["decode", "decode"], 2), switch(1, 0) + switch(0, 0))
    for block in (0, 1):
        loader.enter(block)
        loader.leave()
    report = loader.finish()
    assert store.held == {(0, "decode"), (1, "prefill")}
    [failure] = report.failures
    assert isinstance(failure, BlockLoadError)
    assert str(failure) == "block 1: its decode graph cannot be loaded: MemoryError: no room"
    assert isinstance(failure.__cause__, MemoryError)


def test_a_block_with_nothing_is_named_and_loads_when_asked_again():
    broken = [True]

    def fail(block, graph):
        if broken:
            raise OSError("gone")

    loader = Loader(TellingStore(fail), 1)
    with pytest.raises(BlockLoadError, match=r"block 0: its decode graph .* gone") as raised:
        loader.ensure(0, "decode")
    assert isinstance(raised.value.__cause__, OSError)
    loader.begin(runs(["decode"], 1), [("load", 0, "decode", 0, 0, 0)])
    with pytest.raises(BlockLoadError, match="block 0") as raised:
        loader.enter(0)
    assert isinstance(raised.value.__cause__, OSError)
    loader.cancel()
    assert loader.finish().is_cancelled
    broken.clear()
    loader.ensure(0, "decode")
    assert loader.enter(0) == "decode"


def test_releases_that_raise_go_to_the_unraisable_hook(monkeypatch):
    store, seen = TellingStore(), []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: seen.append(told.exc_type))
    loader = on_g1(store, 1)
    store.held.clear()
    loader.release_all()
    assert seen == [KeyError]
    assert loader.resident() == [(False, False)]


def test_compute_goes_on_while_a_load_is_stuck():
    stuck = threading.Event()
    store = TellingStore(lambda block, graph: graph == "prefill" or stuck.wait())
    loader = on_g1(store, 2)
    loader.begin(runs(["decode"] * 4, 2), [("load", 0, "decode", 0, 0, 0)])
    for block in (0, 1, 0, 1):
        assert loader.enter(block) == "prefill"
        loader.leave()
    stuck.set()
    assert loader.finish().num_under_other_graph == 4


@pytest.mark.parametrize("wait", ["loader.enter(0)", "loader.finish()"])
def test_ctrl_c_ends_the_wait_and_the_process_ends_while_loading(wait):
    code = f"""
import atexit, os, signal, threading
from coordgen_rs._core import Loader

class Store:
    def load(self, block, graph):
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait()
    def release(self, block, graph): pass

go_on = threading.Event()
loader = Loader(Store(), 1)
loader.begin([], [("load", 0, "decode", 0, 0, 0)])
try:
    {wait}
except KeyboardInterrupt:
    atexit.register(go_on.set)  # called before the loader's own, which came first
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_dropping_it_while_the_store_wants_the_interpreter_does_not_deadlock():
    began, go_on = threading.Event(), threading.Event()

    def slow(block, graph):
        began.set()
        go_on.wait()

    store = TellingStore(slow)
    loader = Loader(store, 1)
    loader.begin([], [("load", 0, "decode", 0, 0, 0), ("load", 0, "prefill", 0, 0, 0)])
    began.wait()
    loader.cancel()
    threading.Thread(target=go_on.set).start()
    del loader
    assert store.held == {(0, "decode")}


def test_a_store_that_holds_its_loader_is_collected():
    store = TellingStore()
    store.loader = on_g1(store, 1)
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None


def test_wrong_calls_are_named():
    loader = on_g1(TellingStore(), 2)
    with pytest.raises(ShapeError, match="num_bytes"):
        Loader(TellingStore(), 2, [(1, 1)])
    with pytest.raises(OptionError, match="prefill, decode"):
        loader.ensure(0, "both")
    with pytest.raises(OptionError, match="load, release"):
        loader.begin([], [("drop", 0, "decode", 0, 0, 0)])
    with pytest.raises(OptionError, match="after_runs"):
        loader.begin([], [("load", 0, "decode", 1, 0, 0)])
    with pytest.raises(OptionError, match="block"):
        loader.enter(2)
    with pytest.raises(CallOrderError, match="leave"):
        loader.leave()
    loader.begin(runs(["prefill"], 2), [])
    with pytest.raises(CallOrderError, match="block 0 next"):
        loader.enter(1)
    with pytest.raises(CallOrderError, match="1 runs"):
        loader.finish()
    loader.close()
    with pytest.raises(BlockLoadError, match="cancelled"):
        loader.begin([], [])


@pytest.fixture(scope="module")
def real_blocks(bundle_of):
    set_threads(None)
    bundle = Bundle.open(bundle_of("embedded", "fp32"))
    model, slots = bundle.manifest.model, bundle.manifest.slots
    cache = KvCache(model.num_layers, model.num_kv_heads, slots, model.head_dim)
    blocks = CpuBlocks(bundle, cache, share=False)
    return blocks, Buffers.empty(bundle.manifest.decode_rows, model, slots)


def test_real_sessions_are_switched_again_and_again_between_their_runs(real_blocks):
    blocks, buffers = real_blocks
    loader = Loader(blocks, len(blocks))
    for block in range(len(blocks)):
        loader.ensure(block, "decode")
    expected = None
    for _ in range(10):
        loads = [
            (kind, block, "decode", block + 1, 0, 0)
            for block in range(len(blocks))
            for kind in ("release", "load")
        ]
        loader.begin(runs(["decode"] * len(blocks), len(blocks)), loads)
        buffers.hidden[0][:] = 1
        for block in range(len(blocks)):
            blocks.run(block, loader.enter(block), buffers)
            loader.leave()
        hidden = blocks.hidden_out(buffers).copy()
        expected = hidden if expected is None else expected
        assert np.array_equal(hidden, expected)
        assert not loader.finish().failures
    loader.release_all()
    assert not any(
        blocks.is_loaded(block, graph)
        for block in range(len(blocks))
        for graph in ("prefill", "decode")
    )


def test_a_session_is_created_without_the_interpreter(real_blocks):
    blocks, _ = real_blocks
    loading = threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # a thread keeps the interpreter until it lets go of it itself
    try:
        loader = Loader(
            TellingStore(lambda block, graph: [loading.set(), blocks.load(block, graph)]), 1
        )
        loader.begin([], [("load", 0, "prefill", 0, 0, 0)])
        loading.wait()
        was_over = blocks.is_loaded(0, "prefill")
        assert not loader.finish().failures
    finally:
        sys.setswitchinterval(interval)
    assert not was_over
    blocks.release(0, "prefill")
