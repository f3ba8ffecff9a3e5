"""What compiling a grammar may cost: time and memory, and how deep it may go.

In: a grammar. Out: what it takes, or an error that says that it costs too much.
llguidance 1.9.1 has limits on a step, but few on compiling, and neither stops nor lets itself be
stopped: twenty patterns in `allOf` take half a minute, forty no end. So what is not known to be
cheap is compiled in a process of its own first, which has two seconds of the processor, and ends
with who asks. And it calls itself for each definition that another refers to, about 10 KB each
time: 800 in a row fill the 8 MB of a thread, and the system ends the process. So what may go deep
is compiled in a thread with a large stack.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from time import monotonic
from typing import Any

from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.text.grammar.kinds import Gbnf, JsonSchema, Lark, LarkOfSchemas, Regex

MOST_LEVELS = 20_000
"""6,000 objects of a schema, each inside the one before by a reference, are 18,000 levels and take
less than a third of the stack."""

_STACK_BYTES = 256 << 20
"""Size of that stack; only the part in use takes memory."""
_FEW_LEVELS = 200
"""Levels that fit into any thread's stack."""

_SETTING = threading.Lock()

MOST_S = 2
"""Seconds of the processor to compile a grammar in; usual ones take a hundredth of a second."""
_MOST_WAIT_S = 60.0
"""The same by the clock, where the process gets little of the processor, or has no limits."""
_MOST_BYTES = 1 << 30
"""Address space of the process, its stack of 256 MB included."""
_BETWEEN_LOOKS_S = 0.05
"""Between two looks whether the grammar is still wanted."""

_SHORT = 16_000
"""Letters up to which a grammar may be told to cost little by what is in it."""
_SHORT_RULES = 2_000
"""The same for rules and patterns, whose parts multiply sooner."""
_MOST_COUNTED = 10_000
"""How often something may be repeated in all: counts within counts multiply."""

_COSTLY_KEYS = frozenset(
    [
        *("allOf", "oneOf", "not", "if", "multipleOf", "pattern", "patternProperties"),
        *("propertyNames", "contains", "format", "dependentSchemas", "dependencies"),
    ]
)
"""What may have to hold together with something else."""
_ALTERNATIVES = frozenset(["anyOf", "$ref", "enum", "const"])
"""What holds together with all that stands beside it, but for `_REMARKS`."""
_REMARKS = frozenset(
    [
        *("title", "description", "default", "examples", "type", "$defs", "definitions"),
        *("$schema", "$id"),
    ]
)
_COUNTS = frozenset(
    ["maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"]
)
_COSTLY_SIGNS = re.compile(r"[&~{%]")
"""Of Lark and patterns: intersections, counts, and whatever is written in another language."""

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
ended = []
def most_bytes():
    try:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    except NameError:
        return 0
def compile():
    matcher = package.LLMatcher(tokens, text, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    ended.append(True)
before = most_bytes()
compiling = threading.Thread(target=compile)
compiling.start()
compiling.join()
print(most_bytes() - before)
sys.exit(not ended)
"""

is_wanted: ContextVar[Callable[[], bool]] = ContextVar("is_wanted", default=lambda: True)
"""Whether somebody still waits for the grammar that this thread compiles."""


class TooCostlyError(UnsupportedGrammarError):
    """A grammar costs too much to compile."""


class GivenUpError(Exception):
    """Nobody waits any more for the grammar that was to be compiled."""


def is_cheap_schema(schema: object) -> bool:
    """Whether a JSON schema costs little by what is in it: no part has to hold with another."""
    counted, waiting = 1, [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if part.keys() & _COSTLY_KEYS:
                return False
            if (found := part.keys() & _ALTERNATIVES) and part.keys() - found - _REMARKS:
                return False
            if len(found) > 1:
                return False
            for key in part.keys() & _COUNTS:
                if isinstance(part[key], int | float):
                    counted *= max(1, part[key])
            waiting += part.values()
    return counted <= _MOST_COUNTED


def is_cheap(grammar: JsonSchema | Regex | Lark | Gbnf) -> bool:
    """Whether a grammar costs little by what is in it."""
    match grammar:
        case JsonSchema(text=text):
            return len(text) <= _SHORT and is_cheap_schema(json.loads(text))
        case LarkOfSchemas(text=text, are_cheap=are_cheap):
            return len(text) <= _SHORT and are_cheap
        case Regex(pattern=text) | Lark(text=text) | Gbnf(text=text):
            return len(text) <= _SHORT_RULES and not _COSTLY_SIGNS.search(text)


def check_cost(text: str, what: str, num_levels: int) -> int:
    """Check that a grammar can be compiled soon and in little memory.

    Nothing is checked where no Python can be started, as in a program that is frozen into one file.

    Args:
        text: The grammar in llguidance's form.
        what: Names it in messages.
        num_levels: How deep compiling may go at most; too deep a grammar is refused elsewhere.

    Returns:
        The bytes that it took; 0 where that is not known.

    Raises:
        TooCostlyError: It costs too much.
        GivenUpError: Nobody waits for it any more (`is_wanted`).
    """
    if num_levels > MOST_LEVELS or not sys.executable or getattr(sys, "frozen", False):
        return 0
    import llguidance._lib

    code = _CHILD.format(seconds=MOST_S, num_bytes=_MOST_BYTES)
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(llguidance._lib.__file__))]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        )
    except OSError:
        return 0
    with child:
        try:
            with suppress(BrokenPipeError):  # it has ended
                child.stdin.write(text.encode())  # type: ignore[union-attr]
            num_bytes = _taken(child)
        finally:
            child.kill()
    if num_bytes is None:
        raise TooCostlyError(
            f"{what} cannot be followed: it costs too much to compile, more than {MOST_S} seconds "
            f"or {_MOST_BYTES >> 20:,} MB; it has too many intersections (allOf), or is too large"
        )
    return num_bytes


def _taken(child: subprocess.Popen[bytes]) -> int | None:
    """The bytes that a process takes to compile what it was given; None beyond its limits.

    Raises:
        GivenUpError: Nobody waits for it any more.
    """
    until_s = monotonic() + _MOST_WAIT_S
    while monotonic() < until_s:
        try:
            said, _ = child.communicate(timeout=_BETWEEN_LOOKS_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return None if child.returncode else int(said)
        if not is_wanted.get()():
            raise GivenUpError("the grammar was given up while it was being compiled")
    return None


def with_deep_stack(num_levels: int, compile: Callable[[], Any], what: str) -> Any:
    """Call `compile` with enough stack, and return what it returns.

    Args:
        num_levels: How deep it may go at most.
        compile: Called once, and in a thread of its own where it may go deep.
        what: Names the grammar in messages.

    Raises:
        UnsupportedGrammarError: It may go too deep.
        Exception: What `compile` raises.
    """
    if num_levels > MOST_LEVELS:
        raise UnsupportedGrammarError(
            f"{what} cannot be followed: it has more than {MOST_LEVELS:,} parts"
        )
    if num_levels <= _FEW_LEVELS:
        return compile()
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(compile())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="coordgen-grammar")
    try:
        with _SETTING:
            before = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        return done.result()
    finally:
        # An interrupt ends the waiting, and no thread of this call may outlive it. Python takes a
        # thread for ended whose `join` was interrupted.
        if thread.ident is not None:
            wait([done])
            thread.join()
