"""A progress bar for commands."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from coordgen_rs.cli.terminal.text import printable


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr, if that is a terminal and rich is installed.

    Where nothing takes time, rich is not loaded.

    Yields:
        A function to call with what is being done, how much of it is done, and how much there is.
    """
    with ExitStack() as stack:
        shown: list[Callable[[str, int, int], None]] = []

        def show(what: str, done: int, total: int) -> None:
            if not shown:
                shown.append(stack.enter_context(_bar()))
            shown[0](what, done, total)

        yield show


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress
    except ModuleNotFoundError:
        console = None
    else:
        console = Console(stderr=True)
    if console is None or not console.is_terminal:  # some versions end a disabled bar with a line
        yield lambda what, done, total: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=escape(printable(what)), completed=done, total=total
        )
