"""A benchmark as a script: how it ends, and the processes that it begins.

In: its main function. Out: the process' exit code. An interrupted one says so in one line, as the
command `coordgen` does; what it had begun is cleared up by its own `with` blocks before.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from signal import SIG_DFL, SIGINT, signal
from typing import NoReturn

_INTERRUPTED = 130
"""128 + SIGINT: the exit code that shells give to a program that was interrupted."""
_NOT_READ = 141
"""128 + SIGPIPE."""


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run a script's main function, and end the process with what it returns."""
    try:
        code = main()
    except KeyboardInterrupt:
        print(f"{sys.argv[0]}: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    except BrokenPipeError:  # who read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _NOT_READ
    sys.exit(code)


def own_processes() -> ProcessPoolExecutor:
    """Runs each call in a new process, which an interrupt ends without a word."""
    return ProcessPoolExecutor(
        1, max_tasks_per_child=1, initializer=signal, initargs=(SIGINT, SIG_DFL)
    )
