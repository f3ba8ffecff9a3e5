"""A bundle: the directory that holds a target ready to run.

In: a path. Out: a `Bundle` with the manifest, absolute file paths and the embedding's rows.
Opening costs one small read and a size check per file; `verify` reads every byte.
It does not load graphs (`runtime/`) or write bundles (`convert/`).
"""

import hashlib
import mmap
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle import rope
from coordgen_rs.bundle.layers import MappedRows, PanelRows, num_bytes
from coordgen_rs.bundle.manifest import (
    EMBEDDING_TYPES,
    MANIFEST_NAME,
    AssistantFiles,
    ClusterFiles,
    Manifest,
)
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.errors.json_text import file_errors_as, read_bytes

GENAI_CONFIG_NAME, GENIE_CONFIG_NAME = "genai_config.json", "genie_config.json"
"""Configs of other tools: their folders are bundles, too, once they are opened (`formats/`)."""
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""

_CHUNK_BYTES = 1 << 20
_MOST_MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Bundle:
    """An opened bundle.

    Attributes:
        path: The directory.
        manifest: Everything that a session needs to know, and every file with its SHA-256.
    """

    path: Path
    manifest: Manifest

    form: ClassVar[str] = "coordgen"
    """The kind of the directory, a key of `loading.directory.KINDS`."""

    has_checksums: ClassVar[bool] = True
    """Whether the manifest holds the SHA-256 of every file as it was written."""

    tokenizer_config: ClassVar[str | None] = None
    """A file that may ask for a begin token which the tokenizer's own file does not put."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read the manifest and check that every file is there with its right size.

        Args:
            path: The directory. `open_bundle` also takes those of other tools.

        Raises:
            BundleError: There is no bundle, or its manifest cannot be used.
            BundleDamagedError: A file is missing or of another size; the message names it.
        """
        directory = Path(path)
        manifest = directory / MANIFEST_NAME
        with file_errors_as(BundleError, manifest):
            try:
                text = read_bytes(manifest, most_bytes=_MOST_MANIFEST_BYTES)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise BundleError(f"{directory} {_lack(directory)}") from error
        bundle = cls(directory.absolute(), Manifest.from_json(text, str(manifest)))
        bundle._check_sizes()
        return bundle

    @property
    def shown(self) -> str:
        """What messages call it: its path; of a checkpoint's conversion, the checkpoint."""
        return str(self.path)

    def named_in_errors(self) -> AbstractContextManager[None]:
        """Within the block, errors about a file name what the user has opened, too."""
        return nullcontext()

    def release(self) -> None:
        """Let go of what keeps it from being removed, if anything does."""

    def discard(self) -> bool:
        """Remove what is damaged, if `open_bundle` makes it anew; whether that is done."""
        return False

    def identity(self) -> bytes:
        """The manifest's text, which tells apart bundles that were at the same path."""
        return self.file(MANIFEST_NAME).read_bytes()

    def file(self, name: str) -> Path:
        """The path of the file that the manifest calls `name`."""
        return self.path / name

    def embedding(self) -> NDArray[Any] | PanelRows:
        """The embedding, `(vocab_size, hidden_size)` as it is stored, memory-mapped, read-only.

        Stored are f32, f16, bf16 as its upper bits in u16, or weights in panels. Reading rows
        instead (`os.preadv`) was tried: 40 us more a step of 32 rows of the embedded model, and no
        safer against a file that is cut short, since ONNX Runtime maps the weights.

        Raises:
            BundleDamagedError: The file cannot be mapped.
        """
        entry, model = self.manifest.embedding, self.manifest.model
        shape = (model.vocab_size, model.hidden_size)
        if (place := entry.panels) is not None:
            content = self._mapped(entry.file, num_bytes(entry.dtype, *shape), place.offset)
            return PanelRows(content, entry.dtype, *shape, place.scale)
        dtype = EMBEDDING_TYPES[entry.dtype]
        length = model.vocab_size * model.hidden_size * dtype.itemsize
        return self._mapped(entry.file, length).view(dtype).reshape(shape)

    def per_layer_embedding(self) -> PanelRows | None:
        """What each layer reads of tokens, `(vocab_size, num_layers * size)`; None if nothing.

        It is memory-mapped: of a table that may be larger than memory, rows are read when they are
        asked for.

        Raises:
            BundleDamagedError: The file cannot be mapped.
        """
        entry, model = self.manifest.per_layer, self.manifest.model
        if entry is None:
            return None
        rows, path = model.vocab_size * model.num_layers, self.file(entry.file)
        length = num_bytes(entry.dtype, rows, entry.size)
        try:
            with path.open("rb") as stream:
                mapped = mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BundleDamagedError(f"{path} cannot be mapped: {error}") from error
        content, layers = np.frombuffer(mapped, np.uint8), model.num_layers
        of_rows = entry.dtype, rows, entry.size, entry.scale
        return MappedRows(content, *of_rows, layers, mapped=mapped)

    def assistant_output(self) -> PanelRows:
        """The output layer of the drafter beside the model, `(vocab_size, its hidden size)`.

        Its rows stand cluster after cluster.

        Raises:
            BundleError: It has none whose rows are read.
            BundleDamagedError: The file cannot be mapped.
        """
        files, clusters = self._clustered()
        shape = self.manifest.model.vocab_size, files.hidden_size
        content = self._mapped(clusters.output, num_bytes(clusters.dtype, *shape))
        return PanelRows(content, clusters.dtype, *shape, 1.0)

    def assistant_clusters(self) -> tuple[NDArray[np.uint32], int]:
        """The tokens of each of its clusters, `(clusters, tokens) u32`; how many are scored.

        Raises:
            BundleError: It has none.
            BundleDamagedError: The file cannot be mapped.
        """
        _, clusters = self._clustered()
        content = self._mapped(clusters.ordering, 4 * self.manifest.model.vocab_size)
        return content.view("<u4").reshape(clusters.num, -1), clusters.chosen

    def _clustered(self) -> tuple[AssistantFiles, ClusterFiles]:
        files = self.manifest.assistant
        if files is None or files.clusters is None:
            raise BundleError(f"{self.shown} has no drafter whose tokens are in clusters")
        return files, files.clusters

    def _mapped(self, name: str, length: int, offset: int = 0) -> NDArray[np.uint8]:
        """Some bytes of a file, mapped; an array, as rows of a memmap are slow to take.

        Raises:
            BundleDamagedError: The file cannot be mapped.
        """
        path = self.file(name)
        try:
            return np.asarray(np.memmap(path, "u1", "r", offset, length))
        except (OSError, ValueError) as error:
            raise BundleDamagedError(f"{path} cannot be mapped: {error}") from error

    def rope_tables(self) -> dict[str, NDArray[np.float32]]:
        """What graphs read of each position, `(slots, n) f32` each, by the input's name.

        Cosines and sines of rotations, and what else `rope.tables_by_input` makes.
        """
        return rope.tables_by_input(self.manifest.slots, self.manifest)

    def verify(self, on_progress: Progress | None = None) -> None:
        """Compare the SHA-256 of every file with the manifest; reads everything once.

        Args:
            on_progress: Called with file name, bytes done and bytes in all, after each MiB.

        Raises:
            BundleDamagedError: A file differs; the message names the first.
        """
        total = sum(record.num_bytes for record in self.manifest.files.values())
        done = 0
        for name, record in self.manifest.files.items():
            digest = hashlib.sha256()
            try:
                with self.file(name).open("rb") as stream:
                    while chunk := stream.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        done += len(chunk)
                        if on_progress is not None:
                            on_progress(name, done, total)
            except OSError as error:
                raise BundleDamagedError(f"{self.file(name)} cannot be read: {error}") from error
            if digest.hexdigest() != record.sha256:
                raise BundleDamagedError(f"{self.file(name)} is damaged: its SHA-256 differs")

    def _check_sizes(self) -> None:
        for name, record in self.manifest.files.items():
            path = self.file(name)
            try:
                found = path.stat()
            except OSError as error:
                raise BundleDamagedError(f"{path} is missing: {error.strerror}") from error
            if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait
                raise BundleDamagedError(f"{path} is damaged: not a regular file")
            num_bytes = found.st_size
            if num_bytes != record.num_bytes:
                raise BundleDamagedError(
                    f"{path} is damaged: {num_bytes} bytes, expected {record.num_bytes}"
                )


