"""Files for the targets: a directory of this process, in memory where there is a place for that.

A file stays open from one input to the next and is written again in place, and only where its
content is another: creating, naming and closing files took longer than most readers take.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_in_memory = Path("/dev/shm")
FOLDER = Path(
    tempfile.mkdtemp(prefix="coordgen-fuzz-", dir=_in_memory if _in_memory.is_dir() else None)
)
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

_descriptors: dict[str, int] = {}
_contents: dict[str, tuple[bytes, int]] = {}


def holding(name: str, content: bytes, *, zeros: int = 0) -> Path:
    """The path of a file of these bytes and of so many zeros behind them, which cost no memory."""
    path = FOLDER / name
    if _contents.get(name) == (content, zeros):
        return path
    if name not in _descriptors:
        _descriptors[name] = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    descriptor = _descriptors[name]
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content) + zeros)
    _contents[name] = content, zeros
    return path


def without(name: str) -> None:
    """Sees to it that no file of this name is there."""
    if name in _descriptors:
        os.close(_descriptors.pop(name))
        del _contents[name]
        (FOLDER / name).unlink()
