"""Lets Python's own programs run in the emulator: the kernel cannot start those of arm64.

`sys.executable` is a script of the machine that emulates, which starts qemu with this Python.
"""

import os
import sys

sys.executable = os.environ["COORDGEN_EMULATED_PYTHON"]
