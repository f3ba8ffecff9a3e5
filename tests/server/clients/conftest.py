"""Servers for the clients that people use, which live in an environment of their own.

`make clients` builds that environment and runs these tests in it; the servers run in the
project's. `COORDGEN_CLIENTS_MODEL=FILE` has them answer with another model than SmolLM2.
"""

import json
import os
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"
PYTHON = Path(os.environ.get("COORDGEN_PYTHON", ROOT / ".venv" / "bin" / "python")).absolute()
MODEL = Path(os.environ.get("COORDGEN_CLIENTS_MODEL", ROOT / "build" / "smollm2")).absolute()


@pytest.fixture(scope="session", autouse=True)
def _settings():
    """Settings of the clients; nothing of what they tell their makers leaves this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_CONFIGURED": "true",
        }.items():
            patch.setenv(name, value)
        yield


@contextmanager
def served(*options):
    """`coordgen serve` on SmolLM2, or on another model that is asked for, once it is ready."""
    command = [PYTHON, "-m", "coordgen_rs", "serve", MODEL, "--name", "smollm2", "--port", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            told = ""
            while not (ready := re.search(r"serving .* on (\S+) ", told)):
                told = process.stderr.readline()
                assert told, "the server ended"
            yield ready[1]
        finally:
            process.kill()


@pytest.fixture(scope="session")
def drafting():
    """A server that drafts."""
    with served() as url:
        yield url


@pytest.fixture(scope="session")
def plain():
    """The same without drafts."""
    with served("--draft", "plain") as url:
        yield url


@pytest.fixture
def scripted():
    """Starts a server whose model says the answer of the first `(needle, answer)` that fits."""
    processes = []

    def start(*rules):
        process = subprocess.Popen(
            [PYTHON, SUPPORT / "scripted_server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        process.stdin.write(json.dumps(rules) + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    yield start
    for process in processes:
        process.stdin.close()
        assert process.wait(600) == 0
