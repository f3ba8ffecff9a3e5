"""Where CI must have something, a test that is skipped for want of it fails."""

import os
import subprocess
import sys

import pytest

from checkpoints import ROOT
from skips import KINDS

ABSENT = """
import pytest


@pytest.mark.skipif(True, reason="no build/SmolLM2: run `make smollm2`")
def test_of_a_real_model():
    raise AssertionError


def test_of_an_engine():
    pytest.importorskip("no_such_engine", reason="could not import 'cyllama'")
"""
FILE = """
import pytest

pytest.importorskip("no_such_package", reason="needs torch")
"""


@pytest.fixture
def run(tmp_path):
    """Run both files with what may be lacking; exit status and output."""
    hooks = "from skips import pytest_make_collect_report, pytest_runtest_makereport\n"
    sources = {"conftest.py": hooks, "test_absent.py": ABSENT, "test_file.py": FILE}
    for name, source in (sources | {"pytest.ini": "[pytest]\n"}).items():
        (tmp_path / name).write_text(source)
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    known.pop("COORDGEN_MAY_LACK", None)
    known["PYTHONPATH"] = str(ROOT / "tests" / "support")
    known["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

    def pytest_with(*options, **variables):
        command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", *options]
        command.append("--continue-on-collection-errors")
        done = subprocess.run(
            command, cwd=tmp_path, env=known | variables, capture_output=True, text=True
        )
        return done.returncode, done.stdout

    return pytest_with


@pytest.mark.parametrize("variables", [{}, {"COORDGEN_MAY_LACK": "real-model engines torch"}])
def test_what_is_named_may_be_lacking_and_anything_where_nothing_is_said(run, variables):
    status, said = run(**variables)
    assert status == 0, said
    assert "3 skipped" in said


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")])
def test_anything_else_fails(run, options):
    status, said = run(*options, COORDGEN_MAY_LACK="engines")
    assert status == 1, said
    assert "1 skipped, 2 errors" in said
    for reason in ("no build/SmolLM2", "needs torch"):
        assert f"COORDGEN_MAY_LACK does not name why: Skipped: {reason}" in said


@pytest.fixture
def ci(tmp_path):
    """Run `.ci/run` with a `make` that only fails where told; exit status and its targets."""
    log, make = tmp_path / "targets", tmp_path / "make"
    make.write_text(
        f"""#!/bin/sh
        for word; do
            echo "$word $COORDGEN_MAY_LACK" >> {log}
            [ "$word" != "$FAILS" ] || exit 1
        done
        """
    )
    make.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    def run(**variables):
        log.write_text("")
        known = {name: value for name, value in os.environ.items() if name != "MAY_LACK"}
        known |= {"PATH": path, **variables}
        done = subprocess.run(["bash", ROOT / ".ci" / "run"], env=known)
        return done.returncode, [line.split() for line in log.read_text().splitlines()]

    return run


FIRST = ["lint-rust", "test-rust", "lint-python", "setup-train", "smollm2"]
LAST = ["test-python", "fuzz-again", "test-lowest"]


@pytest.mark.parametrize("target", [*FIRST, *LAST])
def test_ci_is_red_where_something_fails_or_cannot_be_fetched(ci, target):
    status, targets = ci(FAILS=target)
    names = {name for name, *_ in targets}
    assert status != 0
    assert target in names
    assert ("test-python" in names) == (target in LAST)


def test_ci_fetches_all_but_what_it_is_told_to_lack_and_tells_the_tests(ci):
    status, targets = ci(FAILS="")
    assert status == 0
    assert {"setup-train", "smollm2"} < {name for name, *_ in targets}
    assert not {"torch", "real-model"} & set(targets[0])
    status, targets = ci(FAILS="", MAY_LACK="torch real-model")
    assert status == 0
    assert not {"setup-train", "smollm2"} & {name for name, *_ in targets}
    assert {"torch", "real-model"} < set(targets[0])
    assert set(targets[0][1:]) <= KINDS.keys()
