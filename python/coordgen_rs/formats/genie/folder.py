"""A bundle of Genie as a bundle of ours: its files stay as they are, nothing is written.

In: a path with a genie_config.json. Out: a `GenieFolder`, whose manifest is made up from the config
and what the binaries, or metadata.json, say of their graphs. `device.py` runs them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle import rope
from coordgen_rs.bundle.directory import GENIE_CONFIG_NAME as CONFIG_NAME
from coordgen_rs.bundle.manifest import (
    SCHEMA_VERSION,
    BlockFiles,
    EmbeddingFile,
    FileRecord,
    HeadFiles,
    Manifest,
    ModelShape,
)
from coordgen_rs.bundle.qnn import SOCS, QnnTarget
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.formats import ForeignFolder, check_sizes, check_tokens, read_content, record_of
from coordgen_rs.formats.genie.binary import BinaryFacts, GraphFacts, can_read, read_binary
from coordgen_rs.formats.genie.config import GenieConfig, read_config
from coordgen_rs.formats.genie.metadata import (
    GenieMetadata,
    check_one,
    compared,
    described,
    read_metadata,
)
from coordgen_rs.formats.genie.model import GenieModel, choose_model

_LEAST_MASK = -1e9
"""What Genie writes where a row does not see a slot; encodings clamp it to their least value."""


@dataclass(frozen=True)
class GenieFolder(ForeignFolder):
    """An opened bundle of Genie.

    Attributes:
        config: What genie_config.json says.
        model: The graphs that are run.
        made_by: Version of QAIRT that compiled the binaries; None if nothing says it.
        num_graphs: Graphs in each binary; empty where binaries cannot be read here.
    """

    config: GenieConfig
    model: GenieModel
    made_by: str | None
    num_graphs: dict[str, int]

    form = "genie"

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read the config and what is known of the graphs, and check that they can be run.

        Args:
            path: The directory.

        Raises:
            BundleError: The bundle is incomplete or malformed, its files disagree, or it cannot be
                run here; the message names the file or what is not supported.
            BundleDamagedError: A binary or the tokenizer is missing or damaged.
        """
        directory = Path(path).absolute()
        config = read_config(directory / CONFIG_NAME)
        metadata = read_metadata(directory, config.extensions)
        names = config.binaries if can_read() else []
        binaries = {name: read_binary(directory / name) for name in names}
        graphs = _graphs(directory, config, metadata, binaries)
        return cls(**opened(directory, CONFIG_NAME, config, metadata, binaries, graphs))

    def shares(self, file: str) -> bool:
        """Whether a binary holds several graphs, or nobody could look."""
        return self.num_graphs.get(file, 2) > 1

    def embedded_rows(self) -> Callable[[NDArray[np.int64]], NDArray[Any]]:
        """A function from token ids `(rows,)` to what the first graph reads of the embedding.

        The embedding is a file with a row per token; only the rows in use are read of it.

        Raises:
            BundleDamagedError: The file is missing, cannot be mapped, or is of another size.
            BundleError: The config names no such file, or it holds other numbers than float32.
        """
        entry, encoding, size = self.config.embedding, self.model.embedded, self.model.hidden_size
        if entry is None or encoding is None or size is None:
            raise BundleError(
                f"{self.path}: its graphs read embedded tokens, but it has no embedding"
            )
        path, shape = self.path / entry.lut_path, (self.config.vocab_size, size)
        if entry.datatype not in (None, "float32"):
            raise BundleError(f"{path} holds {entry.datatype!r:.60}; only float32 can be read")
        if entry.size not in (None, size):
            raise BundleError(f"{path} has rows of {entry.size}, the graphs read {size}")
        try:
            num_bytes = path.stat().st_size
            if num_bytes != shape[0] * shape[1] * 4:
                raise BundleDamagedError(
                    f"{path} has {num_bytes} bytes, expected rows {shape} float32"
                )
            table = np.asarray(np.memmap(path, np.dtype("<f4"), "r", shape=shape))
        except OSError as error:
            raise BundleDamagedError(f"{path} cannot be mapped: {error}") from error
        quantize = encoding.quantize
        return lambda token_ids: quantize(table[token_ids])

    def rope_tables(self) -> dict[str, NDArray[np.float32]]:
        """Same as in `Bundle`, for every position that a run can reach."""
        cos, sin = rope.tables(self.model.context, self.manifest.inv_freq)
        return {"cos": cos, "sin": sin}


def opened(
    directory: Path,
    config_name: str,
    config: GenieConfig,
    metadata: GenieMetadata,
    binaries: dict[str, BinaryFacts],
    graphs: dict[str, tuple[str, GraphFacts]],
) -> dict[str, Any]:
    """The fields of a `GenieFolder`.

    Args:
        directory: The bundle.
        config_name: File name of its config.
        config: What that says.
        metadata: What other files say.
        binaries: What the binaries say; empty if they cannot be read here.
        graphs: File and facts of each graph.

    Raises:
        BundleError: The graphs cannot be run, or the files disagree.
        BundleDamagedError: A file is missing.
    """
    for name in config.binaries:
        if not (directory / name).is_file():
            raise BundleDamagedError(f"{directory / name} is missing")
    model = choose_model(str(directory), graphs, config.context)
    target = _target(directory, model, metadata, binaries)
    return {
        "path": directory,
        "manifest": _manifest(directory, config_name, config, model, target, metadata),
        "config": config,
        "model": model,
        "made_by": next((it.build_id for it in binaries.values()), None) or metadata.qairt,
        "num_graphs": {name: len(facts.graphs) for name, facts in binaries.items()},
    }


