"""Which tests may be skipped: in CI only those that need what CI may lack, elsewhere any.

In: `COORDGEN_MAY_LACK`, names of `KINDS`; empty for none, unset for anything. Out: hooks for
`conftest.py` that turn every other skip into a failure.
"""

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

KINDS = {
    "apple": r"mlx",
    "browser": r"chromium",
    "compiler": r"no C compiler",
    "device": r"not on a device",
    "emulator": r"emulator|onnxruntime-qnn",
    "engines": r"cyllama|onnxruntime_genai",
    "linux": r"/proc|/dev/full|no fork|resource|pinned",
    "peers": r"no build of llama\.cpp",
    "permissions": r"permissions do not bind",
    "real-model": r"SmolLM2",
    "shared": r"no (shared models|TinyStories-656K|stories260K|Spec-Bench answers) here",
    "shells": r"(zsh|fish) is not installed",
    "torch": r"torch|transformers|onnx_ir|setup-train",
}
"""By name, what the reason of such a skip contains."""


def is_expected(reason: str) -> bool:
    """Whether this machine may lack what a test needs."""
    lacking = os.environ.get("COORDGEN_MAY_LACK")
    if lacking is None:
        return True
    return any(re.search(KINDS[name], reason) for name in lacking.split())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Fail a test that is skipped and should not be."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Fail a file that is skipped and should not be."""
    return _judged((yield))


def _judged(report: Any) -> Any:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not is_expected(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, but COORDGEN_MAY_LACK does not name why: {reason}"
    return report
