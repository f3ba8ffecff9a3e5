"""A checkpoint that is opened as it is: converted once, into the user's cache.

In: a GGUF file, a Hugging Face directory, or `hf:OWNER/NAME`, which is fetched. Out: the bundle
that `coordgen export` makes of it. A conversion is known by what the checkpoint holds, as a hash,
which is read again only when the state of its files is another. Two processes or threads that open
the same one at once make it once. The export, which fetches and converts, is a tool: it is loaded
by its name, and only when it is needed. What the cache looks like, and what is removed when, is in
`store/cache.py`.
"""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache as once
from importlib import import_module
from pathlib import Path
from typing import Any

from coordgen_rs._core import Lock
from coordgen_rs._core import __file__ as extension_file
from coordgen_rs.bundle.directory import Bundle, Progress
from coordgen_rs.bundle.manifest import DEFAULT_CONTEXT, MANIFEST_NAME, SCHEMA_VERSION
from coordgen_rs.errors import (
    BundleDamagedError,
    BundleError,
    CheckpointError,
    CoordgenError,
    ExportError,
    OptionError,
)
from coordgen_rs.errors.extras import how_to_install, package_version
from coordgen_rs.errors.file_names import PartName, is_plain_name, with_parts
from coordgen_rs.errors.json_text import JsonTextError, file_errors_as, open_regular, read_object
from coordgen_rs.store.cache import (
    SOURCE_NAME,
    Conversion,
    cache_directory,
    conversions,
    converted_directory,
    keep_record,
    make_private,
    read_record,
    remove,
    remove_leftovers,
    source_record,
)
from coordgen_rs.store.files import locked, unfinished_directory, write_file

State = dict[str, list[int]]
"""Name to size, times of changes in ns, inode and device: other content has another state."""

_EXPORT = "coordgen_rs.convert"
_FROM_HUB = "hf:"
_READ = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.safetensors")
"""What an export may read in a directory, besides the shards that an index names."""
_INDEX_NAME = "model.safetensors.index.json"
_MOST_INDEX_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20

_EXPORT_SOURCES = Path(__file__).parents[1] / "convert"
_POLL_S = 0.1
_LOOK_S = 1.0
"""How long somebody may hold a conversion who only looks whether it can be run."""
_ADVICE = "set XDG_CACHE_HOME to a directory with room that can be written"


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
            first, *others = with_parts(self.path)
            numbered = {str(number): it for number, it in enumerate(others, 2) if it.is_file()}
            return {"": first} | numbered
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


@dataclass(frozen=True)
class ConvertedBundle(Bundle):
    """A bundle in the cache, which nobody removes while this object is there."""

    source: str = field(default="", compare=False)
    lock: Lock | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The checkpoint: where its bundle is matters to errors about a file of it alone."""
        return self.source

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Within the block, errors about a file of the cache name the checkpoint first.

        Raises:
            CoordgenError: Whatever the block raises.
        """
        try:
            yield
        except CoordgenError as error:
            if str(self.path) in str(error):
                _put_before(error, self.source)
            raise

    def release(self) -> None:
        """Let others remove it."""
        if self.lock is not None:
            self.lock.release()

    def discard(self) -> bool:
        """Remove the conversion, unless it is in use or cannot be removed; whether it is gone."""
        self.release()
        with suppress(OSError), locked(self.path.parent) as is_mine:
            return is_mine and remove(self.path.parent, wait_s=_LOOK_S)
        return False

    def verify(self, on_progress: Progress | None = None) -> None:
        """Same as in `Bundle`.

        Raises:
            BundleDamagedError: A file differs; the message says what to do, too.
        """
        try:
            super().verify(on_progress)
        except BundleDamagedError as error:
            raise BundleDamagedError(
                f"{self.source}: {error}; end what runs it, then coordgen cache clear"
            ) from error


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
    source, report = Source.at(path), on_progress or (lambda *_: None)
    state = source.state()
    asked, context = context, _beyond_default(context)
    digest = _known_digest(source, state, cache)
    if digest is None:
        digest = source.digest(state, report)
        keep_record(source_record(cache, source.path), {"sha256": digest, "files": state})
    making = _Making(_directory(cache, digest, context), source, state, digest, context, report)
    with _errors(source, path, cache):
        bundle = _opened(making.directory, source)
        while bundle is None:
            bundle = making.made()
    most = bundle.manifest.context
    if asked is not None and asked > most:
        raise OptionError(
            f"context is {asked}, but the model of {source.shown} reads at most {most}"
        )
    return bundle


def unconverted(path: Path, *, context: int | None = None) -> Any | None:
    """The opened head of a checkpoint that is not converted yet; None of one that is.

    Args:
        path: What `is_checkpoint` takes; not a name of the hub, whose files may not be here.
        context: Same as in `open_converted`.

    Raises:
        CheckpointError: The checkpoint is damaged; UnsupportedModelError where its model cannot be
            run.
        OptionError: A package for the conversion is missing.
        ExportError: The cache cannot be read.
    """
    cache, source = cache_directory(), Source.at(path)
    with _errors(source, path, cache or path):
        digest = None if cache is None else _known_digest(source, source.state(), cache)
        if cache is not None and digest is not None:
            known = _opened(_directory(cache, digest, _beyond_default(context)), source)
            if known is not None:
                known.release()
                return None
        with export_tool(source.shown) as export:
            return export.open_checkpoint(source.path)


def _beyond_default(context: int | None) -> int | None:
    """A context for which a conversion of its own is made; None for the usual one."""
    return None if context is None or context <= DEFAULT_CONTEXT else context


def _directory(cache: Path, digest: str, context: int | None) -> Path:
    """Where the conversion of what has this hash is kept."""
    key = hashlib.sha256(f"{digest}\n{context}\n{_code()}".encode()).hexdigest()[:32]
    return converted_directory(cache) / key


