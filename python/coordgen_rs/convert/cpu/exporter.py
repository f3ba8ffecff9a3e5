"""Writing a whole bundle.

In: the path of a checkpoint and what the bundle is to be. Out: a directory for `Bundle.open`.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx

from coordgen_rs.bundle.layers import ExpertLayers, ExpertRegion, PerLayerFile, RecurrentLayers
from coordgen_rs.bundle.manifest import (
    DEFAULT_CONTEXT,
    MOST_ROWS,
    AssistantFiles,
    BlockFiles,
    EmbeddingFile,
    HeadFiles,
    KeptWeights,
    MtpFiles,
    PanelPlace,
    WeightKind,
    refuse_gone,
)
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.cpu.calibration import compensated_layers
from coordgen_rs.convert.cpu.graph import block_graph, head_graph
from coordgen_rs.convert.cpu.heads import (
    MOST_SCORED,
    drafter_products,
    first_outputs,
    layer_of,
    mtp_graph,
    mtp_logits_graph,
    write_drafter,
    write_mtp,
)
from coordgen_rs.convert.cpu.layers import (
    PER_LAYER_SHARE,
    state_sizes,
    write_head,
    write_layer,
    write_per_layer_inputs,
)
from coordgen_rs.convert.families.assistant import Assistant, check_config, open_assistant
from coordgen_rs.convert.families.checkpoint import Checkpoint, fetched, open_checkpoint
from coordgen_rs.convert.quantize import BITS_OF_TYPES
from coordgen_rs.convert.texts import texts_for
from coordgen_rs.convert.weight_file import Bits, StoredLinear, Weights, WeightWriter, written_type
from coordgen_rs.convert.writer import (
    BundleExport,
    BundleOptions,
    Progress,
    export_to,
    no_progress,
    staged_directory,
)
from coordgen_rs.errors import OptionError

_WIDTHS = (*range(1, 9), 12, 16, 24, 32, 48)
"""Every narrow width: 3, 5 and 7 make decoding by measured costs up to 1 % faster.

All others up to 32 bring no more: where rows cost time, few steps are wider than 8
(`benches/width_lists.py`).
"""
_FLOAT_WIDTHS = (1, 4, 8, 16, 32)
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
    assistant: str | Path | None = None,
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
        weights: Precision of the weights; the head of `int4` has 8 bits, and `keep` keeps what the
            checkpoint holds. None stands for `keep`, or for `fp32` where a checkpoint other than
            GGUF holds float32 alone.
        blocks: Number of blocks into which the layers are cut, as equal as may be.
        prefill_rows: Rows of the widest graph, for prompts.
        decode_rows: Rows of the widest decode graph, at most `prefill_rows`; narrower ones are 1,
            4, 8, 16 and 32, for other weights than `fp32` also 2, 3, 5, 6, 7, 12, 24 and 48.
        context: Most tokens of a request; None takes the model's limit, but at most 4,096.
        chat_template: A chat template in Jinja; None takes the checkpoint's.
        tokenizer: A tokenizer.json that takes the place of the checkpoint's own.
        calibration: Text like that which the model is to read (`read_texts`): `int4` is then
            rounded so that its outputs on it change least (`calibration.py`), which takes some
            minutes for a billion weights. It is read in float32.
        assistant: The Hugging Face directory of a drafter that was published for the checkpoint
            (Gemma 4's `gemma4_assistant`), or its name `hf:OWNER/NAME[@REVISION]`.
        on_progress: Called with what comes next, steps done, and steps in all.

    Returns:
        For each kind of weights that the checkpoint can have, the bytes that they would take.

    Raises:
        OptionError: An option is outside its range, or the calibration file cannot be used.
        CheckpointError: The checkpoint is missing something or damaged, or the assistant was made
            for another one; UnsupportedModelError, a CheckpointError, if one is of a kind that the
            graphs cannot do.
        ChatTemplateError: The chat template cannot be read.
        ExportError: `out` exists or cannot be written, or disk or memory do not suffice.
    """
    with export_to(Path(out)):
        source = open_checkpoint(Path(checkpoint), None if tokenizer is None else Path(tokenizer))
        options = _Options(
            weights or ("keep" if _is_kept(source) else "fp32"),
            blocks,
            prefill_rows,
            decode_rows,
            min(source.config.max_positions, DEFAULT_CONTEXT) if context is None else context,
            None if chat_template is None else Path(chat_template),
            has_text=calibration is not None,
        )
        options.check(source)
        drafter = None
        if assistant is not None:
            found = fetched(Path(assistant), check_config, needs_tokenizer=False)
            drafter = open_assistant(found, source)
        sizes = {kind: _weight_bytes(source, kind, drafter) for kind in weight_kinds(source)}
        texts = None if calibration is None else texts_for(source, Path(calibration)).calibration
        with staged_directory(Path(out)) as staging:
            staging.check_space(sizes[options.weights])
            report = on_progress or no_progress
            num_steps = source.config.num_layers + 2
            _CpuExport(source, staging, options, report, num_steps, texts, drafter).run()
    return sizes


