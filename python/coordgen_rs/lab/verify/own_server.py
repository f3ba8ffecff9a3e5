"""Our own plain decoding of a model's file, beside another server: `coordgen serve` without drafts.

In: the path of a model. Out: the address of a server in a process of its own, until the block ends.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordgen_rs.errors import OptionError

_READY = re.compile(r"serving .* on (\S+) ")
_END_S = 15


@contextmanager
def plain_server(model: Path) -> Iterator[str]:
    """Serve a model on a free port of this machine.

    Args:
        model: What `coordgen serve` opens.

    Yields:
        The server's URL, once it answers.

    Raises:
        OptionError: It cannot be served; the message is that of `coordgen serve`.
    """
    command = [sys.executable, "-m", "coordgen_rs", "serve", str(model), "--port", "0"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for the report
    ) as process:
        try:
            yield _ready(process)
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process: subprocess.Popen[str]) -> str:
    """The URL, once the server tells that it answers.

    Raises:
        OptionError: It ended.
    """
    said = ""
    for line in process.stderr or ():
        said = line.strip() or said
        if found := _READY.search(line):
            return found[1]
    raise OptionError(f"--model: {said.removeprefix('coordgen: error: ') or 'it cannot be served'}")
