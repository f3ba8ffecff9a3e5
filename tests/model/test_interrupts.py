"""Ctrl-C wherever Python looks for it, and real signals: the next answers are as ever."""

import signal
import threading
from contextlib import suppress

import pytest

from interrupts import ASKED, Tracer, asked, num_idle, open_model, threads_end, together
from signals import expected_of, under_signals

# What comes within a finalizer is told by Python, and raised by nobody.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAITING = ("threading.py", "/background.py", "/copy_on_write.py")
NUM_OTHERS, NUM_SIGNALS = 8, 20


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture(scope="module")
def expected(bundle):
    return expected_of(bundle)


@pytest.fixture
def handled():
    """Handlers of signals are put back."""
    kinds = signal.SIGINT, signal.SIGALRM
    before = [signal.getsignal(kind) for kind in kinds]
    yield
    for kind, handler in zip(kinds, before, strict=True):
        signal.signal(kind, handler)


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
