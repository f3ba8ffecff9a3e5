"""A Hugging Face directory: JSON files, safetensors and a tokenizer; and `hf:OWNER/NAME`, fetched.

In: the directory. Out: the object of a JSON file; tensors by name, of which only headers are read;
and the text of a tokenizer.json that puts the begin token before a prompt where transformers does
(`text/tokenizer.py`). A safetensors file is an eight-byte header length, a JSON header and the raw
tensors, of which rows are read. Their own package is not used: it maps the file, which counts the
whole checkpoint as this process's memory, and numpy has no bfloat16.

Or in: a name of the Hugging Face Hub, `hf:OWNER/NAME[/FILE.gguf][@REVISION]`. Out: the path of what
was fetched, in the cache of huggingface_hub, where a second call finds it. Only what an export
reads is fetched: the configuration first, so that a model that cannot be exported costs no
gigabytes.
"""

import logging
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor, read_numbers
from coordgen_rs.errors import CheckpointError, OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.errors.file_names import PartName, is_plain_name
from coordgen_rs.errors.json_text import (
    FieldError,
    file_errors_as,
    open_regular,
    parse,
    parse_json,
    read_bytes,
    read_object,
)
from coordgen_rs.text.tokenizer import add_begin_token, package_errors_as

_MOST_JSON_BYTES, _MOST_TOKENIZER_BYTES = 64 << 20, 512 << 20


