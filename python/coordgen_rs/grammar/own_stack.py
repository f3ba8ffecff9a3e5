"""Grammars compiled where a long chain of references cannot end the process.

In: what compiles a grammar, and how deep that may go at most. Out: what it returns. llguidance
1.9.1 calls itself for each definition that another refers to, about 10 KB each time, and a process
whose stack is full is ended by the system: 800 definitions in a row fill the 8 MB of a thread.
"""

import threading
from collections.abc import Callable
from typing import Any

from coordgen_rs.errors import UnsupportedGrammarError

MOST_LEVELS = 20_000
"""6,000 objects of a schema, each inside the one before by a reference, are 18,000 levels and take
less than a third of the stack."""

_STACK_BYTES = 256 << 20
"""Size of that stack; only the part in use takes memory."""
_FEW_LEVELS = 200
"""Levels that fit into any thread's stack."""

_SETTING = threading.Lock()


def with_own_stack(num_levels: int, compile: Callable[[], Any], what: str) -> Any:
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
    made: list[Any] = []
    errors: list[BaseException] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            made.append(compile())
        except BaseException as error:
            errors.append(error)
        finally:
            is_done.set()

    thread = threading.Thread(target=run, name="coordgen-grammar")
    try:
        with _SETTING:
            before = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        is_done.wait()
    finally:
        # An interrupt ends the waiting, and no thread of this call may outlive it. Python takes a
        # thread for ended whose `join` was interrupted.
        if thread.ident is not None:
            is_done.wait()
            thread.join()
    if errors:
        raise errors[0]
    return made[0]
