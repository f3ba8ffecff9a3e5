"""Servers whose steps cost the same on every machine, and stand still or fail when a test says so.

Which drafts pay is decided by what steps cost; so that it is the same everywhere, a step is priced
by the size of its model, as in `conftest.py`.
"""

import os
from pathlib import Path

import pytest

_CODE = """
import time
from pathlib import Path

from coordgen_rs.opening import self_test
from coordgen_rs.target.ort_session import OrtSession

step, switches = OrtSession.step, Path(__file__).parent


def step_us(session, _):
    one_row = sum(file.num_bytes for file in session.bundle.manifest.files.values()) / 1e4
    return {width: round(one_row * (1 + (width - 1) / 20), 1) for width in session.widths}


def step_or_wait(session, inputs):
    while session.length >= 400 and (switches / "stand-still").exists():
        time.sleep(0.01)
    if session.length >= 400 and (switches / "fail").exists():
        raise RuntimeError("what it holds is not for clients")
    return step(session, inputs)


self_test._step_us, OrtSession.step = step_us, step_or_wait
"""


class Switches:
    """What servers do from 400 tokens on.

    Args:
        folder: Where they look for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, *, stands_still: bool = False, fails: bool = False) -> None:
        """Let all servers do so from now on."""
        for name, is_on in {"stand-still": stands_still, "fail": fails}.items():
            if is_on:
                (self._folder / name).touch()
            else:
                (self._folder / name).unlink(missing_ok=True)


def steady_servers(folder: Path, patch: pytest.MonkeyPatch) -> Switches:
    """Let the servers that are started from now on be such."""
    (folder / "sitecustomize.py").write_text(_CODE)
    known = os.environ.get("PYTHONPATH")
    patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{known}" if known else str(folder))
    patch.setenv("XDG_CACHE_HOME", str(folder))  # what others have measured does not count
    return Switches(folder)
