"""A call in a process of its own, whose memory is freed when it ends.

In: a function of a module and its arguments, all of which can be pickled. Out: what it returns, or
the error that it raises.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from coordgen_rs.errors import CoordgenError

_T = TypeVar("_T")


class OwnProcessError(CoordgenError):
    """A process that measured something ended without a result; the message holds its last line."""


def in_own_process(function: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Call a function in another process of this Python.

    Raises:
        OwnProcessError: The process was killed, or ended otherwise without a result.
        Exception: Whatever the function raises.
    """
    main = f"from {__name__} import answer; answer()"
    task = pickle.dumps((function, arguments, options))
    command = [sys.executable, "-P", "-c", main]  # -P: no code of the working directory is run
    done = subprocess.run(command, input=task, capture_output=True)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OwnProcessError(
            f"the process of {function.__name__} ended with {done.returncode}: {said or 'no word'}"
        )
    result, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    returned: _T = result
    return returned


def answer() -> None:
    """Read a call from stdin, and write its result or its error on stdout."""
    outcome: tuple[Any, Exception | None]
    function, arguments, options = pickle.load(sys.stdin.buffer)
    try:
        outcome = function(*arguments, **options), None
    except Exception as error:
        outcome = None, error
    sys.stdout.buffer.write(pickle.dumps(outcome))
