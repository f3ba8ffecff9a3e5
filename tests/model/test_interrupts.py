"""Ctrl-C wherever Python looks for it, and real signals: the next answers are as ever."""

import signal

import pytest

from interrupts import ASKED, Tracer, asked, num_idle, open_model, threads_end, together
from signals import expected_of, under_signals

NUM_POINTS, NUM_SIGNALS = 20, 20


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


def _check_points(bundle, path, expected, parallel, num_points):
    """Interrupt requests at so many of the points that they meet, and ask on each time."""
    with open_model(bundle, path, parallel) as model:
        for _ in range(3):
            assert _work(model) == (expected, expected)
        with Tracer() as tracer:
            _work(model)
        points, num_before = [*tracer.points], num_idle()
        for number in range(0, len(points), max(1, len(points) // num_points)):
            tracer = Tracer(points[number])
            try:
                with tracer:
                    _work(model)
            except KeyboardInterrupt:
                pass
            assert _work(model) == (expected, expected), points[number]
            assert threads_end(num_before), points[number]
    assert threads_end(num_before)


@pytest.mark.parametrize("parallel", [1, 4])
def test_an_interrupt_at_a_point_leaves_no_lock_and_no_thread(bundle, tmp_path, expected, parallel):
    _check_points(bundle, tmp_path, expected, parallel, NUM_POINTS)


@pytest.mark.interrupts_full
@pytest.mark.parametrize("parallel", [1, 4])
def test_an_interrupt_at_each_point_leaves_no_lock_and_no_thread(
    bundle, tmp_path, expected, parallel
):
    _check_points(bundle, tmp_path, expected, parallel, 10**6)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("parallel", [1, 4])
def test_signals_leave_answers_threads_and_the_history_as_they_are(bundle, expected, parallel):
    assert under_signals(bundle, expected, parallel, NUM_SIGNALS, 0) == []


@pytest.mark.interrupts_full
@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("parallel", [1, 4])
def test_a_thousand_signals_leave_all_as_it_is(bundle, expected, parallel):
    assert under_signals(bundle, expected, parallel, 1000, 1) == []
