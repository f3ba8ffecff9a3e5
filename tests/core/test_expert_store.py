"""Experts in mapped files: held within a budget, and named where they cannot be read."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from coordgen_rs._core import ExpertStore, memory_shares
from coordgen_rs.errors import BlockLoadError, MemoryBudgetError, OptionError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LAYERS, EXPERTS, STRIDE = 4, 16, 1 << 20
REGIONS = [(0, layer * EXPERTS * STRIDE, EXPERTS, STRIDE) for layer in range(LAYERS)]
BUDGET = 20 * STRIDE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Each expert is full of its number."""
    path = tmp_path / "block_0.experts"
    np.repeat(np.arange(LAYERS * EXPERTS, dtype=np.uint8), STRIDE).tofile(path)
    return path


def test_an_array_is_the_files_memory_and_outlives_its_store(file: Path) -> None:
    store = ExpertStore([file], REGIONS)
    array = store.array(3)
    del store
    assert array.shape == (EXPERTS * STRIDE,)
    assert not array.flags.writeable
    with file.open("r+b") as stream:
        stream.seek(REGIONS[3][1] + 7)
        stream.write(b"\xee")
    assert array[7] == 0xEE


@pytest.mark.parametrize("budget", [None, BUDGET])
def test_a_file_that_became_shorter_is_named(file: Path, budget: int | None) -> None:
    store = ExpertStore([file], REGIONS, budget=budget)
    store.bring(0, [1, 2], 2)
    with file.open("r+b") as stream:
        stream.truncate(2 * EXPERTS * STRIDE)
    with pytest.raises(BlockLoadError, match=rf"{file} cannot be read: it was cut short"):
        store.bring(3, [1, 2], 2)
    assert str(file) in (store.take_failure() or "")
    assert store.take_failure() is None
    store.bring(1, [1, 2], 2)


def test_what_does_not_fit_is_refused(file: Path) -> None:
    with pytest.raises(MemoryBudgetError, match=f"{EXPERTS * STRIDE} bytes are the least"):
        ExpertStore([file], REGIONS, budget=EXPERTS * STRIDE - 1)
    with pytest.raises(OptionError, match="whole pages inside its file"):
        ExpertStore([file], [(0, 4096, LAYERS * EXPERTS, STRIDE)])
    with pytest.raises(BlockLoadError, match="absent cannot be read"):
        ExpertStore([file.with_name("absent")], [])
    store = ExpertStore([file], REGIONS)
    for layer, chosen, per_row in [(4, [0], 1), (0, [EXPERTS], 1), (0, [-1], 1), (0, [1, 2, 3], 2)]:
        with pytest.raises(OptionError):
            store.bring(layer, chosen, per_row)
    with pytest.raises(OptionError):
        store.array(4)


def test_a_budget_is_divided_between_graphs_and_experts() -> None:
    layers = [(4, 10), (6, 10)]
    assert memory_shares(130, [30, 20], layers) == (50, 80)
    assert memory_shares(1000, [30, 20], layers) == (900, 100)
    assert memory_shares(95, [30, 20], layers) == (35, 60)
    with pytest.raises(MemoryBudgetError, match="90 bytes are the least"):
        memory_shares(89, [30, 20], layers)
    for huge in [(2**62, 1), (2**44, 1), (2, 2**63)]:
        with pytest.raises(OptionError, match="at most 16777216 in all"):
            memory_shares(10**18, [1], [huge])
    with pytest.raises(MemoryBudgetError):
        memory_shares(2**64 - 1, [2**64 - 1, 2**64 - 1], [(1, 1)])


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_the_command_names_a_file_that_is_cut_short_under_its_hands(file: Path) -> None:
    done = run(
        f"""
        import os, sys
        from coordgen_rs._core import ExpertStore, name_bus_errors
        name_bus_errors()
        array = ExpertStore([sys.argv[1]], {REGIONS}).array(3)
        os.truncate(sys.argv[1], 4096)
        print(array[:].sum())
        """,
        file,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"coordgen: error: {file} was cut short while it was in use, or its disk failed\n"
    )


def test_a_fork_reads_without_the_threads_that_it_does_not_have(file: Path) -> None:
    done = run(
        f"""
        import os, sys
        from coordgen_rs._core import ExpertStore
        store = ExpertStore([sys.argv[1]], {REGIONS}, budget={BUDGET})
        store.bring(0, [1, 2], 2)
        if os.fork() == 0:
            store.bring(1, [3, 4], 2)
            os._exit(int(store.array(1)[3 * {STRIDE}]))
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
        """,
        file,
    )
    assert done.returncode == EXPERTS + 3, done.stderr
