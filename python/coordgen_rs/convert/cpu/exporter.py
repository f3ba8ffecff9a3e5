"""Writing a whole bundle.

In: the path of a checkpoint and what the bundle is to be. Out: a directory for `Bundle.open`.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

import onnx

from coordgen_rs.bundle.assistant import AssistantFiles
from coordgen_rs.bundle.experts import ExpertLayers, ExpertRegion
from coordgen_rs.bundle.manifest import (
    DEFAULT_CONTEXT,
    MOST_ROWS,
    BlockFiles,
    EmbeddingFile,
    HeadFiles,
    KeptWeights,
    MtpFiles,
    PanelPlace,
    WeightKind,
    refuse_gone,
)
from coordgen_rs.bundle.panels import WeightType
from coordgen_rs.bundle.per_layer import PerLayerFile
from coordgen_rs.bundle.recurrent import RecurrentLayers
from coordgen_rs.convert.bundle import (
    TOKENIZER_NAME,
    BundleOptions,
    Progress,
    cut_layers,
    no_progress,
    write_manifest,
)
from coordgen_rs.convert.calibration.texts import texts_for
from coordgen_rs.convert.chat import write_chat
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.cpu.assistant import weight_bytes, write_assistant
from coordgen_rs.convert.cpu.compensation import compensated_layers
from coordgen_rs.convert.cpu.graph import block_graph, head_graph
from coordgen_rs.convert.cpu.mtp import (
    MOST_SCORED,
    first_outputs,
    layer_graph,
    layer_of,
    logits_graph,
    write_mtp,
)
from coordgen_rs.convert.cpu.quantize import BITS_OF_TYPES
from coordgen_rs.convert.cpu.recurrent import state_sizes
from coordgen_rs.convert.families.assistant import Assistant, check_config, open_assistant
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.opening import fetched, open_checkpoint
from coordgen_rs.convert.stored import (
    PER_LAYER_SHARE,
    StoredMixture,
    WriteExperts,
    write_head,
    write_layer,
    write_per_layer_inputs,
)
from coordgen_rs.convert.weight_file import (
    Bits,
    StoredExperts,
    StoredLinear,
    WeightWriter,
    written_type,
)
from coordgen_rs.convert.writer import Staging, memory_named, refuse_taken, staged_directory
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
            rounded so that its outputs on it change least (`compensation.py`), which takes some
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
    chat = None if chat_template is None else Path(chat_template)
    with memory_named(Path(out)):
        refuse_taken(Path(out))
        source = open_checkpoint(Path(checkpoint), None if tokenizer is None else Path(tokenizer))
        if context is None:
            context = min(source.config.max_positions, DEFAULT_CONTEXT)
        weights = weights or ("keep" if _is_kept(source) else "fp32")
        has_text = calibration is not None
        options = _Options(weights, blocks, prefill_rows, decode_rows, context, has_text)
        options.check(source)
        drafter = None
        if assistant is not None:
            found = fetched(Path(assistant), check_config, needs_tokenizer=False)
            drafter = open_assistant(found, source)
        sizes = {kind: _weight_bytes(source, kind, drafter) for kind in weight_kinds(source)}
        texts = None if calibration is None else texts_for(source, Path(calibration)).calibration
        with staged_directory(Path(out)) as staging:
            staging.check_space(sizes[weights])
            report = on_progress or no_progress
            _Exporter(source, staging, options, chat, texts, report, drafter).run()
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
    products = [
        (tensor, block_bits) for name, tensor in source.tensors.items() if ".layers." in name
    ]
    products.append((source.output_tensor(), head_bits))
    embedding, in_halves = source.embedding_tensor(), 0
    if not _is_in_panels(weights):
        in_halves = 16 * math.prod(embedding.shape)
    elif not source.config.tied_head:
        products.append((embedding, head_bits))
    if (table := source.per_layer_tensor()) is not None:
        products.append((table, head_bits))
    bits = sum(
        math.prod(tensor.shape) * BITS_OF_TYPES[written_type(tensor, its)]
        for tensor, its in products
    )
    beside = 0 if drafter is None else weight_bytes(drafter, _BITS[weights])
    return int((bits + in_halves) / 8) + beside


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
        drafter: Assistant | None,
    ) -> None:
        self._source, self._chat_template, self._drafter = source, chat_template, drafter
        self._texts = texts
        self._staging = staging
        self._options = options
        self._on_progress = on_progress
        self._shifted: set[str] = set()
        self._experts: list[ExpertRegion] = []
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
        head, embedding, mtp = self._write_head(embedding)
        # A graph of any width may start at the last slot of the context.
        slots = options.context + options.widths[-1]
        parts = {
            "blocks": blocks,
            "head": head,
            "embedding": embedding,
            "kept": self._kept(),
            "chat": chat,
            "mtp": mtp,
            "assistant": self._write_drafter(),
            "recurrent": self._recurrent(),
            "experts": self._expert_layers(),
            "per_layer": self._write_per_layer(),
        }
        write_manifest(self._staging, config, options, slots=slots, **parts)
        self._progress("done", config.num_layers + 2)

    def _write_embedding(self) -> EmbeddingFile | None:
        """The embedding; None where it is the head's panels."""
        self._progress("embedding", 0)
        if not _is_in_panels(self._options.weights):
            with self._staging.create("embedding.bin") as file:
                for piece in self._source.first_hidden_tensor().pieces():
                    file.write(piece.astype("<f2"))
            return EmbeddingFile("embedding.bin", "float16")
        if self._source.config.tied_head:
            return None
        _, bits = _BITS[self._options.weights]
        with self._staging.create("embedding.weights") as file:
            writer = WeightWriter("embedding.weights", file)
            stored = writer.linear([self._source.embedding_tensor()], bits)
        self._shifted |= writer.shifted
        return self._in_panels(stored)

    def _write_per_layer(self) -> PerLayerFile | None:
        """The embedding of layers, if there is one."""
        table = self._source.per_layer_tensor()
        if table is None:
            return None
        self._progress("embeddings of layers", self._model.num_layers + 1)
        size, name = self._source.config.per_layer_size, "per_layer.weights"
        with self._staging.create(name) as file:
            writer = WeightWriter(name, file)
            stored = writer.linear([table], _BITS[self._options.weights][1])
        self._shifted |= writer.shifted
        (weight_type,) = stored.types
        scale = size**0.5 * PER_LAYER_SHARE
        return PerLayerFile(name, cast("WeightType", weight_type), size, scale)

    def _in_panels(self, layer: StoredLinear) -> EmbeddingFile:
        """The weights of a layer, which are one segment, as the embedding."""
        (stored,), (weight_type,) = layer.segments, layer.types
        place = PanelPlace(stored.offset, float(self._source.config.embedding_scale))
        return EmbeddingFile(stored.file, cast("WeightType", weight_type), place)

    def _write_block(
        self, index: int, layers: range, calibrated: Iterator[Mapping[str, Tensor]] | None
    ) -> BlockFiles:
        """A block; `calibrated` are the matrices of each layer where a text decides on them."""
        name, stored = f"block_{index:02}", []
        bits: Bits = "keep" if calibrated is not None else _BITS[self._options.weights][0]
        with self._writers(name) as (writer, write_experts):
            for number in layers:
                self._progress(f"layer {number}", number + 1)
                source = self._source
                if calibrated is not None:
                    source = replace(source, tensors={**source.tensors, **next(calibrated)})
                stored.append(write_layer(source, writer, number, bits, write_experts))
            per_layer = write_per_layer_inputs(self._source, writer, layers, bits)
        for number, layer in zip(layers, stored, strict=True):
            if layer.mixture is not None:
                self._experts.append(_region(number, layer.mixture))
        graph = block_graph(self._model, stored, layers.start, per_layer)
        graphs = self._write_graph(name, graph)
        return BlockFiles(layers.start, len(layers), f"{name}.weights", graphs)

    @contextlib.contextmanager
    def _writers(self, name: str) -> Iterator[tuple[WeightWriter, WriteExperts]]:
        """What writes the weights of some layers, and what writes their experts.

        These get a file of their own, which is made for the first of them.
        """
        with contextlib.ExitStack() as stack:

            @cache
            def writer(kind: str) -> WeightWriter:
                file = f"{name}.{kind}"
                return WeightWriter(file, stack.enter_context(self._staging.create(file)))

            def write_experts(parts: Sequence[Tensor], num: int) -> StoredExperts:
                found = writer("experts").experts(parts, num, bits=_BITS[self._options.weights][0])
                self._shifted |= writer("experts").shifted
                return found

            yield writer("weights"), write_experts
        self._shifted |= writer("weights").shifted

    def _write_head(
        self, embedding: EmbeddingFile | None
    ) -> tuple[HeadFiles, EmbeddingFile, MtpFiles | None]:
        """The head, and the embedding, which may be the head's panels; the head for more tokens."""
        self._progress("head", self._model.num_layers + 1)
        _, bits = _BITS[self._options.weights]
        with self._staging.create("head.weights") as file:
            writer = WeightWriter("head.weights", file)
            stored = write_head(self._source, writer, bits)
        self._shifted |= writer.shifted
        graphs = self._write_graph("head", head_graph(self._model, stored))
        files = HeadFiles(["head.weights"], graphs)
        mtp = self._write_mtp(stored.output)
        return files, embedding or self._in_panels(stored.output), mtp

    def _write_mtp(self, output: StoredLinear) -> MtpFiles | None:
        """The head for further tokens, where the checkpoint has one; it shares the output layer."""
        layer = layer_of(self._source)
        if layer is None:
            return None
        name, model = "mtp", layer.config.within(self._options.context)
        with self._writers(name) as (writer, write_experts):
            stored = write_mtp(layer, writer, _BITS[self._options.weights][0], write_experts)
        self._staging.write(f"{name}.onnx", layer_graph(model, stored).SerializeToString())
        graph = logits_graph(model, output)
        self._staging.write(f"{name}_head.onnx", graph.SerializeToString())
        scored = sum(first_outputs(output, MOST_SCORED).sizes)
        mixture = stored.layer.mixture
        region = None if mixture is None else _region(0, mixture)
        graphs = f"{name}.onnx", f"{name}_head.onnx"
        return MtpFiles([f"{name}.weights"], *graphs, scored, region)

    def _write_drafter(self) -> AssistantFiles | None:
        """The drafter beside the model, if one was given."""
        if self._drafter is None:
            return None
        self._progress("drafter", self._model.num_layers + 1)
        bits, context = _BITS[self._options.weights], self._options.context
        with self._drafter.named_in_errors():
            return write_assistant(
                self._drafter, self._source, self._staging, bits=bits, context=context
            )

    def _recurrent(self) -> RecurrentLayers | None:
        """What layers without attention keep."""
        config = self._source.config
        if config.recurrent is None:
            return None
        layers, kind = sorted(config.recurrent_layers), config.recurrent
        return RecurrentLayers(kind.kind, layers, state_sizes(kind))

    def _expert_layers(self) -> ExpertLayers | None:
        """Where the experts are."""
        experts = self._source.config.experts
        if experts is None:
            return None
        return ExpertLayers(experts.num, experts.chosen, experts.size, self._experts)

    def _kept(self) -> list[KeptWeights] | None:
        """What became of the checkpoint's tensors, the most frequent type first."""
        if self._options.weights != "keep":
            return None
        counts = Counter(
            (tensor.stored_type or "F32", name not in self._shifted)
            for name, tensor in self._source.tensors.items()
        )
        return [KeptWeights(name, count, exact) for (name, exact), count in counts.most_common()]

    def _write_graph(self, name: str, model: onnx.ModelProto) -> dict[int, str]:
        """One graph for all widths, which its rows being symbolic makes possible."""
        self._staging.write(f"{name}.onnx", model.SerializeToString())
        return dict.fromkeys(self._options.widths, f"{name}.onnx")

    def _progress(self, what: str, done: int) -> None:
        self._on_progress(what, done, self._model.num_layers + 2)


def _region(layer: int, mixture: StoredMixture) -> ExpertRegion:
    """Where the experts of a layer are, for the manifest."""
    place, types = mixture.experts.place, mixture.experts.types
    named = [cast("WeightType", it) for it in types]
    return ExpertRegion(layer, place.file, place.offset, place.num_bytes, named)
