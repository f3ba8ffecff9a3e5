"""What the emulator prints is dropped, and nothing that anybody else prints meanwhile."""

import subprocess
import sys

import pytest

from coordgen_rs.runtime.qnn.provider import is_emulator

_PRINT = """
import ctypes, os, threading
from coordgen_rs.runtime.qnn import provider

def elsewhere():
    print("of another thread", flush=True)
    os.write(1, b"of the system\\n")

with provider._stdout_kept_clean():
    ctypes.CDLL(None).puts(b"of the emulator")
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    print("of this thread")
ctypes.CDLL(None).puts(b"of the C library, later")
ctypes.CDLL(None).fflush(None)
"""


@pytest.mark.skipif(
    not is_emulator() or sys.platform != "linux", reason="the emulator is of Linux on x86-64"
)
def test_only_the_emulator_is_silenced():
    command = [sys.executable, "-P", "-c", _PRINT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert sorted(done.stdout.splitlines()) == [
        "of another thread",
        "of the C library, later",
        "of the system",
        "of this thread",
    ]
