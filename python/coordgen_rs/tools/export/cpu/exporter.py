"""Writing a whole bundle.

In: the path of a checkpoint and what the bundle is to be. Out: a directory for `Bundle.open`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx

from coordgen_rs.bundle.manifest import (
    DEFAULT_CONTEXT,
    MOST_ROWS,
    BlockFiles,
    EmbeddingFile,
    HeadFiles,
    KeptWeights,
    PanelPlace,
    WeightKind,
    refuse_gone,
)
from coordgen_rs.bundle.panels import WeightType
from coordgen_rs.errors import OptionError
from coordgen_rs.tools.export.bundle import (
    TOKENIZER_NAME,
    BundleOptions,
    Progress,
    cut_layers,
    no_progress,
    write_manifest,
)
from coordgen_rs.tools.export.calibration.texts import texts_for
from coordgen_rs.tools.export.chat import write_chat
from coordgen_rs.tools.export.checkpoints.checkpoint import Checkpoint
from coordgen_rs.tools.export.checkpoints.opening import open_checkpoint
from coordgen_rs.tools.export.checkpoints.tensor import IntegerFormat, Tensor
from coordgen_rs.tools.export.cpu.compensation import compensated_layers
from coordgen_rs.tools.export.cpu.graph import block_graph, head_graph
from coordgen_rs.tools.export.cpu.quantize import (
    BITS_OF_TYPES,
    QUANTIZED_TYPES,
    common_format,
)
from coordgen_rs.tools.export.stored import (
    Bits,
    Floats,
    Panels,
    StoredLinear,
    StoredTensor,
    WeightWriter,
    kept_type,
    write_head,
    write_layer,
)
from coordgen_rs.tools.export.writer import Staging, memory_named, refuse_taken, staged_directory

_WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
"""A row more costs so little that every width counts: 24 rows take an eighth less than 32."""
_FLOAT_WIDTHS = (1, 4, 8, 16, 32)
_TOGETHER = re.compile(r"\b(?:([qkv])|gate|up)_proj\b")
"""Parts of names of tensors that are written as one."""
_BITS: dict[WeightKind, tuple[Bits, Bits]] = {
    "fp32": (None, None),
    "int8": (8, 8),
    "int4": (4, 8),
    "keep": ("keep", "keep"),
}
"""Bits of the blocks and of the head, which is more sensitive, by kind of weights."""
CALIBRATED: WeightKind = "int4"
"""Weights that a text makes better."""


def export_checkpoint(
    checkpoint: str | Path,
    out: str | Path,
    *,
    weights: WeightKind | None = None,
    blocks: int = 1,
    prefill_rows: int = 256,
    decode_rows: int = 32,
    context: int | None = None,
    chat_template: str | Path | None = None,
    tokenizer: str | Path | None = None,
    calibration: str | Path | None = None,
    on_progress: Progress | None = None,
) -> dict[WeightKind, int]:
    """Write the bundle `out` from a checkpoint.

    `out` appears only when it is complete; after an exception or an interrupt nothing is left
    behind. Memory: some pieces of 8 MiB and, when quantising, the scales of one layer. With a
    calibration text, one layer in float32 and its inputs, and some square matrices of float64 as
    wide as the widest input.

    Args:
        checkpoint: A Hugging Face directory, a GGUF file, or a llama2.c `.bin` or its directory.
        out: A directory that does not exist yet, or is empty.
        weights: Precision of the weights; the head of `int4` has 8 bits, and `keep` keeps those of
            a GGUF file. None stands for `keep` where it is one, else for `fp32`.
        blocks: Number of blocks into which the layers are cut, as equal as may be.
        prefill_rows: Rows of the widest graph, for prompts.
        decode_rows: Rows of the widest decode graph, at most `prefill_rows`; narrower ones are 1,
            4, 8, 16 and 32, for other weights than `fp32` also 2, 6, 12, 24 and 48.
        context: Most tokens of a request; None takes the model's limit, but at most 4,096.
        chat_template: A chat template in Jinja; None takes the checkpoint's.
        tokenizer: A tokenizer.json that takes the place of the checkpoint's own.
        calibration: Text like that which the model is to read (`read_texts`): `int4` is then
            rounded so that its outputs on it change least (`compensation.py`), which takes some
            minutes for a billion weights. It is read in float32.
        on_progress: Called with what comes next, steps done, and steps in all.

    Returns:
        For each kind of weights that the checkpoint can have, the bytes that they would take.

    Raises:
        OptionError: An option is outside its range, or the calibration file cannot be used.
        CheckpointError: The checkpoint is missing something or damaged; UnsupportedModelError, a
            CheckpointError, if it is of a kind that the graphs cannot do.
        ChatTemplateError: The chat template cannot be read.
        ExportError: `out` exists or cannot be written, or disk or memory do not suffice.
    """
    chat = None if chat_template is None else Path(chat_template)
    with memory_named(Path(out)):
        refuse_taken(Path(out))
        source = open_checkpoint(Path(checkpoint), None if tokenizer is None else Path(tokenizer))
        if context is None:
            context = min(source.config.max_positions, DEFAULT_CONTEXT)
        weights = weights or ("keep" if source.is_gguf else "fp32")
        has_text = calibration is not None
        options = _Options(weights, blocks, prefill_rows, decode_rows, context, has_text)
        options.check(source)
        sizes = {kind: _weight_bytes(source, kind) for kind in weight_kinds(source)}
        texts = None if calibration is None else texts_for(source, Path(calibration)).calibration
        with staged_directory(Path(out)) as staging:
            staging.check_space(sizes[weights])
            report = on_progress or no_progress
            _Exporter(source, staging, options, chat, texts, report).run()
    return sizes


def weight_kinds(source: Checkpoint) -> list[WeightKind]:
    """The kinds of weights that a checkpoint can have."""
    return [kind for kind in _BITS if kind != "keep" or source.is_gguf]


def _weight_bytes(source: Checkpoint, weights: WeightKind) -> int:
    """What the weights take; alignment, and the last block of a row being full, not counted."""
    block_bits, head_bits = _BITS[weights]
    is_shared, is_exact = _embedding_form(source, weights)
    in_panels = _embedding_type(source, weights) is not None
    products = [(weights, block_bits) for weights in _layer_products(source)]
    if not is_shared:
        products.append(([source.output_tensor()], head_bits))
    if in_panels and not source.config.tied_head:
        products.append(([source.embedding_tensor()], head_bits))
    bits = sum(_product_bits(weights, it) for weights, it in products)
    if not in_panels:
        vocabulary = source.config.vocab_size * source.config.hidden_size
        bits += vocabulary * (32 if is_exact else 16)
    return int(bits / 8)


def _layer_products(source: Checkpoint) -> Iterable[list[Tensor]]:
    """The tensors of all layers; those that are written as one stand together."""
    products: dict[str, list[Tensor]] = {}
    for name, tensor in source.tensors.items():
        if ".layers." in name:
            together = _TOGETHER.sub(lambda part: "qkv" if part[1] else "gate_up", name)
            products.setdefault(together, []).append(tensor)
    return products.values()


def _product_bits(weights: Sequence[Tensor], bits: Bits) -> float:
    """Bits of weights that are written as one, as `WeightWriter.linear` chooses their form."""
    sizes = [math.prod(tensor.shape) for tensor in weights]
    if bits != "keep" or all(map(kept_type, weights)):
        pairs = zip(sizes, weights, strict=True)
        return sum(size * _with_scales(tensor, bits) for size, tensor in pairs)
    formats = [tensor.integers.format for tensor in weights if tensor.integers is not None]
    if len(formats) < len(weights):
        return 32 * sum(sizes)
    return _of_8_bits(common_format(formats)) * sum(sizes)


def _embedding_type(source: Checkpoint, weights: WeightKind) -> str | None:
    """The type of the embedding's panels, which are the head's where both are one."""
    return kept_type(source.embedding_tensor()) if weights == "keep" else None


def _embedding_form(source: Checkpoint, weights: WeightKind) -> tuple[bool, bool]:
    """Whether the output layer is the embedding, both as floats; whether the embedding is float32.

    It is where float16 would lose some of its values.
    """
    _, bits = _BITS[weights]
    config = source.config
    is_shared = config.tied_head and _with_scales(source.output_tensor(), bits) == 32
    is_half = config.embedding_scale == 1 and source.embedding_tensor().stored_type == "F16"
    return is_shared, weights == "fp32" or (weights == "keep" and (is_shared or not is_half))


def _with_scales(tensor: Tensor, bits: Bits) -> float:
    """Bits of each value, with its part of the scale and the zero point of its block."""
    if bits is None:
        return 32
    weight_type = kept_type(tensor) if bits == "keep" else QUANTIZED_TYPES[bits]
    if weight_type is not None:
        return BITS_OF_TYPES[weight_type]
    if tensor.integers is None:
        return 32
    return _of_8_bits(tensor.integers.format)


def _of_8_bits(form: IntegerFormat) -> float:
    """Bits of an integer of 8 bits, with its part of the scale and the zero point of its block."""
    return 8 + (32 + 8 * form.has_zero_points) / form.block_size


@dataclass(frozen=True)
class _Options(BundleOptions):
    """What the bundle is to be; see `export_checkpoint`."""

    has_text: bool
    """Whether there is a calibration text."""

    def check(self, source: Checkpoint) -> None:
        """Refuse what the exporter or the model cannot do, and a text that would change nothing.

        Raises:
            OptionError: An option is out of its limits, which the message names.
        """
        refuse_gone("weights", self.weights)
        if self.weights not in _BITS:
            raise OptionError(f"weights is {self.weights!r}, expected one of {', '.join(_BITS)}")
        if self.weights == "keep" and not source.is_gguf:
            raise OptionError("weights is 'keep', which is for GGUF files")
        self.check_limits(source.config, MOST_ROWS)
        if self.has_text and self.weights != CALIBRATED:
            raise OptionError(
                f"calibration changes nothing in {self.weights}: it is for {CALIBRATED}"
            )

    @property
    def widths(self) -> list[int]:
        """Same as in `BundleOptions`, and narrow ones."""
        widths = _FLOAT_WIDTHS if self.weights == "fp32" else _WIDTHS
        narrow = {width for width in widths if width <= self.decode_rows}
        return sorted(narrow | {self.decode_rows, self.prefill_rows})


class _Exporter:
    """One export: where it reads, where it writes, and the sizes all its graphs share."""

    def __init__(
        self,
        source: Checkpoint,
        staging: Staging,
        options: _Options,
        chat_template: Path | None,
        texts: Sequence[Sequence[int]] | None,
        on_progress: Progress,
    ) -> None:
        self._source, self._chat_template = source, chat_template
        self._texts = texts
        self._staging = staging
        self._options = options
        self._on_progress = on_progress
        self._shifted: set[str] = set()
        self._model = source.config.within(options.context)

    def run(self) -> None:
        """Writes all files, the manifest last."""
        config, options = self._source.config, self._options
        self._staging.write(TOKENIZER_NAME, self._source.read_tokenizer().encode())
        chat = write_chat(self._staging, self._source, self._chat_template)
        embedding = self._write_embedding()
        cuts = cut_layers(config.num_layers, options.blocks)
        texts = self._texts
        calibrated = None if texts is None else compensated_layers(self._source, texts)
        blocks = [self._write_block(index, layers, calibrated) for index, layers in enumerate(cuts)]
        head, embedding = self._write_head(embedding)
        # A graph of any width may start at the last slot of the context.
        slots = options.context + options.widths[-1]
        parts = {
            "blocks": blocks,
            "head": head,
            "embedding": embedding,
            "kept": self._kept(),
            "chat": chat,
        }
        write_manifest(self._staging, config, options, slots=slots, **parts)
        self._progress("done", config.num_layers + 2)

    def _write_embedding(self) -> EmbeddingFile | None:
        """The embedding; None where it is the head's panels."""
        self._progress("embedding", 0)
        if _embedding_type(self._source, self._options.weights) is not None:
            if self._source.config.tied_head:
                return None
            with self._staging.create("embedding.weights") as file:
                writer = WeightWriter("embedding.weights", file)
                return self._in_panels(writer.linear([self._source.embedding_tensor()], "keep"))
        _, is_exact = _embedding_form(self._source, self._options.weights)
        dtype = np.dtype("<f4" if is_exact else "<f2")
        with self._staging.create("embedding.bin") as file:
            for piece in self._source.first_hidden_tensor().pieces():
                file.write(piece.astype(dtype, copy=False))
        return EmbeddingFile("embedding.bin", "float32" if is_exact else "float16")

    def _in_panels(self, layer: StoredLinear) -> EmbeddingFile:
        """Weights in one segment of panels as the embedding.

        Raises:
            TypeError: They are in another form.
        """
        if not isinstance(layer.weights, Panels):
            raise TypeError("the embedding is not in panels")
        (stored,), (weight_type,) = layer.weights.segments, layer.weights.types
        place = PanelPlace(stored.offset, float(self._source.config.embedding_scale))
        return EmbeddingFile(stored.file, cast("WeightType", weight_type), place)

    def _write_block(
        self, index: int, layers: range, calibrated: Iterator[Mapping[str, Tensor]] | None
    ) -> BlockFiles:
        """A block; `calibrated` are the matrices of each layer where a text decides on them."""
        name, stored = f"block_{index:02}", []
        bits: Bits = "keep" if calibrated is not None else _BITS[self._options.weights][0]
        with self._staging.create(f"{name}.weights") as file:
            writer = WeightWriter(f"{name}.weights", file)
            for number in layers:
                self._progress(f"layer {number}", number + 1)
                source = self._source
                if calibrated is not None:
                    source = replace(source, tensors={**source.tensors, **next(calibrated)})
                stored.append(write_layer(source, writer, number, bits))
        self._shifted |= writer.shifted
        graphs = self._write_graph(name, block_graph(self._model, stored, layers.start))
        return BlockFiles(layers.start, len(layers), f"{name}.weights", graphs)

    def _write_head(self, embedding: EmbeddingFile | None) -> tuple[HeadFiles, EmbeddingFile]:
        """The head, and the embedding, which may be the head's panels."""
        self._progress("head", self._model.num_layers + 1)
        _, bits = _BITS[self._options.weights]
        is_shared, _ = _embedding_form(self._source, self._options.weights)
        shared = self._shared_output(embedding.file) if embedding and is_shared else None
        with self._staging.create("head.weights") as file:
            writer = WeightWriter("head.weights", file)
            stored = write_head(self._source, writer, bits, shared)
        self._shifted |= writer.shifted
        graphs = self._write_graph("head", head_graph(self._model, stored))
        files = HeadFiles(sorted({"head.weights", *stored.output.files}), graphs)
        return files, embedding or self._in_panels(stored.output)

    def _kept(self) -> list[KeptWeights] | None:
        """What became of the tensors of a GGUF file, the most frequent type first."""
        if self._options.weights != "keep":
            return None
        counts = Counter(
            (str(tensor.stored_type), name not in self._shifted)
            for name, tensor in self._source.tensors.items()
        )
        return [KeptWeights(name, count, exact) for (name, exact), count in counts.most_common()]

    def _shared_output(self, file: str) -> StoredLinear:
        """The embedding's float32 rows as the output layer."""
        num_bytes = self._staging.records[file].num_bytes
        shape = (self._model.vocab_size, self._model.hidden_size)
        weight = StoredTensor(file, 0, num_bytes, shape, onnx.TensorProto.FLOAT)
        return StoredLinear(shape[1], shape[0], Floats(weight))

    def _write_graph(self, name: str, model: onnx.ModelProto) -> dict[int, str]:
        """One graph for all widths, which its rows being symbolic makes possible."""
        self._staging.write(f"{name}.onnx", model.SerializeToString())
        return dict.fromkeys(self._options.widths, f"{name}.onnx")

    def _progress(self, what: str, done: int) -> None:
        self._on_progress(what, done, self._model.num_layers + 2)
