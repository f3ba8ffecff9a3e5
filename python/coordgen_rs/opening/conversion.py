"""A checkpoint that is opened as it is: converted once, into the user's cache.

In: a GGUF file, a Hugging Face directory, or `hf:OWNER/NAME`, which is fetched. Out: the bundle
that `coordgen export` makes of it. A conversion is known by what its files hold, which is read
again only when their state has changed. Two processes or threads that open the same one at once
make it once. The export is a tool: it is loaded by its name, and only to convert.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from coordgen_rs._core import Lock
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import DEFAULT_CONTEXT, MANIFEST_NAME, SCHEMA_VERSION
from coordgen_rs.errors import (
    BundleDamagedError,
    BundleError,
    CheckpointError,
    ExportError,
    OptionError,
)
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.files.json_text import JsonTextError, file_errors_as, open_regular, read_object
from coordgen_rs.files.unfinished import held_name, replacing
from coordgen_rs.opening.cache import (
    SOURCE_NAME,
    Conversion,
    cache_directory,
    converted_directory,
    remove,
    remove_leftovers,
    sources_directory,
)

Progress = Callable[[str, int, int], None]

_EXPORT = "coordgen_rs.tools.export"
_FROM_HUB = "hf:"
_READ = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.safetensors")
"""What an export may read in a directory."""
_CHUNK_BYTES = 1 << 20
_MOST_RECORD_BYTES = 16 << 20
_POLL_S = 0.1
_ADVICE = "set XDG_CACHE_HOME to a directory with room that can be written"


@dataclass(frozen=True)
class ConvertedBundle(Bundle):
    """A bundle in the cache, which nobody removes while this object is there."""

    lock: Lock | None = field(default=None, repr=False, compare=False)


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a GGUF file, a Hugging Face directory, or a name of its hub."""
    if is_hub_name(path):
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


def is_hub_name(path: Path) -> bool:
    """Whether a path is a name such as `hf:OWNER/NAME`."""
    return path.as_posix().startswith(_FROM_HUB) and not path.exists()


def shown_source(path: Path) -> str:
    """What lists of conversions call a checkpoint."""
    name = path.as_posix() if is_hub_name(path) else os.path.abspath(path)  # noqa: PTH100
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def open_converted(
    path: Path, *, context: int | None = None, on_progress: Progress | None = None
) -> Bundle:
    """Open the bundle of a checkpoint; the first time it is made.

    Args:
        path: What `is_checkpoint` takes.
        context: What requests will need at most; None, or fewer tokens than an export takes by
            itself, for as many as that.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        CheckpointError: The checkpoint is damaged, or changes while it is read;
            UnsupportedModelError where its model cannot be run.
        BundleDamagedError: The conversion is damaged, but a process runs it.
        OptionError: A package for the conversion is missing, or the context is too long.
        ExportError: The conversion cannot be kept; the message says where, and what to do.
    """
    cache = cache_directory()
    if cache is None:
        raise ExportError(f"{path} cannot be converted: there is no home directory; {_ADVICE}")
    report = on_progress or _no_progress
    source = _Source.at(path)
    if context is not None and context <= DEFAULT_CONTEXT:
        context = None
    state = source.state()
    directory = converted_directory(cache) / _key(source, state, context, cache, report)
    with _errors(source, cache):
        bundle = _opened(directory)
        while bundle is None:
            bundle = _made(directory, source, state, context, report)
    return bundle


@dataclass(frozen=True)
class _Source:
    """A checkpoint on this machine.

    Attributes:
        shown: What it is called.
        path: The file or directory.
    """

    shown: str
    path: Path

    @classmethod
    def at(cls, path: Path) -> "_Source":
        """A checkpoint; one of the hub is fetched."""
        shown = shown_source(path)
        return cls(shown, Path(_export(shown).fetched(path)) if is_hub_name(path) else path)

    @property
    def name(self) -> str:
        """A short name for its bundle: of plain characters."""
        stem = self.path.stem if self.path.is_file() else Path(self.shown).name
        return re.sub(r"[^\w.-]+", "_", stem, flags=re.ASCII).strip("._")[:80] or "bundle"

    def files(self) -> dict[str, Path]:
        """All that a conversion may read, by name."""
        if not self.path.is_dir():
            return {"": self.path}
        found = (file for pattern in _READ for file in self.path.glob(pattern))
        return {file.relative_to(self.path).as_posix(): file for file in sorted(found)}

    def state(self) -> dict[str, list[int]]:
        """What changes with the content of its files; they are not read.

        Raises:
            CheckpointError: One is gone.
        """
        with file_errors_as(CheckpointError, self.path):
            stats = {name: file.stat() for name, file in self.files().items()}
        return {
            name: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
            for name, stat in stats.items()
        }

    def check_unchanged(self, state: dict[str, list[int]]) -> None:
        """Refuse what was read since the state was taken, if it is not that.

        Raises:
            CheckpointError: A file was changed meanwhile.
        """
        if self.state() != state:
            raise CheckpointError(f"{self.shown} was changed while it was read: open it again")

    def digest(self, state: dict[str, list[int]], report: Progress) -> str:
        """The SHA-256 of the content of all files.

        Raises:
            CheckpointError: One cannot be read, or was changed meanwhile.
        """
        done, total = 0, sum(size for size, *_ in state.values())
        whole = hashlib.sha256()
        for name, file in self.files().items():
            digest = hashlib.sha256()
            with file_errors_as(CheckpointError, file), open_regular(file) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    done += len(chunk)
                    report(f"reading {self.path.name}", done, total)
            whole.update(os.fsencode(name) + b"\0" + digest.digest())
        self.check_unchanged(state)
        return whole.hexdigest()


