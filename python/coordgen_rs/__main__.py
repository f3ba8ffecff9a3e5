"""The first and last moments of the command `coordgen`, when little is loaded.

In: the process as the shell started it. Out: its exit code. Loading the rest takes a while: whoever
interrupts meanwhile sees one line and exit code 130, as later. It parses and runs nothing itself.
"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory: a numpy.py beside a downloaded bundle would be run

from coordgen_rs.cli.exit_codes import INTERRUPTED

TYPE_CHECKING = False
"""What `typing` has by this name: loading that takes longer than all else until `main` listens."""

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_LINE = b"coordgen: error: interrupted\n"


def main() -> int:
    """Run the command of `sys.argv`, and return its exit code."""
    try:
        import signal

        is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_heard:  # not by a process in the background, where it is ignored
            signal.signal(signal.SIGINT, _leave)
        from coordgen_rs.cli.terminal.streams import make_streams_usable

        make_streams_usable()
        from coordgen_rs.cli.main import main as run

        code = run(
            when_loaded=lambda: (
                is_heard and signal.signal(signal.SIGINT, signal.default_int_handler)
            )
        )
        if is_heard:
            signal.signal(signal.SIGINT, _leave_silently)
    except KeyboardInterrupt:
        _leave()
    return code


def _leave(signal_number: int = 0, frame: "FrameType | None" = None) -> "NoReturn":
    """End at once: a `KeyboardInterrupt` could come out of a half-loaded module as another error.

    Nothing has been opened or written yet.
    """
    try:
        os.write(2, _LINE)
    finally:
        os._exit(INTERRUPTED)


def _leave_silently(signal_number: int, frame: "FrameType | None") -> "NoReturn":
    """End at once: all is done and written, and Python is only clearing up."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
