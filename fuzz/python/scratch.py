"""Files for the targets: a directory of this process, in memory where there is a place for that."""

import atexit
import shutil
import tempfile
from pathlib import Path

_in_memory = Path("/dev/shm")
FOLDER = Path(
    tempfile.mkdtemp(prefix="coordgen-fuzz-", dir=_in_memory if _in_memory.is_dir() else None)
)
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def holding(name: str, content: bytes) -> Path:
    """The path of a file of these bytes."""
    path = FOLDER / name
    path.write_bytes(content)
    return path
