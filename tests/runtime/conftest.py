"""Bundles of families that several files use, exported once a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from assistants import write_pair
from coordgen_rs.convert import export_checkpoint
from hybrids import write_hybrid
from lossless import Bundles


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="session")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("heads")

    def bundle(
        kind: str, head: str | None = "random", weights: str = "fp32", blocks: int = 1
    ) -> Path:
        """A bundle of Gemma 4's kinds or of "mtp", whose head is fitted, random, echo or None."""
        source, out = folder / f"{kind}-{head}", folder / f"{kind}-{head}-{weights}-{blocks}"
        if out.exists():
            return out
        if not source.exists() and kind == "mtp":
            write_hybrid(source / "target", "qwen3_5", mtp=head)
        elif not source.exists():
            write_pair(source, kind, head or "random")
        beside = source / "assistant" if kind != "mtp" and head else None
        sizes = {"blocks": blocks, "context": 1024}
        export_checkpoint(source / "target", out, weights=weights, assistant=beside, **sizes)
        return out

    return bundle
