"""Servers whose answers stand still once they are long, until the server is told to end.

However slow a test is, a request that it has begun is still running.
"""

import os

_CODE = """
import threading

from coordgen_rs.server.models.worker import Worker
from coordgen_rs.runtime.ort_session import OrtSession

is_ending = threading.Event()
step, stop_all = OrtSession.step, Worker.stop_all


def step_or_wait(session, inputs):
    if session.length >= 400:
        is_ending.wait()
    return step(session, inputs)


def stop_all_and_go_on(worker, why):
    stop_all(worker, why)
    is_ending.set()


OrtSession.step, Worker.stop_all = step_or_wait, stop_all_and_go_on
"""


def stall_servers(folder, monkeypatch):
    """Let the servers that a test starts from now on stand still at 400 tokens."""
    (folder / "sitecustomize.py").write_text(_CODE)
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{known}" if known else str(folder))
