"""Ctrl-C wherever Python looks for it, and real signals: the next answers are as ever."""

import faulthandler
import random
import signal
import sqlite3
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from coordgen_rs import Model
from coordgen_rs.store.history.store import DATABASE_NAME
from interrupts import ASKED, Tracer, asked, num_idle, open_model, threads_end, together

_LONGEST_S = 100
"""A request that takes longer hangs: the process ends with the stacks of all threads."""


class AlarmError(RuntimeError):
    """What a handler may raise beside Ctrl-C's."""


def _is_of_signal(error):
    """Whether a handler has raised it; what an `Exception` hits may tell it in its own words."""
    while error is not None and not isinstance(error, KeyboardInterrupt | AlarmError):
        error = error.__cause__ or error.__context__
    return error is not None


def _stored(path):
    with closing(sqlite3.connect(path / "history" / DATABASE_NAME)) as connection:
        return connection.execute("SELECT COUNT(*) FROM requests").fetchone()[0]


def under_signals(bundle, expected, parallel, num_signals, seed):
    """Send signals to requests of one model, which is closed every hundred.

    Returns:
        What went wrong, in words; empty where nothing did.
    """
    draw, wrong = random.Random(seed), []
    while num_signals > 0:
        with tempfile.TemporaryDirectory() as folder:
            some = min(num_signals, 100)
            wrong += _of_one_model(Path(folder), bundle, expected, parallel, some, draw)
            num_signals -= some
    return wrong


def _of_one_model(path, bundle, expected, parallel, num_signals, draw):
    wrong, num_finished, come = [], 0, []

    def handler(kind, _):
        come.append(kind)
        raise draw.choice([KeyboardInterrupt, AlarmError])

    signal.signal(signal.SIGALRM, handler)
    faulthandler.dump_traceback_later(_LONGEST_S, exit=True)  # by a thread, which counts
    model = open_model(bundle, path, parallel)
    # How long one of each takes: moments are drawn from that.
    begun = time.perf_counter()
    for number in range(len(ASKED)):
        num_finished += _ask(model, number, expected, wrong)
    whole_s, num_before = time.perf_counter() - begun, num_idle()
    for _ in range(num_signals):
        faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
        number = draw.randrange(len(ASKED))
        in_streams = draw.random() < 0.4
        at_s = draw.uniform(1e-5, whole_s / (1 if in_streams else len(ASKED)))
        come.clear()
        try:
            signal.setitimer(signal.ITIMER_REAL, at_s)
            num_finished += _ask(model, number, expected, wrong, in_streams=in_streams)
            while not come:  # it comes behind the request
                time.sleep(0.001)
        except BaseException as error:
            if not _is_of_signal(error):
                raise
        for later in (number, draw.randrange(len(ASKED))):
            num_finished += _ask(model, later, expected, wrong)
        if not threads_end(num_before):
            wrong.append("a thread is left")
    model.close()
    if not threads_end(num_before):
        wrong.append("a thread is left behind close")
    faulthandler.cancel_dump_traceback_later()
    if model.prefix_store is not None and model.prefix_store.counts.failures:
        wrong.append(f"the store failed: {model.prefix_store.counts}")
    if (num_stored := _stored(path)) < num_finished:
        wrong.append(f"{num_stored} of {num_finished} finished requests are stored")
    return wrong


def _ask(model, number, expected, wrong, *, in_streams=False):
    """Ask one request, or all in streams; how many have finished, which are all to be stored."""
    numbers, said = [number], [] if in_streams else [asked(model, number)]
    if in_streams:
        numbers, said = range(len(ASKED)), together(model)
    wrong += [
        f"request {it} said {tokens}, not {expected[it]}"
        for it, tokens in zip(numbers, said, strict=True)
        if tokens != expected[it]
    ]
    return len(numbers)


# What comes within a finalizer is told by Python, and raised by nobody.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAITING = ("threading.py", "/background.py", "/prefix.py")
NUM_OTHERS, NUM_SIGNALS = 8, 20


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture(scope="module")
def expected(bundle):
    """What plain decoding says to each request: its tokens."""
    with Model.open(bundle, draft="plain") as model:
        return [asked(model, number) for number in range(len(ASKED))]


@pytest.fixture
def handled():
    """The handler of signals is put back."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def _work(model):
    return [asked(model, number) for number in range(len(ASKED))], together(model)


def _few(points):
    """All points in what threads wait by, and some of all others."""
    waiting = [it for it in points if any(part in it[1] for part in WAITING)]
    others = [it for it in points if it not in waiting]
    return waiting + others[:: len(others) // NUM_OTHERS]


def _check_points(bundle, path, expected, parallel, chosen):
    """Interrupt requests at points that they meet, and ask on each time."""
    model = open_model(bundle, path, parallel)
    for _ in range(3):
        assert _work(model) == (expected, expected)
    with Tracer() as tracer:
        _work(model)
    points, num_before = chosen([*tracer.points]), num_idle()
    for point in points:
        with suppress(KeyboardInterrupt), Tracer(point):  # not every point is met again
            _work(model)
        assert [asked(model, number) for number in range(len(ASKED))] == expected, point
        assert threads_end(num_before), point
    closing = threading.Thread(target=model.close, daemon=True)
    closing.start()
    closing.join(120)
    assert not closing.is_alive()
    assert threads_end(num_before)


@pytest.mark.parametrize("parallel", [1, 4])
def test_an_interrupt_at_a_point_leaves_no_lock_and_no_thread(bundle, tmp_path, expected, parallel):
    _check_points(bundle, tmp_path, expected, parallel, _few)


@pytest.mark.interrupts_full
@pytest.mark.parametrize("parallel", [1, 4])
def test_an_interrupt_at_each_point_leaves_no_lock_and_no_thread(
    bundle, tmp_path, expected, parallel
):
    _check_points(bundle, tmp_path, expected, parallel, list)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("parallel", [1, 4])
def test_signals_leave_answers_threads_and_the_history_as_they_are(bundle, expected, parallel):
    assert under_signals(bundle, expected, parallel, NUM_SIGNALS, 0) == []


@pytest.mark.interrupts_full
@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("parallel", [1, 4])
def test_a_thousand_signals_leave_all_as_it_is(bundle, expected, parallel):
    assert under_signals(bundle, expected, parallel, 1000, 0) == []