def _lack(path: Path) -> str:
    """What is wrong with a path without a manifest, and what to do."""
    if (kind := _kind(path)) is not None:
        return f"is not a bundle: {kind}"
    is_like_a_name = len(path.parts) == len(("OWNER", "NAME")) and path.suffix != ".gguf"
    if is_like_a_name and path.parts[0] != "~" and not path.parent.exists():
        return f"does not exist; a model of that name on the Hugging Face Hub is hf:{path}"
    return "does not exist"


def _kind(path: Path) -> str | None:
    """What a path is in place of a bundle; None where there is nothing."""
    configs = GENIE_CONFIG_NAME, GENAI_CONFIG_NAME
    if path.name in configs or any((path / name).exists() for name in configs):
        return "it is another tool's, which open_bundle and open_session open"
    if (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").exists():
        return "it is a checkpoint, which open_bundle and open_session convert"
    if path.is_file():
        return "it is a file, expected a directory"
    if path.exists():
        files = sorted(file for file in path.glob("*.gguf") if file.is_file())
        advice = f"give the GGUF file in it, {files[0]}" if files else "coordgen export writes one"
        return f"no {MANIFEST_NAME}; {advice}"
    if str(path).startswith("hf:"):
        return "it is a model's name, which open_bundle and open_session fetch and convert"
    if str(path).startswith(("http:/", "https:/")):
        return "it is an address; a model of the Hugging Face Hub is called hf:OWNER/NAME"
    return None
