"""Servers whose steps cost the same on every machine, and stand still or fail when a test says so.

Their models say what a script says, where there is one (`scripted_bundles.py`); without drafts.

Which drafts pay is decided by what steps cost; so that it is the same everywhere, a step is priced
by the size of its model, as in `conftest.py`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

_CODE = """
import json
import time
from functools import cache
from pathlib import Path

import numpy as np

from coordgen_rs.loading import self_test
from coordgen_rs.runtime.ort_session import OrtSession

step, switches = OrtSession.step, Path(__file__).parent


def step_us(session, _):
    one_row = sum(file.num_bytes for file in session.bundle.manifest.files.values()) / 1e4
    return {width: round(one_row * (1 + (width - 1) / 20), 1) for width in session.widths}


def step_or_wait(session, inputs):
    while session.length >= 400 and (switches / "stand-still").exists():
        time.sleep(0.01)
    if session.length >= 400 and (switches / "fail").exists():
        raise RuntimeError("what it holds is not for clients")
    logits, script = step(session, inputs), scripts().get(session.bundle.path.name)
    if script is None or inputs.num_nodes > 1:
        return logits
    said, tokens = script
    ids = [*session._token_ids[: session.length].tolist(), int(inputs.input_ids[0])]
    text = b"".join(tokens[token] for token in ids if token < len(tokens))
    if not any(cue in text for cue in said):
        return logits
    told = logits.copy()
    told[0] = np.arange(logits.shape[1]) * 2654435761 % 4096 / 2048  # no two are the same
    for cue, answer in said.items():
        begun = text[text.rfind(cue) + len(cue) :]
        if cue in text and answer.startswith(begun):
            left = answer[len(begun) :]
            for number, token in enumerate(tokens):
                if left.startswith(token):
                    told[0, number] = 8 + len(token) / 4
    return told


@cache
def scripts():
    found = {}
    for path in switches.glob("*.json"):
        said, tokens = json.loads(path.read_text())
        by_cue = {cue.encode(): answer.encode() for cue, answer in said.items()}
        found[path.stem] = by_cue, [*map(bytes.fromhex, tokens)]
    return found


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

    def script(self, name: str, said: Mapping[str, str], tokens: Sequence[str]) -> None:
        """Let the model of a name say texts, by the end of the prompt; its tokens in hexadecimal.

        It is for servers that are started later.
        """
        (self._folder / f"{name}.json").write_text(json.dumps([said, tokens]))


def steady_servers(folder: Path, patch: pytest.MonkeyPatch) -> Switches:
    """Let the servers that are started from now on be such."""
    (folder / "sitecustomize.py").write_text(_CODE)
    known = os.environ.get("PYTHONPATH")
    patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{known}" if known else str(folder))
    patch.setenv("XDG_CACHE_HOME", str(folder))  # what others have measured does not count
    return Switches(folder)