def weight_kinds(source: Checkpoint) -> list[WeightKind]:
    """The kinds of weights that a checkpoint can have."""
    return [kind for kind in _BITS if kind != "keep" or _is_kept(source)]


def _is_kept(source: Checkpoint) -> bool:
    """Whether weights are kept unless another kind is asked for.

    Not where all are float32, which `fp32` keeps, but for GGUF files: of these `keep` is said.
    """
    types = {tensor.stored_type for tensor in source.tensors.values()}
    return source.is_gguf or not types <= {None, "F32"}


def _weight_bytes(source: Checkpoint, weights: WeightKind, drafter: Assistant | None) -> int:
    """What the weights take; alignment, and the last block of a row being full, not counted."""
    block_bits, head_bits = _BITS[weights]
    products: list[tuple[Tensor, Bits]] = [
        (tensor, block_bits) for name, tensor in source.tensors.items() if ".layers." in name
    ]
    products.append((source.output_tensor(), head_bits))
    embedding, in_halves = source.embedding_tensor(), 0
    if not _is_in_panels(weights):
        in_halves = 2 * math.prod(embedding.shape)
    elif not source.config.tied_head:
        products.append((embedding, head_bits))
    if (table := source.per_layer_tensor()) is not None:
        products.append((table, head_bits))
    beside = [] if drafter is None else drafter_products(drafter, _BITS[weights])
    return _bytes_of(products) + in_halves + _bytes_of(beside)


def _bytes_of(products: Iterable[tuple[Tensor, Bits]]) -> int:
    """What tensors take, each written in some bits."""
    bits = (math.prod(it.shape) * BITS_OF_TYPES[written_type(it, its)] for it, its in products)
    return int(sum(bits) / 8)


def _is_in_panels(weights: WeightKind) -> bool:
    """Whether the embedding has the type of the head, whose panels it then may share."""
    return _BITS[weights][1] in (None, "keep")


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
        if self.weights not in weight_kinds(source):
            raise OptionError("weights is 'keep', but all weights are float32: take fp32")
        self.check_limits(source.config, MOST_ROWS)
        if self.has_text and source.config.caches is not None:
            raise OptionError(
                f"calibration is not known for {source.config.family}, whose layers read the keys "
                "of others"
            )
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


