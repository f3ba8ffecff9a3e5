"""The manifest of a bundle of AI Hub: what a session has to know, made up from what its files say.

In: the config, the graphs that are run, and what other files say. Out: a `Manifest` as our own
bundles have one, with the chip and the encodings.
"""

from pathlib import Path

import numpy as np

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
from coordgen_rs.errors import BundleError
from coordgen_rs.formats.files import check_sizes, check_tokens, read_content, record_of
from coordgen_rs.formats.genie.config import GenieConfig
from coordgen_rs.formats.genie.metadata import GenieMetadata, check_one
from coordgen_rs.formats.genie.model import GenieModel
from coordgen_rs.formats.genie.tensors import BinaryFacts

_LEAST_MASK = -1e9
"""What Genie writes where a row does not see a slot; encodings clamp it to their least value."""


def target_of(
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


def manifest_of(
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
    rotation = config.rotation
    frequencies = [] if rotation is None else rotation.frequencies(model.head_dim).tolist()
    names = [config_name, config.tokenizer]
    files = {name: record_of(read_content(directory / name)) for name in names}
    files |= {name: _size(directory / name) for name in config.binaries}
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
        inv_freq=frequencies,
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


def _size(path: Path) -> FileRecord:
    """Size of a binary, which is not hashed."""
    return FileRecord(path.stat().st_size, "")
