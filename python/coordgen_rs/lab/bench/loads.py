"""Loads as on another machine: from a slower disk, or on a core of their own.

In: a session, and what is to be added to each load. Out: the same session over a store that waits
first, and steps timed anew. The wait takes no core from compute, as a slower disk would not.
"""

import os
import time

import numpy as np

from coordgen_rs._core import Switcher
from coordgen_rs.errors import OptionError
from coordgen_rs.loading.self_test import run_self_test
from coordgen_rs.runtime.device import GRAPHS, Device, GraphName
from coordgen_rs.runtime.ort_session import OrtSession


class DelayedStore:
    """Blocks whose loads take longer than they do.

    Args:
        device: Whose blocks are loaded and released.
        delay_s: Seconds added to each load.
        core: The only core that loads may use; None for any.
    """

    def __init__(self, device: Device, delay_s: float, core: int | None = None) -> None:
        self._device, self._delay_s, self._core = device, delay_s, core

    def load(self, block: int, graph: GraphName) -> None:
        """Load a graph after the delay; raises as the device does."""
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})  # of this thread alone, which is the loader's
        time.sleep(self._delay_s)
        self._device.load(block, graph)

    def release(self, block: int, graph: GraphName) -> None:
        """Drop a graph."""
        self._device.release(block, graph)


def keep_a_core() -> int:
    """Take a core from this thread, and from those that it starts, for loads.

    Returns:
        The core.

    Raises:
        OptionError: The system does not pin threads, or there is only one core.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise OptionError("this system does not pin threads to cores")
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        raise OptionError(f"loads need a core of their own, but only core {last} may be used")
    os.sched_setaffinity(0, others)
    return last


def slow_loads(session: OrtSession, delay_s: float, core: int | None) -> None:
    """Stream a session's blocks through a `DelayedStore` from now on, and time its steps anew.

    Nothing changes where all blocks stay in memory.

    Raises:
        MemoryBudgetError, BlockLoadError: Same as in `OrtSession.step`.
    """
    # The first prompt decides whether blocks are streamed, and this session may have read none: its
    # steps are not timed where an earlier opening did so.
    session.rewind(0)
    session.prefill(np.zeros(1, np.uint32))
    session.rewind(0)
    if not session.switcher.is_streaming:
        return
    before, device, manifest = session.switcher, session.device, session.bundle.manifest
    before.close()
    for block in range(device.num_blocks):
        for graph in GRAPHS:
            device.release(block, graph)
    session.switcher = Switcher(
        DelayedStore(device, delay_s, core),
        [cost.with_load_delay(round(1e6 * delay_s)) for cost in before.costs],
        manifest.prefill_rows,
        manifest.decode_rows,
        is_shared=device.is_shared,
        memory_budget=before.memory_budget,
    )
    timed = run_self_test(session, {})
    session.select(session.widths, [timed.cost(w) for w in session.widths])
