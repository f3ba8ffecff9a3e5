"""What every bundle has, whatever processor it is for: options, blocks, texts, a manifest.

In: what was asked for, and a checkpoint. Out: options within their limits; the tokenizer, a file
for each chat template, and the manifest, which is written last.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    ChatFiles,
    EmbeddingFile,
    Manifest,
    ModelShape,
    WeightKind,
)
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.writer import Staging
from coordgen_rs.errors import ChatTemplateError, CheckpointError, OptionError
from coordgen_rs.errors.extras import package_version
from coordgen_rs.text.chat_files import DEFAULT, read_template_file
from coordgen_rs.text.chat_template import ChatTemplate

Array = NDArray[np.float32]

_TOKENIZER, _TEMPLATE = "tokenizer.json", "chat_template.jinja"

Progress = Callable[[str, int, int], None]
"""Called with what comes next, steps done, and steps in all."""


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


class BundleExport:
    """One export: where it reads, where it writes, and what the bundle is to be.

    Args:
        source: The checkpoint.
        staging: Where the files go.
        options: What the bundle is to be.
        on_progress: Called with what comes next, steps done, and steps in all.
        num_steps: Those in all.
    """

    def __init__(
        self,
        source: Checkpoint,
        staging: Staging,
        options: BundleOptions,
        on_progress: Progress,
        num_steps: int,
    ) -> None:
        self.source, self.staging, self.options = source, staging, options
        self.layers = list(cut_layers(source.config.num_layers, options.blocks))
        """Those of each block."""
        self._on_progress, self._num_steps = on_progress, num_steps

    def progress(self, what: str, done: int) -> None:
        """Tell what comes next."""
        self._on_progress(what, done, self._num_steps)

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