@dataclass
class _CpuExport(BundleExport):
    """One export for CPU, with a calibration text and a drafter, where there are such."""

    options: _Options
    texts: Sequence[Sequence[int]] | None
    drafter: Assistant | None

    def __post_init__(self) -> None:
        self._shifted: set[str] = set()
        self._experts: list[ExpertRegion] = []
        self._model = self.source.config.within(self.options.context)
        self._bits, self._head_bits = _BITS[self.options.weights]

    def run(self) -> None:
        """Writes all files, the manifest last."""
        config, options = self.source.config, self.options
        chat = self.write_texts()
        embedding = self._write_embedding()
        texts = self.texts
        calibrated = None if texts is None else compensated_layers(self.source, texts)
        blocks = [
            self._write_block(f"block_{index:02}", layers, calibrated)
            for index, layers in enumerate(self.layers)
        ]
        self.progress("head", config.num_layers + 1)
        with self._writer("head", self._head_bits) as writer:
            write_head(self.source, writer)
        output = writer.weights.linears["output"]
        head = self._write_graph("head", head_graph(self._model, writer.weights))
        parts = {
            # A graph of any width may start at the last slot of the context.
            "slots": options.context + options.widths[-1],
            "blocks": blocks,
            "head": HeadFiles(["head.weights"], head),
            "embedding": embedding or self._in_panels(output),
            "chat": chat,
            "mtp": self._write_mtp(output),
            "assistant": self._write_drafter(),
            "recurrent": None,
            "experts": None,
            "per_layer": self._write_per_layer(),
        }
        if (kind := config.recurrent) is not None:
            layers = sorted(config.recurrent_layers)
            parts["recurrent"] = RecurrentLayers(kind.kind, layers, state_sizes(kind))
        if (its := config.experts) is not None:
            parts["experts"] = ExpertLayers(its.num, its.chosen, its.size, self._experts)
        self.write_manifest(**parts, kept=self._kept())
        self.progress("done", config.num_layers + 2)

    @contextlib.contextmanager
    def _writer(self, name: str, bits: Bits) -> Iterator[WeightWriter]:
        """What writes the file of some weights.

        Experts get a file of their own, which is made for the first of them.
        """
        weights = Weights()
        with contextlib.ExitStack() as stack:

            def writer(kind: str, bits: Bits, **options: Any) -> WeightWriter:
                file = f"{name}.{kind}"
                created = stack.enter_context(self.staging.create(file))
                return WeightWriter(file, created, bits, weights, **options)

            experts = cache(partial(writer, "experts", self._bits))
            yield writer("weights", bits, writer_of_experts=experts)
        self._shifted |= weights.shifted

    def _write_embedding(self) -> EmbeddingFile | None:
        """The embedding; None where it is the head's panels."""
        self.progress("embedding", 0)
        if not _is_in_panels(self.options.weights):
            return self.write_embedding("float16", lambda piece: piece.astype("<f2"))
        if self.source.config.tied_head:
            return None
        with self._writer("embedding", self._head_bits) as writer:
            stored = writer.linear("embedding", [self.source.embedding_tensor()])
        return self._in_panels(stored)

    def _write_per_layer(self) -> PerLayerFile | None:
        """The embedding of layers, if there is one."""
        table, size = self.source.per_layer_tensor(), self.source.config.per_layer_size
        if table is None:
            return None
        self.progress("embeddings of layers", self._model.num_layers + 1)
        with self._writer("per_layer", self._head_bits) as writer:
            (weight_type,) = writer.linear("per_layer", [table]).types
        return PerLayerFile("per_layer.weights", weight_type, size, size**0.5 * PER_LAYER_SHARE)

    def _in_panels(self, layer: StoredLinear) -> EmbeddingFile:
        """The weights of a layer, which are one segment, as the embedding."""
        (stored,), (weight_type,) = layer.segments, layer.types
        place = PanelPlace(stored.offset, float(self.source.config.embedding_scale))
        return EmbeddingFile(stored.file, weight_type, place)

    def _write_block(
        self, name: str, layers: range, calibrated: Iterator[Mapping[str, Tensor]] | None
    ) -> BlockFiles:
        """A block; `calibrated` are the matrices of each layer where a text decides on them."""
        source = self.source
        with self._writer(name, self._bits if calibrated is None else "keep") as writer:
            for number in layers:
                self.progress(f"layer {number}", number + 1)
                if calibrated is not None:
                    tensors = {**self.source.tensors, **next(calibrated)}
                    source = replace(self.source, tensors=tensors)
                write_layer(source, writer, number)
            write_per_layer_inputs(self.source, writer, layers)
        self._experts += writer.weights.experts.values()
        graphs = self._write_graph(name, block_graph(self._model, writer.weights, layers))
        return BlockFiles(layers.start, len(layers), f"{name}.weights", graphs)

    def _write_mtp(self, output: StoredLinear) -> MtpFiles | None:
        """The head for further tokens, where the checkpoint has one; it shares the output layer."""
        layer = layer_of(self.source)
        if layer is None:
            return None
        model = layer.config.within(self.options.context)
        scored = first_outputs(output, MOST_SCORED)
        with self._writer("mtp", self._bits) as writer:
            write_mtp(layer, writer)
        graph, head = mtp_graph(model, writer.weights), mtp_logits_graph(model, scored)
        self.staging.write("mtp.onnx", graph.SerializeToString())
        self.staging.write("mtp_head.onnx", head.SerializeToString())
        region = writer.weights.experts.get(0)
        num_scored = sum(scored.sizes)
        return MtpFiles(["mtp.weights"], "mtp.onnx", "mtp_head.onnx", num_scored, region)

    def _write_drafter(self) -> AssistantFiles | None:
        """The drafter beside the model, if one was given."""
        drafter, bits = self.drafter, (self._bits, self._head_bits)
        if drafter is None:
            return None
        self.progress("drafter", self._model.num_layers + 1)
        with drafter.named_in_errors():
            return write_drafter(
                drafter, self.source, self.staging, bits=bits, context=self.options.context
            )

    def _kept(self) -> list[KeptWeights] | None:
        """What became of the checkpoint's tensors, the most frequent type first."""
        if self.options.weights != "keep":
            return None
        counts = Counter(
            (tensor.stored_type or "F32", name not in self._shifted)
            for name, tensor in self.source.tensors.items()
        )
        return [KeptWeights(name, count, exact) for (name, exact), count in counts.most_common()]

    def _write_graph(self, name: str, model: onnx.ModelProto) -> dict[int, str]:
        """One graph for all widths, which its rows being symbolic makes possible."""
        self.staging.write(f"{name}.onnx", model.SerializeToString())
        return dict.fromkeys(self.options.widths, f"{name}.onnx")
