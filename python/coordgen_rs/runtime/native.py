"""Runs of native code that the interpreter's end waits for.

A thread that nobody joins may be inside ONNX Runtime as the interpreter goes away. Taking the
interpreter back then ends the thread in the middle of C++, and the process with it.
"""

import atexit
import os
import time
from collections.abc import Callable
from threading import get_ident

_UNTIL_LOOKED_S = 0.001

_under_way: list[tuple[int, object]] = []
"""The process and a mark of each run: a fork does not have the threads of those before it."""

waited_for: set[int] = set()
"""Threads whose end is waited for by others: they need not end here."""

_ending: list[int] = []
"""The thread that ends the interpreter, once it does."""


def run_native(run: Callable[..., object], *operands: object) -> None:
    """Call `run`, unless the interpreter is about to end: then this thread ends instead.

    Args:
        run: Native code, which lets go of the interpreter.
        operands: What it is called with.

    Raises:
        SystemExit: Another thread ends the interpreter; nothing is called.
    """
    mark = os.getpid(), object()
    try:
        _under_way.append(mark)  # before the look: who ends the interpreter does it after
        if _ending and get_ident() not in (_ending[0], *waited_for):
            raise SystemExit
        run(*operands)
    finally:
        if mark in _under_way:  # it is not, if an interrupt came before
            _under_way.remove(mark)


def _wait() -> None:
    _ending.append(get_ident())
    while any(process == os.getpid() for process, _ in list(_under_way)):
        time.sleep(_UNTIL_LOOKED_S)


atexit.register(_wait)