def read_json_file(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a directory.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    with file_errors_as(CheckpointError, path):
        return read_object(path, most_bytes=_MOST_JSON_BYTES)


def open_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of all shards that the index names.

    Raises:
        CheckpointError: A file or the index is missing or damaged.
    """
    index_path = path / "model.safetensors.index.json"
    names, weight_map = {"model.safetensors"}, None
    if index_path.exists():
        weight_map = read_weight_map(index_path)
        names = set(weight_map.values())
    shards = {name: open_safetensors(path / name) for name in sorted(names)}
    if weight_map is None:
        return shards["model.safetensors"]
    tensors = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CheckpointError(f"{path / shard} lacks {name}, which the index promises")
        tensors[name] = shards[shard][name]
    return tensors


def read_weight_map(path: Path) -> dict[str, str]:
    """The file of each tensor, as a model.safetensors.index.json says.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    weight_map = read_json_file(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise CheckpointError(f"{path} has no weight_map of file names")
    for shard in weight_map.values():
        if not is_plain_name(shard):
            raise CheckpointError(f"{path} names {shard!r}, which is not a plain file name")
    return weight_map


def read_tokenizer(directory: Path) -> str:
    """The text of a tokenizer.json; the checkpoint's own where nothing is to be added.

    Raises:
        CheckpointError: A file is missing or damaged, or the begin token is unknown.
    """
    return read_tokenizer_json(directory / "tokenizer.json")


def read_tokenizer_json(path: Path) -> str:
    """The same for a tokenizer.json's path; a tokenizer_config.json beside it counts, too.

    Raises:
        CheckpointError: As `read_tokenizer`.
    """
    with file_errors_as(CheckpointError, path):
        read = read_bytes(path, most_bytes=_MOST_TOKENIZER_BYTES)
    with package_errors_as(CheckpointError, f"{path} is not a readable tokenizer"):
        text = read.decode("utf-8-sig")
        tokenizer = Tokenizer.from_str(text)
    if add_begin_token(tokenizer, path.with_name("tokenizer_config.json"), CheckpointError):
        return str(tokenizer.to_str())
    return text


_STORED_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

_PACKED: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
"""Types of what is packed, or counted: no floats, but read as it is."""

_MOST_HEADER_BYTES = 100_000_000
"""Largest header, the same limit as in the safetensors package."""

_MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class _Fields:
    """What the header says of a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


@dataclass(frozen=True)
class _Entry:
    """Where a tensor stands in its file."""

    path: Path
    name: str
    stored_type: str
    shape: tuple[int, ...]
    offset: int

    def read_rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop` as float32.

        Raises:
            CheckpointError: The file ends early, or the stored type is not one of floats.
        """
        raw = self._raw(start, stop)
        if self.stored_type == "BF16":
            rows = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            rows = raw.astype(np.float32, copy=False)
        return rows.reshape(stop - start, *self.shape[1:])

    def read_blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop` of a matrix as they are, `(n, columns, bytes of a float)`.

        Of matrices, some as they are.

        Raises:
            CheckpointError: As of `read_rows`.
        """
        raw = self._raw(start, stop)
        return raw.view(np.uint8).reshape(stop - start, *self.shape[1:], raw.itemsize)

    def read_bytes(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes `start..stop` of a tensor of no floats."""
        return self._numbers(np.dtype(np.uint8), start, stop)

    def tensor(self) -> Tensor:
        """The tensor, which products read as it is if it is of one or more matrices of floats."""
        is_read = len(self.shape) in (2, 3) and self.stored_type in _STORED_TYPES
        blocks = StoredBlocks(self.stored_type, self.read_blocks) if is_read else None
        read_bytes = self.read_bytes if self.stored_type in _PACKED else None
        return Tensor(self.name, self.shape, self.read_rows, blocks, self.stored_type, read_bytes)

    def _raw(self, start: int, stop: int) -> NDArray[Any]:
        """The numbers of rows `start..stop`, as they are.

        Raises:
            CheckpointError: As of `read_rows`.
        """
        dtype = _STORED_TYPES.get(self.stored_type)
        if dtype is None:
            raise CheckpointError(
                f"{self.path}: {self.name} has the type {self.stored_type}, "
                f"expected {', '.join(_STORED_TYPES)}"
            )
        row_elements = math.prod(self.shape[1:])
        return self._numbers(dtype, start * row_elements, stop * row_elements)

    def _numbers(self, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
        """Numbers `start..stop` of those of all rows."""
        offset = self.offset + start * dtype.itemsize
        return read_numbers(self.path, self.name, dtype, offset, stop - start)


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        CheckpointError: The file is truncated or its header damaged; file and tensor are named.
    """
    with file_errors_as(CheckpointError, path), open_regular(path) as stream:
        file_bytes = os.fstat(stream.fileno()).st_size
        header_bytes = int.from_bytes(stream.read(8), "little")
        if 8 + header_bytes > file_bytes:
            raise CheckpointError(f"{path} is truncated: its header is incomplete")
        if header_bytes > _MOST_HEADER_BYTES:
            raise CheckpointError(f"{path} has a damaged header: {header_bytes} bytes")
        header = parse_json(stream.read(header_bytes), f"{path}: the header")
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} has a damaged header: not an object")
    tensors = {}
    for name, fields in header.items():
        if name != "__metadata__":
            entry = _entry(path, name, fields, 8 + header_bytes, file_bytes)
            tensors[name] = entry.tensor()
    return tensors


def _entry(path: Path, name: str, value: Any, data_start: int, file_bytes: int) -> _Entry:
    try:
        fields = parse(_Fields, value, name)
        begin, end = fields.data_offsets
    except (FieldError, ValueError) as error:
        raise CheckpointError(f"{path} has a damaged header at {name}: {error}") from error
    # A scalar is read as a tensor of one value: tensors have rows.
    shape, dtype = tuple(fields.shape) or (1,), {**_STORED_TYPES, **_PACKED}.get(fields.dtype)
    if len(shape) > _MOST_DIMENSIONS or min(shape) < 1 or not 0 <= begin <= end:
        raise CheckpointError(f"{path} has a damaged header at {name}")
    if dtype is not None and end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(f"{path} has a damaged header at {name}: not the bytes of its shape")
    if data_start + end > file_bytes:
        raise CheckpointError(f"{path} is truncated: it ends before {name} does")
    return _Entry(path, name, fields.dtype, shape, data_start + begin)


_NAME = re.compile(
    r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[^@]+\.gguf))?(?:@(?P<revision>[^\s@]+))?"
)
_CONFIG, _INDEX, _WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
_TOKENIZER = "tokenizer.json"
_OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class HubName:
    """A repository of the hub, or a GGUF file in one."""

    repository: str
    file: str | None
    revision: str | None

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"hf:{self.repository}{file}" + (f"@{self.revision}" if self.revision else "")


def hub_name(path: Path) -> HubName | None:
    """The name that a path is, or None if it is a path.

    Raises:
        OptionError: It begins as a name, but is none; or it names a part behind the first.
    """
    name = path.as_posix()
    if not name.startswith("hf:") or path.exists():
        return None
    match = _NAME.fullmatch(name)
    if match is None:
        raise OptionError(f"{name} must be hf:OWNER/NAME, with /FILE.gguf or @REVISION behind it")
    found = HubName(**match.groupdict())
    part = None if found.file is None else PartName.of(PurePosixPath(found.file).name)
    if part is not None and part.number > 1:
        raise OptionError(
            f"{name} is part {part.number} of {part.count}: give the first part, {part.part(1)}"
        )
    return found


def fetch(name: HubName, check: Callable[[Path], object], *, needs_tokenizer: bool = True) -> Path:
    """Fetch a GGUF file with its other parts, if it has any, or a directory with what is read.

    Args:
        name: What to fetch.
        check: Is given the directory when nothing but the configuration is in it; what it raises
            ends the call.
        needs_tokenizer: Whether a directory without a tokenizer is refused.

    Raises:
        OptionError: huggingface_hub is not installed.
        CheckpointError: There is no such thing, or the hub cannot be reached.
        _NoSuchFileError: The same, of a file that is needed.
    """
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{name} needs the package {error.name}: {how_to_install('hub')}"
        ) from error

    # It tells of each retry; an error of ours ends them.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def download(file: str, revision: str | None) -> Path:
        with _errors(name, file):
            return Path(hf_hub_download(name.repository, file, revision=revision))

    if name.file is not None:
        path, folder = download(name.file, name.revision), PurePosixPath(name.file).parent
        part = PartName.of(path.name)
        commit = path.parents[len(folder.parts)].name
        for other in [] if part is None else part.others():
            download(str(folder / str(other)), commit)
        return path
    directory = download(_CONFIG, name.revision).parent

    # The directory is named after the commit: a push meanwhile does not mix two of them.
    def fixed(file: str) -> Path:
        known = try_to_load_from_cache(name.repository, file, revision=directory.name)
        if known is None:
            return download(file, directory.name)
        if not isinstance(known, str):  # it is known to be missing
            raise _NoSuchFileError(f"{name}: the repository has no file {file}")
        return Path(known)

    _if_there(fixed, _OPTIONAL[0])
    check(directory)
    for file in _OPTIONAL[1:]:
        _if_there(fixed, file)
    if not _if_there(fixed, _TOKENIZER) and needs_tokenizer:
        raise _NoSuchFileError(f"{name}: the repository has no file {_TOKENIZER}")
    shards = [_WEIGHTS]
    if _if_there(fixed, _INDEX):
        shards = sorted(set(read_weight_map(directory / _INDEX).values()))
    for shard in shards:
        fixed(shard)
    return directory


def _if_there(download: Callable[[str], Path], file: str) -> bool:
    """Fetch a file that a repository may lack; whether it has it."""
    try:
        download(file)
    except _NoSuchFileError:
        return False
    return True


class _NoSuchFileError(CheckpointError):
    """The repository has no such file."""


@contextmanager
def _errors(name: HubName, file: str) -> Iterator[None]:
    """The errors of huggingface_hub as ours, in one line.

    Raises:
        CheckpointError: The file cannot be fetched; the message says why.
        _NoSuchFileError: There is no such file.
    """
    from huggingface_hub import errors

    meanings = {
        errors.GatedRepoError: " is gated: accept its terms on the hub, then log in with "
        "`hf auth login`",
        errors.RepositoryNotFoundError: ": the hub has no such repository, or it is private "
        "(`hf auth login`)",
        errors.RevisionNotFoundError: ": the repository has no such revision",
        errors.LocalEntryNotFoundError: f": {file} cannot be fetched, because the hub cannot be "
        "reached, nor is it in the cache: check the network (HF_ENDPOINT, HF_HUB_OFFLINE)",
    }
    try:
        yield
    except Exception as error:  # of files, of the network, of the package
        what = next((told for kind, told in meanings.items() if isinstance(error, kind)), None)
        if what is None and isinstance(error, errors.EntryNotFoundError):
            raise _NoSuchFileError(f"{name}: the repository has no file {file}") from error
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        what = what or f": {file} cannot be fetched: {first_line}"
        raise CheckpointError(f"{name}{what}") from error
