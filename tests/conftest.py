"""Bundles and sessions that many tests use, exported once a run."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from checkpoints import CHECKPOINTS
from coordgen_rs import OrtSession, open_session
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.loading import self_test
from coordgen_rs.runtime.heads import DraftHead
from coordgen_rs.runtime.machine import usable_cores
from coordgen_rs.runtime.onnx_runtime import set_threads
from coordgen_rs.runtime.session import StepCost
from prompts import PROMPTS
from skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# The same examples each time: a test fails by a change, not by a draw. `make explore` draws others.
settings.register_profile("same", derandomize=True, database=None, print_blob=True, **_NO_CLOCK)
settings.register_profile("explore", max_examples=1000, database=None, print_blob=True, **_NO_CLOCK)
settings.load_profile("same")
# Hypothesis also draws what stands in the modules that are loaded: another set for each order of
# tests, which under pytest-xdist depends on how busy the machine is.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = providers.Constants


@pytest.fixture(scope="session", autouse=True)
def kept_self_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the results of self-tests out of the user's own cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


def pytest_xdist_auto_num_workers() -> int:
    """How many processes `-n auto` starts: a third of their time tests wait for others."""
    return usable_cores() + 1


@pytest.fixture(scope="session", autouse=True)
def shared_cores() -> None:
    """Share the cores out among pytest-xdist's workers: threads that wait for a core spin."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        set_threads(max(1, usable_cores() // workers))


@pytest.fixture(scope="session", autouse=True)
def steady_costs() -> Iterator[Callable[..., dict[int, float]]]:
    """Price steps by the size of their model instead of timing them; gives what times them.

    Which drafts pay decides how many steps an answer takes, and must not depend on how busy the
    machine is.
    """

    def step_us(session: OrtSession, _: object) -> dict[int, float]:
        one_row = sum(file.num_bytes for file in session.bundle.manifest.files.values()) / 1e4
        return {width: round(one_row * (1 + (width - 1) / 20), 1) for width in session.widths}

    def head_costs(session: DraftHead) -> list[StepCost]:
        costs = (session._target.step_costs or ())[: len(session.step_inputs)]
        return [StepCost(cost.base / 8, 0.0) for cost in costs]

    timed = self_test._step_us
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_test, "_step_us", step_us)
        patch.setattr(DraftHead, "_measured", head_costs)
        yield timed


@pytest.fixture(scope="session", autouse=True)
def steady_expert_costs() -> Iterator[Callable[[OrtSession, float], float]]:
    """Price experts by the widest step instead of timing them; gives what times them."""
    timed = self_test._expert_us
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_test, "_expert_us", lambda _, step_us: round(step_us / 1000, 4))
        yield timed


@pytest.fixture(scope="session", autouse=True)
def heard_interrupts() -> None:
    """Let processes that tests start hear Ctrl-C, which a run in the background has ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A function from a checkpoint's name and its weights to a bundle; skips where it is absent."""

    @cache
    def export(name: str, weights: str) -> Path:
        if not CHECKPOINTS[name].exists():
            pytest.skip(f"no {name} here")
        out = tmp_path_factory.mktemp("bundles") / f"{name}-{weights}"
        export_checkpoint(CHECKPOINTS[name], out, weights=weights)
        return out

    return export


@pytest.fixture(scope="session")
def session_of(bundle_of: Callable[[str, str], Path]) -> Callable[..., OrtSession]:
    """A function from a checkpoint's name, its weights and options to an open session."""
    return cache(lambda name, weights, **options: open_session(bundle_of(name, weights), **options))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """`PROMPTS`, as `coordgen bench` reads them."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(prompt._asdict()) for prompt in PROMPTS))
    return path


@pytest.fixture
def coordgen(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command in this process, which must end with `code`; gives what it printed."""

    def run(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        return capsys.readouterr()

    return run
