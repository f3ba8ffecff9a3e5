"""`coordgen serve` in a process of its own, for tests that ask it over HTTP."""

import re
import subprocess
from contextlib import contextmanager

from command_line import MODULE


@contextmanager
def served(bundle, *options, begin=None):
    """A server in a process of its own, once it is ready, and its address.

    `begin` is called in that process before anything else.
    """
    command = [*MODULE, "serve", str(bundle), *options, "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=begin) as process:
        try:
            told = said = ""
            while not (ready := re.search(r"serving .* on (\S+) ", told)):
                said += (told := process.stderr.readline())
                assert told, f"the server ended: {said}"
            yield process, ready[1]
        finally:
            if process.poll() is None:
                process.kill()
