"""llama.cpp as `make peers` builds it: its programs, and what they say of themselves.

In: the folder of its programs. Out: paths, processes that end with the one that started them, and
facts for the reports: version, commit, and the processor's features that it was built for.
"""

import ctypes
import re
import subprocess
from signal import SIGKILL

from contest import ContestantFailedError

_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
_SYSTEM_INFO = re.compile(r"system_info: .+")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_NUM_LAST_LINES = 3


class NotBuiltError(ContestantFailedError):
    """There is no such program."""


class ModelFileError(ContestantFailedError):
    """There is no such GGUF file."""


class ProgramError(ContestantFailedError):
    """A program ended, or did other than what it was asked for."""


def program(programs, name):
    """The path of a program; raises NotBuiltError."""
    path = (programs / name).absolute()
    if not path.is_file():
        raise NotBuiltError(f"there is no {path}: `make peers` builds it")
    return path


def command(programs, name, gguf, threads):
    """A program and its first options; raises NotBuiltError or ModelFileError."""
    path = program(programs, name)
    if not gguf.is_file():
        raise ModelFileError(f"there is no model file {gguf}")
    return [str(path), "--model", str(gguf), "--threads", str(threads)]


def end_with_parent():
    """Called in a new process: it is killed when its parent ends, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, SIGKILL)


def facts(programs, told):
    """Facts in JSON types.

    Args:
        programs: The folder.
        told: What `llama-server` printed when it started, at log level 4.
    """
    asked = [str(programs / "llama-server"), "--version"]
    said = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    return parse_facts(said, told)


def parse_facts(said, told):
    """Facts from what `llama-server --version` said, and from what a server told at its start.

    Raises:
        ProgramError: One of them is missing.
    """
    version, info = _VERSION.search(said), _SYSTEM_INFO.search(told)
    if version is None or info is None:
        missing = "version" if version is None else "system_info"
        raise ProgramError(f"llama-server does not tell its {missing}")
    return {
        "version": version[1],
        "system_info": info[0].rstrip(),
        "about": f"llama.cpp {version[1]}, {info[0].rstrip()}",
    }


def last_lines(text):
    """The last lines of a log that say something, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-_NUM_LAST_LINES:]) or "no word"
