"""Writing a bundle, whatever processor it is for: it appears complete or not at all.

In: a checkpoint, what was asked for, and the path that is to exist at the end. Out: options within
their limits; a `Staging` that collects files, with their sizes and SHA-256, in a hidden directory
beside that path, and renames it when everything is written; the tokenizer, a file for each chat
template, and the manifest, which is written last.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    ChatFiles,
    EmbeddingFile,
    FileRecord,
    Manifest,
    ModelShape,
    WeightKind,
)
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.errors import ChatTemplateError, CheckpointError, ExportError, OptionError
from coordgen_rs.errors.extras import package_version
from coordgen_rs.store.files import unfinished_directory
from coordgen_rs.text.chat_template import DEFAULT, ChatTemplate, read_template_file

Array = NDArray[np.float32]

_TOKENIZER, _TEMPLATE = "tokenizer.json", "chat_template.jinja"

Progress = Callable[[str, int, int], None]
"""Called with what comes next, steps done, and steps in all."""


class HashedFile:
    """A file being written, which knows its length and hashes what passes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes | NDArray[Any]) -> None:
        """Append bytes or a C-contiguous array; raises OSError."""
        view = (memoryview(data) if isinstance(data, bytes) else data.data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self.num_bytes += len(view)

    def align(self, boundary: int) -> None:
        """Append zeros up to the next multiple of `boundary`."""
        self.write(bytes(-self.num_bytes % boundary))

    def record(self) -> FileRecord:
        """Size and hash of what was written so far."""
        return FileRecord(self.num_bytes, self._digest.hexdigest())


class Staging:
    """The hidden directory, `directory`, and the records of the files in it."""

    def __init__(self, directory: Path, out: Path) -> None:
        self.directory, self._out = directory, out
        self.records: dict[str, FileRecord] = {}

    def check_space(self, num_bytes: int) -> None:
        """Refuse to begin an export for which the disk has no room.

        Args:
            num_bytes: At least so many will be written.

        Raises:
            ExportError: The disk has less left.
        """
        free = shutil.disk_usage(self.directory).free
        if free < num_bytes:
            raise ExportError(
                f"{self._out} cannot be written: it takes at least {num_bytes / 1e6:,.1f} MB, and "
                f"its disk has {free / 1e6:,.1f} MB left"
            )

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """A new file, recorded when the block ends.

        Raises:
            ExportError: It cannot be written; the message names the file where it was to be.
        """
        path = self.directory / name
        try:
            with path.open("xb") as stream:
                file = HashedFile(stream)
                yield file
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ExportError(_cannot_write(self._out / name, error)) from error
        self.records[name] = file.record()

    def write(self, name: str, data: bytes) -> None:
        """A whole small file."""
        with self.create(name) as file:
            file.write(data)


@contextlib.contextmanager
def staged_directory(out: Path) -> Iterator[Staging]:
    """Give a `Staging` whose directory becomes `out` when the block ends without an exception.

    After any exception, an interrupt too, nothing is left behind. What a killed run left for the
    same `out` is removed first, with a `LeftoverWarning`.

    Raises:
        ExportError: `out` is taken or cannot be written, or the memory does not suffice.
    """
    out = out.absolute()
    refuse_taken(out)
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(unfinished_directory(out))
        except OSError as error:
            raise ExportError(_cannot_write(out, error)) from error
        yield Staging(directory, out)
        try:
            directory.rename(out)
        except OSError as error:
            raise ExportError(_cannot_write(out, error)) from error


def refuse_taken(out: Path) -> None:
    """Refuse a path at which no bundle can appear, before any work is done for it.

    Raises:
        ExportError: `out` exists (an empty directory is taken over), is a symbolic link or a mount
            point, or lies where this user cannot write.
    """
    out = out.absolute()
    if out.is_symlink():
        raise ExportError(f"{out} is a symbolic link: give the directory itself")
    try:
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError as error:
        raise ExportError(_cannot_write(out, error)) from error
    if not is_free:
        raise ExportError(f"{out} exists already: remove it, or give another directory")
    if os.path.ismount(out):
        raise ExportError(f"{out} is a mount point: give a directory in it")
    parent = next(folder for folder in out.parents if folder.exists())
    if not parent.is_dir():
        raise ExportError(f"{out} cannot be written: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ExportError(f"{out} cannot be written: no permission to write in {parent}")


@contextlib.contextmanager
def export_to(out: Path) -> Iterator[None]:
    """Refuse a path at which no bundle can appear, and turn a lack of memory into an error.

    Raises:
        ExportError: `out` is taken, see `refuse_taken`, or the memory does not suffice.
    """
    try:
        refuse_taken(out)
        yield
    except MemoryError as error:
        raise ExportError(
            f"{out} was not written: out of memory; free some, or raise the limit (ulimit -v)"
        ) from error


def _cannot_write(path: Path, error: OSError) -> str:
    return f"{path} cannot be written: {error.strerror or error}"


@dataclass(frozen=True)
class BundleOptions:
    """What a bundle is to be; see `export_checkpoint`."""

    weights: WeightKind
    blocks: int
    prefill_rows: int
    decode_rows: int
    context: int
    chat_template: Path | None

    def check_limits(self, config: ModelConfig, most_rows: int) -> None:
        """Refuse numbers below 1, above what the model has, or above so many rows.

        A prompt's chunk may run under the decode graphs, so no step is wider than a chunk.

        Raises:
            OptionError: One is; the message names it.
        """
        limits = {
            "blocks": config.num_layers,
            "prefill_rows": most_rows,
            "decode_rows": most_rows,
            "context": config.max_positions,
        }
        for name, most in limits.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                why = config.why_most_positions if name == "context" else ""
                raise OptionError(f"{name} is {value}, expected 1 to {most}{why and f' ({why})'}")
        if self.decode_rows > self.prefill_rows:
            raise OptionError(
                f"decode_rows is {self.decode_rows}, expected at most prefill_rows, "
                f"{self.prefill_rows}"
            )

    @property
    def widths(self) -> list[int]:
        """The numbers of rows for which graphs are made, ascending."""
        return sorted({self.decode_rows, self.prefill_rows})


@dataclass
class BundleExport:
    """One export: where it reads, where it writes, and what the bundle is to be."""

    source: Checkpoint
    staging: Staging
    options: BundleOptions
    on_progress: Progress
    num_steps: int
    """Those that progress is told of."""

    @property
    def layers(self) -> list[range]:
        """Those of each block."""
        return list(cut_layers(self.source.config.num_layers, self.options.blocks))

    def progress(self, what: str, done: int) -> None:
        """Tell what comes next."""
        self.on_progress(what, done, self.num_steps)

    def write_texts(self) -> ChatFiles | None:
        """Write the tokenizer and the chat templates; what the manifest says of these, if any.

        Raises:
            CheckpointError: What the checkpoint says about them is damaged.
            ChatTemplateError: The given template cannot be read, or is malformed.
            ExportError: A file cannot be written.
        """
        self.staging.write(_TOKENIZER, self.source.read_tokenizer().encode())
        try:
            chat = self.source.read_chat()
        except ChatTemplateError as error:
            raise CheckpointError(str(error)) from error
        sources, given = chat.sources, self.options.chat_template
        if given is not None:
            sources = {DEFAULT: read_template_file(given)}
            ChatTemplate(sources[DEFAULT], name=str(given)).check()
        if not sources:
            return None
        files = {}
        for number, (name, source) in enumerate(sorted(sources.items())):
            files[name] = _TEMPLATE if name == DEFAULT else f"chat_template.{number}.jinja"
            self.staging.write(files[name], source.encode())
        return ChatFiles(files, chat.tokens)

    def write_embedding(
        self, weight_type: Literal["float16", "uint16"], encode: Callable[[Array], NDArray[Any]]
    ) -> EmbeddingFile:
        """Write the embedding as the first layer reads it, a row of numbers for each token.

        Raises:
            CheckpointError: It is missing or damaged.
            ExportError: It cannot be written.
        """
        with self.staging.create("embedding.bin") as file:
            for piece in self.source.first_hidden_tensor().pieces():
                file.write(encode(piece))
        return EmbeddingFile("embedding.bin", weight_type)

    def write_manifest(self, **parts: Any) -> None:
        """Write the manifest of all files so far.

        Args:
            parts: The fields of `Manifest` that only the exporter knows.

        Raises:
            ExportError: It cannot be written.
        """
        config, options = self.source.config, self.options
        within = config.within(options.context)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            tool=f"coordgen-rs {package_version()}",
            model=model_shape(config),
            weights=options.weights,
            context=options.context,
            widths=options.widths,
            prefill_rows=options.prefill_rows,
            decode_rows=options.decode_rows,
            bos_token_id=config.bos_token_id,
            end_token_ids=config.end_token_ids,
            inv_freq=config.inv_freq,
            window=within.window,
            window_inv_freq=config.window_inv_freq,
            rope_factor=config.rope_factor,
            query_scaling=within.query_scaling,
            caches=None if config.caches is None else list(config.caches),
            recommended=config.recommended,
            tokenizer=_TOKENIZER,
            files=dict(self.staging.records),
            **parts,
        )
        self.staging.write(MANIFEST_NAME, manifest.to_json().encode())


def model_shape(config: ModelConfig) -> ModelShape:
    """The sizes that the manifest holds."""
    return ModelShape(**{it.name: getattr(config, it.name) for it in fields(ModelShape)})


def cut_layers(num_layers: int, num_blocks: int) -> Iterator[range]:
    """`num_layers` layers in `num_blocks` runs whose lengths differ by at most one."""
    for index in range(num_blocks):
        yield range(num_layers * index // num_blocks, num_layers * (index + 1) // num_blocks)


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore progress."""
