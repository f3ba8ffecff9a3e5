"""Which graphs of a session's blocks are in memory, as a session asks it of `_core.Switcher`.

In: a switcher, and what runs in between. Out: prompts, passes and runs that are begun, and given up
where an exception ends them. What is loaded when is decided and done by the switcher.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from coordgen_rs._core import Switcher
from coordgen_rs.target.blocks import GraphName
from coordgen_rs.target.session import GapWork


@contextmanager
def reading(switcher: Switcher, num_tokens: int) -> Iterator[None]:
    """While this lasts a prompt is read; after an exception what is in memory stays usable.

    Raises:
        MemoryBudgetError: The budget is too small; the least that would do is named.
    """
    with _cancelled_by_errors(switcher):
        switcher.begin(num_tokens)
        yield


@contextmanager
def one_pass(switcher: Switcher) -> Iterator[None]:
    """While this lasts all blocks run once, in order, each within `running`.

    Raises:
        BlockLoadError: A block that streaming starts with cannot be loaded.
    """
    with _cancelled_by_errors(switcher):
        switcher.begin_pass()
        yield


@contextmanager
def running(switcher: Switcher, block: int, gap_work: GapWork = None) -> Iterator[GraphName]:
    """Wait until a block may run; the graph that it is to run under stays while this lasts.

    Args:
        switcher: What loads it.
        block: Its number.
        gap_work: Called again and again until the block may run, or it returns False.

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
def _cancelled_by_errors(switcher: Switcher) -> Iterator[None]:
    """Around what begins something, too: a signal's handler may raise as that returns."""
    try:
        yield
    except BaseException:
        switcher.cancel()
        raise