def _known_digest(source: Source, state: State, cache: Path) -> str | None:
    """The hash of what a source holds, where its state is that in which it was read before."""
    with suppress(OSError, ValueError, KeyError):  # missing or unreadable: it is read again
        known = read_record(source_record(cache, source.path))
        if known["files"] == state:
            return str(known["sha256"])
    return None


_MACHINE = f"{platform.system()}-{platform.machine()}"


@once
def _code() -> str:
    """A hash of what converts: the version, the core, and the sources of the export.

    The version alone stays the same while the package is worked on. Times of files do not count:
    two environments with one version have one cache.
    """
    whole = hashlib.sha256(f"{SCHEMA_VERSION}\n{package_version()}".encode())
    for file in (Path(extension_file), *sorted(_EXPORT_SOURCES.rglob("*.py"))):
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return f"{_MACHINE}-{whole.hexdigest()[:32]}"


def _opened(directory: Path, source: Source) -> Bundle | None:
    """The bundle of a conversion; None where there is none, or it is damaged.

    Raises:
        OSError: It cannot be looked at.
    """
    try:
        return _found(directory, source)
    except BundleError:
        return None


def _found(directory: Path, source: Source) -> Bundle | None:
    """The bundle of a conversion; None where there is none.

    Raises:
        BundleError: It is damaged.
        OSError: It cannot be looked at.
    """
    lock = Lock(directory / SOURCE_NAME, shared=True)
    conversion = Conversion.at(directory) if lock.is_mine else None
    if conversion is None:
        return None
    bundle = ConvertedBundle.open(conversion.bundle)
    conversion.touch()
    return replace(bundle, source=source.shown, lock=lock)


@dataclass(frozen=True)
class _Making:
    """A conversion that is not there yet.

    Attributes:
        directory: Where it is to be.
        source: What it is made of.
        state: The state in which that was read.
        digest: What it held then.
        context: Same as in `open_converted`.
        report: Is told what is being done.
    """

    directory: Path
    source: Source
    state: State
    digest: str
    context: int | None
    report: Progress

    def made(self) -> Bundle | None:
        """Make it, unless another is at it; None until that has made it, or given up.

        Raises:
            OSError: The cache cannot be written; other errors are those of `open_converted`.
        """
        make_private(self.directory.parent)
        with locked(self.directory) as is_mine:
            if is_mine:
                return _opened(self.directory, self.source) or self._exported()
        self.report(f"waiting for another that converts {self.source.path.name}", 0, 1)
        time.sleep(_POLL_S)
        return _opened(self.directory, self.source)

    def _exported(self) -> Bundle:
        """Make it, whose name is held; after an exception nothing is left.

        Raises:
            BundleError: What was made cannot be opened.
            BundleDamagedError: The same; or what was there is damaged, but a process runs it.
            ExportError: It was removed as soon as it was made.
            OSError: The cache cannot be written.
        """
        remove_leftovers(self.directory.parents[1])
        if not remove(self.directory, wait_s=_LOOK_S):
            raise BundleDamagedError(
                f"{self.directory} is damaged, and a process still runs it: end that "
                "(if none does, its disk has no locks: remove the directory)"
            )
        with unfinished_directory(self.directory) as unfinished:
            self._export_to(unfinished)
            try:
                unfinished.rename(self.directory)
            except OSError:
                if Conversion.at(self.directory) is None:
                    raise
                # Where there are no locks, another may have made it meanwhile.
        bundle = _found(self.directory, self.source)
        if bundle is None:
            raise ExportError(f"{self.directory} was removed as soon as it was made")
        self._remove_older()
        return bundle

    def _remove_older(self) -> None:
        """Remove what other code has made of the same source, unless it is in use.

        Machines of another kind may share the cache, and have a core of their own.
        """
        for other in conversions(self.directory.parents[1]):
            is_of_this_kind = other.code.startswith(_MACHINE)
            if other.source == self.source.shown and is_of_this_kind and other.code != _code():
                with suppress(OSError), locked(other.directory) as is_mine:
                    if is_mine:
                        remove(other.directory)

    def _export_to(self, directory: Path) -> None:
        """Write the bundle and, when it is complete, the record of where it is from."""
        source, bundle = self.source, directory / self.source.name
        with export_tool(source.shown) as export:
            export.export_checkpoint(
                source.path, bundle, context=self.context, on_progress=self.report
            )
        source.check_unchanged(self.state)
        record = {"source": source.shown, "bundle": bundle.name}
        record |= {"sha256": self.digest, "code": _code()}
        write_file(directory / SOURCE_NAME, json.dumps(record).encode())


def _put_before(error: CoordgenError, source: str) -> None:
    """Let an error's message begin with the checkpoint, unless it names it."""
    if source not in str(error):
        error.args = (f"{source}: {error}",)


@contextmanager
def _errors(source: Source, given: Path, cache: Path) -> Iterator[None]:
    """Say of each error which checkpoint it is about, and of a full cache what to do about it.

    Args:
        source: The checkpoint.
        given: What the user calls it.
        cache: The cache's directory.

    Raises:
        ExportError: Something in the cache cannot be written.
        CoordgenError: Any other that the block raises.
    """
    try:
        yield
    except CoordgenError as error:
        if isinstance(error, ExportError) and not isinstance(error.__cause__, MemoryError):
            message = f"{source.shown} cannot be converted: {error}; {_ADVICE}"
            raise ExportError(message) from error
        if str(given) not in str(error):
            _put_before(error, source.shown)
        raise
    except OSError as error:
        reason = f"{error.filename or cache}: {error.strerror or error}"
        raise ExportError(f"{source.shown} cannot be converted: {reason}; {_ADVICE}") from error
