"""Has `_core.Switcher` bring the graphs of a session's blocks into memory.

In: a switcher, and the code that runs in between. Out: prompts, passes and runs that are begun, and
cancelled if an exception ends them. The switcher decides what is loaded when, and loads it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from coordgen_rs._core import Switcher
from coordgen_rs.runtime.blocks import GraphName
from coordgen_rs.runtime.session import GapWork


@contextmanager
def reading(switcher: Switcher, num_tokens: int) -> Iterator[None]:
    """Read a prompt within this block; after an exception, what is in memory stays usable.

    Raises:
        MemoryBudgetError: The budget is too small; the message says how much is needed.
    """
    with cancelled_by_errors(switcher):
        switcher.begin(num_tokens)
        yield


@contextmanager
def one_pass(switcher: Switcher) -> Iterator[None]:
    """Run all blocks once within this block, in order, each within `running`.

    Raises:
        BlockLoadError: A block that streaming starts with cannot be loaded.
    """
    with cancelled_by_errors(switcher):
        switcher.begin_pass()
        yield


@contextmanager
def running(switcher: Switcher, block: int, gap_work: GapWork = None) -> Iterator[GraphName]:
    """Wait until a block may run, and keep its graph in memory within this block.

    Args:
        switcher: Loads it.
        block: Its number.
        gap_work: Called repeatedly until the block may run, or it returns False.

    Raises:
        BlockLoadError: The block has no graph, and none will come.
    """
    graph = switcher.try_enter(block)
    while graph is None and gap_work is not None and gap_work():
        graph = switcher.try_enter(block)
    if graph is None:
        graph = switcher.enter(block)
    try:
        yield graph
    finally:
        switcher.leave()


@contextmanager
def cancelled_by_errors(switcher: Switcher) -> Iterator[None]:
    """Cancel if an exception ends the block, which also holds what begins the work.

    A signal's handler may raise just as that returns.
    """
    try:
        yield
    except BaseException:
        switcher.cancel()
        raise
