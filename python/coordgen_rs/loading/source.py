"""A checkpoint that is to be opened as it is, on this machine.

In: a GGUF file, a Hugging Face directory, or `hf:OWNER/NAME`, which is fetched. Out: its files, the
state that they are in, and what they hold, as a hash. The export, which fetches and converts, is a
tool: it is loaded by its name, and only when it is needed.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.manifest import MANIFEST_NAME
from coordgen_rs.errors import CheckpointError, OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.errors.file_names import PartName, is_plain_name
from coordgen_rs.errors.json_text import JsonTextError, file_errors_as, open_regular, read_object

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""
State = dict[str, list[int]]
"""Name to size, times of changes in ns, inode and device: other content has another state."""

_EXPORT = "coordgen_rs.convert"
_FROM_HUB = "hf:"
_READ = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.safetensors")
"""What an export may read in a directory, besides the shards that an index names."""
_INDEX_NAME = "model.safetensors.index.json"
_MOST_INDEX_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a GGUF file, a Hugging Face directory, or a name of its hub."""
    if _is_hub_name(path):
        return True
    if path.is_dir():
        return (path / "config.json").is_file() and not (path / MANIFEST_NAME).exists()
    if path.suffix == ".gguf":
        return path.is_file()
    try:
        with open_regular(path) as stream:
            return stream.read(4) == b"GGUF"
    except (OSError, JsonTextError):
        return False


def shown_source(path: Path) -> str:
    """What lists of conversions call a checkpoint: its absolute path, or its name at the hub."""
    name = path.as_posix() if _is_hub_name(path) else os.path.normpath(path.absolute())
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Source:
    """A checkpoint.

    Attributes:
        shown: What it is called.
        path: The file or directory.
    """

    shown: str
    path: Path

    @classmethod
    def at(cls, path: Path) -> "Source":
        """What `is_checkpoint` takes; what has a name at the hub is fetched.

        Raises:
            CheckpointError: It cannot be fetched.
            OptionError: The name is malformed, or a package is missing.
        """
        shown = shown_source(path)
        if _is_hub_name(path):
            with export_tool(shown) as export:
                return cls(shown, Path(export.fetched(path)))
        return cls(shown, path)

    @property
    def name(self) -> str:
        """A short name of plain characters, for its bundle; a record beside it ends with .json."""
        if self.path.is_file():
            part = PartName.of(self.path.name)
            stem = self.path.stem if part is None else part.stem
        elif self.shown.startswith(_FROM_HUB):
            stem = Path(self.shown.partition("@")[0]).name
        else:
            stem = Path(self.shown).name
        plain = re.sub(r"[^\w.-]+", "_", stem, flags=re.ASCII)[:80].lstrip("._")
        return re.sub(r"(\.json|[._])+$", "", plain, flags=re.IGNORECASE) or "bundle"

    def state(self) -> State:
        """The state of its files, which are not read.

        Raises:
            CheckpointError: One is gone.
        """
        with file_errors_as(CheckpointError, self.path):
            stats = {name: file.stat() for name, file in self._files().items()}
        return {
            name: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
            for name, stat in stats.items()
        }

    def check_unchanged(self, state: State) -> None:
        """Refuse what was read since the state was taken, if it is not that.

        Raises:
            CheckpointError: A file was changed meanwhile.
        """
        if self.state() != state:
            raise CheckpointError(f"{self.shown} was changed while it was read: open it again")

    def digest(self, state: State, report: Progress) -> str:
        """The SHA-256 of all that its files hold.

        Args:
            state: What `state` has just given.
            report: Is told how much is read.

        Raises:
            CheckpointError: One cannot be read, or was changed meanwhile.
        """
        done, total = 0, sum(size for size, *_ in state.values())
        whole = hashlib.sha256()
        for name, file in self._files().items():
            digest = hashlib.sha256()
            with file_errors_as(CheckpointError, file), open_regular(file) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    done += len(chunk)
                    report(f"reading {self.path.name}", done, total)
            whole.update(os.fsencode(name) + b"\0" + digest.digest())
        self.check_unchanged(state)
        return whole.hexdigest()

    def _files(self) -> dict[str, Path]:
        """All that an export may read, by name.

        A file alone has none, and may be renamed; so may one in parts, which are numbered. One that
        is missing is for the export to tell: the name of a file alone may be that of a part.
        """
        if not self.path.is_dir():
            part = PartName.of(self.path.name)
            names = part.others() if part is not None and part.number == 1 else []
            others = {str(it.number): self.path.with_name(str(it)) for it in names}
            return {"": self.path} | {key: it for key, it in others.items() if it.is_file()}
        found = {file for pattern in _READ for file in self.path.glob(pattern)}
        found |= {self.path / name for name in self._shard_names()}
        files = sorted(file for file in found if file.is_file())  # editors leave dangling links
        return {file.relative_to(self.path).as_posix(): file for file in files}

    def _shard_names(self) -> set[str]:
        """The files that an index says to hold weights, whatever they are called."""
        try:
            index = read_object(self.path / _INDEX_NAME, most_bytes=_MOST_INDEX_BYTES)
            return {name for name in index["weight_map"].values() if is_plain_name(name)}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return set()  # there is none; or the export says what is wrong with it


@contextmanager
def export_tool(shown: str) -> Iterator[Any]:
    """Give the tool that fetches and converts; it stands above all that imports this file.

    Args:
        shown: What it is needed for.

    Raises:
        OptionError: A package that it needs is not installed.
    """
    try:
        yield import_module(_EXPORT)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{shown} is converted when it is first opened, which needs {error.name}: "
            f"{how_to_install('export')}"
        ) from error


def _is_hub_name(path: Path) -> bool:
    return path.as_posix().startswith(_FROM_HUB) and not path.exists()
