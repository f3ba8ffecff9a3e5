"""One request at a time of a `Drafted` of transformers, whatever interrupts it."""

import pytest

from coordgen_rs.adapters.transformers import Drafted
from coordgen_rs.adapters.transformers import drafted as module
from coordgen_rs.errors import OptionError
from interrupts import Tracer


@pytest.fixture
def made(monkeypatch):
    """A `Drafted`, also where there is no transformers."""
    monkeypatch.setattr(module, "hand_on_what_was_given", lambda _: None)
    return Drafted(costs=None)


def _request(drafted):
    drafted._alone(lambda: None)


def test_a_request_within_a_request_is_refused(made):
    with pytest.raises(OptionError, match="another request"):
        made._alone(lambda: _request(made))
    _request(made)


def test_an_interrupt_as_a_request_begins_or_ends_keeps_none_from_the_next(made):
    with Tracer() as tracer:
        _request(made)
    assert len(tracer.points) > 2
    for point in tracer.points:
        with pytest.raises(KeyboardInterrupt) as kept, Tracer(point):
            _request(made)
        _request(made)
        assert kept.tb is not None  # what keeps the frames alive