def _key(
    source: _Source,
    state: dict[str, list[int]],
    context: int | None,
    cache: Path,
    report: Progress,
) -> str:
    """What a conversion depends on: the content of the source, the options, and the versions."""
    name = hashlib.sha256(os.fsencode(source.path.absolute())).hexdigest()[:32]
    record = sources_directory(cache) / f"{name}.json"
    digest = _known_digest(record, state)
    if digest is None:
        digest = source.digest(state, report)
        _keep_digest(record, state, digest)
    conditions = (digest, str(context), str(SCHEMA_VERSION), metadata.version("coordgen-rs"))
    return hashlib.sha256("\n".join(conditions).encode()).hexdigest()[:32]


def _known_digest(record: Path, state: dict[str, list[int]]) -> str | None:
    try:
        fields = read_object(record, most_bytes=_MOST_RECORD_BYTES)
        return str(fields["sha256"]) if fields["files"] == state else None
    except (OSError, ValueError, KeyError):
        return None  # missing or unreadable: read the files


def _keep_digest(record: Path, state: dict[str, list[int]], digest: str) -> None:
    with suppress(OSError):  # a full or read-only disk costs reading them again
        record.parent.mkdir(parents=True, exist_ok=True)
        with replacing(record) as stream:
            stream.write(json.dumps({"sha256": digest, "files": state}).encode())


def _opened(directory: Path) -> Bundle | None:
    """The bundle of a conversion; None where there is none, or it is damaged.

    Raises:
        OSError: It cannot be looked at.
    """
    lock = Lock(directory, shared=True)
    conversion = Conversion.at(directory) if lock.is_mine else None
    if conversion is None:
        return None
    try:
        bundle = ConvertedBundle.open(conversion.bundle)
    except BundleError:
        return None
    conversion.touch()
    return replace(bundle, lock=lock)


def _made(
    directory: Path,
    source: _Source,
    state: dict[str, list[int]],
    context: int | None,
    report: Progress,
) -> Bundle | None:
    """The bundle, made by this process or meanwhile by another; None if that gave up.

    Raises:
        CheckpointError: Same as in `open_converted`, as are the others.
        OSError: The cache cannot be written.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with held_name(directory) as is_mine:
        if is_mine:
            bundle = _opened(directory)
            return bundle or _converted(directory, source, state, context, report)
    report(f"waiting for another that converts {source.path.name}", 0, 1)
    time.sleep(_POLL_S)
    return _opened(directory)


def _converted(
    directory: Path,
    source: _Source,
    state: dict[str, list[int]],
    context: int | None,
    report: Progress,
) -> Bundle | None:
    """Make the conversion; its name is held.

    Raises:
        CheckpointError: Same as in `open_converted`, as are the others.
        BundleDamagedError: Same as in `open_converted`.
        OSError: The cache cannot be written.
    """
    remove_leftovers(directory.parents[1])
    if not remove(directory):
        raise BundleDamagedError(f"{directory} is damaged, and a process still runs it: end that")
    export, bundle = _export(source.shown).export_checkpoint, directory / source.name
    try:
        with _missing_package(source.shown):
            export(source.path, bundle, context=context, on_progress=report)
        source.check_unchanged(state)
        with replacing(directory / SOURCE_NAME) as stream:
            stream.write(json.dumps({"source": source.shown, "bundle": source.name}).encode())
    except BaseException:
        with suppress(OSError):
            remove(directory)
        raise
    return _opened(directory)


def _export(shown: str) -> Any:
    """The tool, which stands above all that answers: no import leads from here to there."""
    with _missing_package(shown):
        return import_module(_EXPORT)


@contextmanager
def _missing_package(shown: str) -> Iterator[None]:
    """Turn a missing package into an error that says how to install it.

    Raises:
        OptionError: One is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{shown} is converted when it is first opened, which needs {error.name}: "
            f"{how_to_install('export')}"
        ) from error


@contextmanager
def _errors(source: _Source, cache: Path) -> Iterator[None]:
    """Say of what cannot be written what was to be done there, and what to do about it.

    Raises:
        ExportError: Something in the cache cannot be written.
    """
    try:
        yield
    except ExportError as error:
        if isinstance(error.__cause__, MemoryError):
            raise
        raise ExportError(f"{source.shown} cannot be converted: {error}; {_ADVICE}") from error
    except OSError as error:
        reason = f"{error.filename or cache}: {error.strerror or error}"
        raise ExportError(f"{source.shown} cannot be converted: {reason}; {_ADVICE}") from error


def _no_progress(what: str, done: int, total: int) -> None:
    """Ignore progress."""
