"""What every bundle has, whatever processor it is for: options, blocks of layers, a manifest.

In: what was asked for, and the files that were written. Out: options within their limits; the
manifest, which is written last.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from coordgen_rs.bundle.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    Manifest,
    ModelShape,
    WeightKind,
)
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.writer import Staging
from coordgen_rs.errors import OptionError
from coordgen_rs.files.version import package_version

TOKENIZER_NAME = "tokenizer.json"

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


def write_manifest(
    staging: Staging, config: ModelConfig, options: BundleOptions, **parts: Any
) -> None:
    """Write the manifest of all files so far.

    Args:
        staging: Where the files are; the tokenizer is one of them.
        config: The checkpoint's configuration.
        options: What the bundle is.
        parts: The fields of `Manifest` that only the exporter knows.

    Raises:
        ExportError: It cannot be written.
    """
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
        tokenizer=TOKENIZER_NAME,
        files=dict(staging.records),
        **parts,
    )
    staging.write(MANIFEST_NAME, manifest.to_json().encode())


def model_shape(config: ModelConfig) -> ModelShape:
    """The sizes that the manifest holds."""
    return ModelShape(**{it.name: getattr(config, it.name) for it in fields(ModelShape)})


def cut_layers(num_layers: int, num_blocks: int) -> Iterator[range]:
    """`num_layers` layers in `num_blocks` runs whose lengths differ by at most one."""
    for index in range(num_blocks):
        yield range(num_layers * index // num_blocks, num_layers * (index + 1) // num_blocks)


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore progress."""
