"""Grammars that may cost minutes or gigabytes to compile are compiled elsewhere first.

In: a grammar in llguidance's form. Out: nothing, or an error that says that it costs too much.
llguidance 1.9.1 has limits on a step, but few on compiling, and neither stops nor lets itself be
stopped: twenty patterns in `allOf` take half a minute, forty no end. So what looks costly is
compiled in a process of its own, which has two seconds of the processor, and ends with who asks.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from time import monotonic

from coordgen_rs.errors import GrammarError, UnsupportedGrammarError
from coordgen_rs.grammar.own_stack import MOST_LEVELS

MOST_S = 2
"""Seconds of the processor to compile a grammar in; usual ones take a hundredth of a second."""
_MOST_WAIT_S = 60.0
"""The same by the clock, where the process gets little of the processor, or has no limits."""
_MOST_BYTES = 1 << 30
"""Address space of the process, its stack of 256 MB included."""
_BETWEEN_LOOKS_S = 0.05
"""Between two looks whether the grammar is still wanted."""

_SHORT = 16_000
"""Letters up to which a grammar is costly by what it has in it alone."""
_COSTLY = re.compile(r"allOf|multipleOf|attern|oneOf|[&~]|\{\s*,?\d|\d{4}")
"""Intersections, counted repetitions, patterns beside others, and large numbers."""

_CHILD = """
import sys, threading
from importlib import machinery, util
try:
    import os, resource
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds} + 1))
    resource.setrlimit(resource.RLIMIT_AS, ({num_bytes}, {num_bytes}))
except (ImportError, OSError, ValueError):
    pass
text = sys.stdin.buffer.read().decode()
loader = machinery.ExtensionFileLoader("llguidance._lib", sys.argv[1])
package = util.module_from_spec(util.spec_from_loader(loader.name, loader))
loader.exec_module(package)
threading.stack_size(256 << 20)
tokens = package.LLTokenizer("byte")
def compile():
    package.LLMatcher(tokens, text, log_level=0).compute_bitmask()
compiling = threading.Thread(target=compile)
compiling.start()
compiling.join()
"""

is_wanted: ContextVar[Callable[[], bool]] = ContextVar("is_wanted", default=lambda: True)
"""Whether somebody still waits for the grammar that this thread compiles."""


def check_cost(text: str, what: str, num_levels: int) -> None:
    """Check that a grammar can be compiled soon and in little memory.

    Nothing is checked where no Python can be started, as in a program that is frozen into one file.

    Args:
        text: The grammar in llguidance's form.
        what: Names it in messages.
        num_levels: How deep compiling may go at most; too deep a grammar is refused elsewhere.

    Raises:
        UnsupportedGrammarError: It costs too much.
        GrammarError: Nobody waits for it any more (`is_wanted`).
    """
    if num_levels > MOST_LEVELS or (len(text) <= _SHORT and not _COSTLY.search(text)):
        return
    import llguidance._lib

    code = _CHILD.format(seconds=MOST_S, num_bytes=_MOST_BYTES)
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(llguidance._lib.__file__))]
    if not sys.executable or getattr(sys, "frozen", False):
        return
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        )
    except OSError:
        return
    with child:
        try:
            with suppress(BrokenPipeError):  # it has ended
                child.stdin.write(text.encode())  # type: ignore[union-attr]
            is_cheap = _ends_well(child)
        finally:
            child.kill()
    if not is_cheap:
        raise UnsupportedGrammarError(
            f"{what} cannot be followed: it costs too much to compile, more than {MOST_S} seconds "
            f"or {_MOST_BYTES >> 20:,} MB; it has too many intersections (allOf), or is too large"
        )


def _ends_well(child: subprocess.Popen[bytes]) -> bool:
    """Whether the process compiles what it was given within its limits.

    Raises:
        GrammarError: Nobody waits for it any more.
    """
    until_s = monotonic() + _MOST_WAIT_S
    while monotonic() < until_s:
        try:
            child.communicate(timeout=_BETWEEN_LOOKS_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return child.returncode >= 0  # else a limit has ended it
        if not is_wanted.get()():
            raise GrammarError("the grammar was given up while it was being compiled")
    return False