def _graphs(
    directory: Path, config: GenieConfig, metadata: GenieMetadata, binaries: dict[str, BinaryFacts]
) -> dict[str, tuple[str, GraphFacts]]:
    """File and facts of each graph: of the binaries themselves, or else of metadata.json.

    Raises:
        BundleError: Both tell of a graph, but not the same; or neither tells of any.
    """
    if not binaries:
        return described(directory, config.binaries, metadata.graphs)
    found: dict[str, tuple[str, GraphFacts]] = {}
    for file, facts in binaries.items():
        for name, graph in facts.graphs.items():
            if name in found:
                raise BundleError(f"{directory}: both {found[name][0]} and {file} have {name}")
            found[name] = file, graph
    compared(directory, metadata.graphs, found)
    return found


def _target(
    directory: Path, model: GenieModel, metadata: GenieMetadata, binaries: dict[str, BinaryFacts]
) -> QnnTarget:
    """The chip and the encodings.

    Raises:
        BundleError: The files disagree about the chip, or do not say which.
    """
    socs = dict(metadata.soc_models)
    for file, facts in binaries.items():
        if facts.soc_model is not None:
            socs.setdefault(facts.soc_model, file)
    check_one(directory, "soc_model", socs)
    if not socs:
        raise BundleError(f"{directory}: neither its metadata nor its binaries say the soc_model")
    soc = next(iter(socs))
    archs = [*metadata.htp_archs, *(it.htp_arch for it in SOCS.values() if it.model == soc)]
    if not archs:
        raise BundleError(
            f"{directory} is for the chip with soc_model {soc}, whose HTP version is not known"
        )
    arch = archs[0]
    unseen = model.mask.quantize(np.array([_LEAST_MASK], np.float32))
    return QnnTarget(
        soc=next((it.name for it in SOCS.values() if it.model == soc), f"soc_model {soc}"),
        soc_model=soc,
        htp_arch=arch,
        mask_value=float(model.mask.dequantize(unseen)[0]),
        mask=model.mask,
        rotation=model.cos,
        hidden=[model.embedded or model.logits, *model.hidden, model.logits],
        caches=model.caches,
        logits=model.logits,
    )


def _manifest(
    directory: Path,
    config_name: str,
    config: GenieConfig,
    model: GenieModel,
    target: QnnTarget,
    metadata: GenieMetadata,
) -> Manifest:
    """What a session has to know of a bundle.

    Raises:
        BundleError: A size is impossible, or config and graphs contradict each other.
        BundleDamagedError: A file is missing.
    """
    widths = model.widths
    context = min(config.context, model.context) - widths[-1]
    shape = ModelShape(
        family=metadata.model_id or "genie",
        hidden_size=model.hidden_size or model.num_kv_heads * model.head_dim,
        ffn_size=0,
        num_layers=len(model.caches),
        num_heads=0,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        rms_norm_eps=0.0,
    )
    _check_sizes(directory / config_name, config, shape, context)
    names = [config_name, config.tokenizer]
    files = {name: record_of(read_content(directory / name)) for name in names}
    sizes = {name: (directory / name).stat().st_size for name in config.binaries}
    files |= {name: FileRecord(size, "") for name, size in sizes.items()}  # they are not hashed
    blocks = [
        BlockFiles(
            min(part[widths[0]].keys, default=0),
            len(part[widths[0]].keys),
            part[widths[0]].file,
            {rows: graph.file for rows, graph in part.items()},
        )
        for part in model.parts
    ]
    last = blocks[-1]
    return Manifest(
        schema_version=SCHEMA_VERSION,
        tool="Qualcomm AI Hub",
        model=shape,
        weights="compiled",
        context=context,
        slots=model.context,
        widths=widths,
        prefill_rows=widths[-1],
        decode_rows=widths[-1],
        bos_token_id=config.bos_token_id,
        end_token_ids=config.end_token_ids,
        inv_freq=config.frequencies(model.head_dim),
        blocks=blocks,
        head=HeadFiles([last.weights], last.graphs),
        embedding=EmbeddingFile(config.embedding.lut_path if config.embedding else "", "float32"),
        tokenizer=config.tokenizer,
        files=files,
        qnn=target,
    )


def _check_sizes(path: Path, config: GenieConfig, shape: ModelShape, context: int) -> None:
    unknown = ("ffn_size", "num_heads")
    known = {name: size for name, size in shape.sizes.items() if name not in unknown}
    check_sizes(path, {**known, "context": context})
    if config.vocab_size > shape.vocab_size:
        raise BundleError(
            f"{path}: the vocabulary has {config.vocab_size} tokens, the graphs give "
            f"{shape.vocab_size} logits"
        )
    check_tokens(path, [*config.end_token_ids, config.bos_token_id or 0], shape.vocab_size)
