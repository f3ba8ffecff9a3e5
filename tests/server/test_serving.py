"""Connections of a server: which are dropped, and when."""

from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import uvicorn

from coordgen_rs.server import serving


class Connection:
    """One of uvicorn's, as far as it is looked at."""

    def __init__(self, *, is_answered):
        self.cycle = None if is_answered is None else SimpleNamespace(response_complete=is_answered)
        self.transport = SimpleNamespace(abort=self.abort)
        self.is_dropped = False

    def abort(self):
        self.is_dropped = True


def test_who_never_ends_the_head_of_a_request_is_dropped_and_nobody_else():
    server = serving._Server(uvicorn.Config(lambda: None), None, 1)
    new, running, idle = (Connection(is_answered=state) for state in (None, False, True))
    server.server_state.connections |= {new, running, idle}
    server._drop_silent(0)
    server._drop_silent(serving._SLOWEST_HEAD_S)
    assert not (new.is_dropped)
    assert not (idle.is_dropped)
    idle.cycle.response_complete = False  # it asks again
    server._drop_silent(serving._SLOWEST_HEAD_S + 1)
    assert (new.is_dropped, running.is_dropped, idle.is_dropped) == (True, False, False)


def test_who_asks_again_and_again_is_not_dropped_however_short_the_answers_are():
    server = serving._Server(uvicorn.Config(lambda: None), None, 1)
    busy = Connection(is_answered=True)
    server.server_state.connections.add(busy)
    server._drop_silent(0)
    for second in range(1, 4):
        busy.cycle = SimpleNamespace(response_complete=True)  # another request, between two looks
        server._drop_silent(second * serving._SLOWEST_HEAD_S)
    assert not busy.is_dropped
    server._drop_silent(4 * serving._SLOWEST_HEAD_S + 1)
    assert busy.is_dropped
