"""Writing a bundle for Qualcomm's HTP.

In: the path of a checkpoint, a chip, and what the bundle is to be. Out: a directory for
`Bundle.open`, and a report on what quantisation cost. Needs no QNN provider: nothing is compiled
here (`qnn/compile.py`).
Memory: one layer as float32 and, while its weights are rounded, a few square matrices as wide as
its widest input; then one block in fixed point; then the head, in fixed point and as float32.
What is done stays in a folder beside the bundle until that is there, so that an export that was
interrupted goes on (`resume.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from coordgen_rs.bundle.manifest import MANIFEST_NAME, BlockFiles, HeadFiles
from coordgen_rs.bundle.qnn import Encoding, QnnTarget
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.qnn.calibration import (
    CacheType,
    Conversion,
    Ranges,
    block_encodings,
    choose_encodings,
)
from coordgen_rs.convert.qnn.graph import block_graph, head_graph, text_inputs
from coordgen_rs.convert.qnn.outliers import rotated
from coordgen_rs.convert.qnn.preparation import HEAD, HEAD_BITS, Preparation, layer_name
from coordgen_rs.convert.qnn.quantize import (
    fix_shape,
    matrix_tensors,
    quantize_graph,
    read_in_blocks,
)
from coordgen_rs.convert.qnn.report import (
    QuantizationReport,
    QuantizedGraph,
    Stages,
    head_fidelity,
    mean_cosine,
)
from coordgen_rs.convert.qnn.resume import Matrix, PreparedGraph, WorkFolder, work_folder, work_key
from coordgen_rs.convert.texts import CalibrationTexts, texts_for
from coordgen_rs.convert.weight_file import WeightWriter
from coordgen_rs.convert.writer import (
    BundleExport,
    BundleOptions,
    Progress,
    export_to,
    no_progress,
    staged_directory,
)
from coordgen_rs.errors import OptionError, UnsupportedModelError
from coordgen_rs.errors.arguments import count
from coordgen_rs.runtime.machine import peak_resident_bytes, reset_peak
from coordgen_rs.runtime.qnn.options import soc_named

_DEFAULT_CONTEXT = 1024
_MOST_ROWS = 1024
QNN_WEIGHTS: tuple[Literal["int8", "int4"], ...] = ("int8", "int4")
"""The kinds of weights."""
_BITS = {"int8": (8,), "int4": (4, 8)}
"""Numbers of bits that the matrices of blocks may get."""
_MOST_BITS = 5.0
"""Most bits of a weight of the blocks in the mean, steps included, with `int4`."""
_LEAST_EXTERNAL_BYTES = 1024
"""Smaller initializers stay in the graph."""


def export_qnn(
    checkpoint: str | Path,
    out: str | Path,
    *,
    soc: str,
    weights: Literal["int8", "int4"] = "int8",
    cache_type: CacheType = "uint8",
    calibration: str | Path | None = None,
    blocks: int = 1,
    prefill_rows: int = 256,
    decode_rows: int = 32,
    narrow_rows: int | None = None,
    context: int | None = None,
    chat_template: str | Path | None = None,
    on_progress: Progress | None = None,
) -> QuantizationReport:
    """Write the bundle `out` for a chip; it appears only when it is complete.

    Args:
        checkpoint: Same as in `export_checkpoint`.
        out: A directory that does not exist yet, or is empty.
        soc: Name of the chip (`coordgen_rs.bundle.qnn.SOCS`).
        weights: Precision of the blocks' weights; the head always has 8 bits.
        cache_type: How keys and values are stored.
        calibration: Text like that which the model is to read (`read_texts`); None takes texts
            of our own, which fit a model with a language of its own badly.
        blocks: Number of blocks into which the layers are cut.
        prefill_rows: Rows of the prefill graph.
        decode_rows: Rows of the decode graph.
        narrow_rows: Rows of a second decode graph, for steps that draft little; None for none. It
            is loaded and released together with the wide one, and takes as much memory again.
        context: Most tokens of a request; None takes the model's limit, but at most 1,024.
        chat_template: Same as in `export_checkpoint`.
        on_progress: Called with what comes next, steps done, and steps in all.

    Raises:
        OptionError: An option is outside its range, or the calibration file cannot be used.
        CheckpointError: Same as in `export_checkpoint`.
        ChatTemplateError: The chat template cannot be read.
        ExportError: `out` exists or cannot be written, or disk or memory do not suffice.
    """
    stages = Stages(on_progress or no_progress)
    reset_peak()
    with export_to(Path(out)):
        source = open_checkpoint(Path(checkpoint))
        options = _Options(
            weights,
            blocks,
            prefill_rows,
            decode_rows,
            min(source.config.max_positions, _DEFAULT_CONTEXT) if context is None else context,
            None if chat_template is None else Path(chat_template),
            soc=soc,
            cache_type=cache_type,
            narrow_rows=narrow_rows,
        )
        options.check(source.config)
        float_bytes = sum(4 * math.prod(tensor.shape) for tensor in source.tensors.values())
        source, bits = rotated(source), _BITS[weights]
        path = None if calibration is None else Path(calibration)
        texts = texts_for(source, path, is_chat=True)
        read = [*texts.calibration, *texts.held_out]
        key = work_key(source, read, bits, blocks, options.context)
        with work_folder(Path(out), key) as work, staged_directory(Path(out)) as staging:
            num_steps = source.config.num_layers + blocks + 3
            export = _QnnExport(source, staging, options, stages, num_steps, texts, work)
            finished = export.run()
    return replace(
        finished,
        float_bytes=float_bytes,
        peak_bytes=peak_resident_bytes(),
        stage_seconds=stages.seconds,
    )


@dataclass(frozen=True)
class _Options(BundleOptions):
    """What the bundle is to be; see `export_qnn`."""

    soc: str
    cache_type: CacheType
    narrow_rows: int | None

    @property
    def widths(self) -> list[int]:
        """Same as in `BundleOptions`, and the narrow one."""
        return sorted({*super().widths, self.narrow_rows or self.decode_rows})

    def check(self, config: ModelConfig) -> None:
        """Refuse what the exporter or the model cannot do.

        Raises:
            OptionError: An option is out of its limits, which the message names.
            UnsupportedModelError: The model has what the graphs for HTP lack.
        """
        _refuse_switches(config.within(self.context))
        soc_named(self.soc)
        if self.weights not in _BITS:
            raise OptionError(f"weights is {self.weights!r}, expected int8 or int4 for QNN")
        if self.cache_type not in ("uint8", "uint16"):
            raise OptionError(f"cache_type is {self.cache_type!r}, expected uint8 or uint16")
        self.check_limits(config, _MOST_ROWS)
        if self.narrow_rows is not None:
            count("narrow_rows", self.narrow_rows, most=self.decode_rows - 1)


def _refuse_switches(config: ModelConfig) -> None:
    """Refuse what only the graphs for CPU can do.

    Raises:
        UnsupportedModelError: The model needs it; the message names it.
    """
    scaling = config.query_scaling
    sharing = sum(map(config.shares_keys, range(config.num_layers)))
    needed = {
        f"embeddings of {config.num_layers} layers": config.per_layer_size > 0,
        f"{sharing} layers that read the keys and values of others": sharing > 0,
        "layers with heads of different sizes": config.caches is not None,
        f"{len(config.recurrent_layers)} recurrent layers": config.recurrent is not None,
        "mixtures of experts": config.experts is not None,
        "gates behind attention": config.gated_attention,
        "sinks in attention": config.has_sinks,
        "norms behind attention and feed-forward": config.output_norms,
        f"a sliding window of {config.window} tokens": config.window is not None,
        f"{len(config.suppressed_token_ids)} tokens that no answer may hold": bool(
            config.suppressed_token_ids
        ),
        f"queries that grow behind {scaling and scaling.period} tokens": scaling is not None,
    }
    for what, is_needed in needed.items():
        if is_needed:
            raise UnsupportedModelError(
                f"config.json: {config.family} has {what}, which --provider qnn does not support; "
                "--provider cpu does"
            )


@dataclass
class _QnnExport(BundleExport):
    """One export: prepare layers, choose encodings, write, compare."""

    options: _Options
    texts: CalibrationTexts
    work: WorkFolder
    bits: dict[str, int] = field(default_factory=dict)
    """Those of the blocks' matrices, by name, where they differ."""

    def run(self) -> QuantizationReport:
        """Write all files, the manifest last."""
        config, options, work = self.source.config, self.options, self.work
        ends = frozenset(layers[-1] for layers in self.layers)
        bits = _BITS[options.weights]
        preparation = Preparation(
            self.source, self.texts, bits, options.context, work, ends, self.progress
        )
        preparation.run()
        layers = [work.load(layer_name(number)) for number in range(config.num_layers)]
        head = work.load(HEAD)
        if len(bits) > 1:
            matrices = {name: it for layer in layers for name, it in layer.matrices.items()}
            self.bits = mixed_bits(matrices, _MOST_BITS)
        ranges = [*(_block_ranges(it, layers) for it in self.layers), head.ranges]
        soc, most_cosine = soc_named(options.soc), max(1.0, config.rope_factor or 1.0)
        shared = choose_encodings(ranges, self.layers, options.cache_type, soc, most_cosine)
        graphs = self._write(layers, head, ranges, shared)
        self.progress("comparing", self.num_steps - 1)
        report = self._compare(preparation, graphs)
        self.progress("done", self.num_steps)
        return report

    def _write(
        self,
        prepared: Sequence[PreparedGraph],
        head: PreparedGraph,
        ranges: Sequence[Ranges],
        shared: QnnTarget,
    ) -> list[tuple[onnx.ModelProto, dict[str, Encoding]]]:
        """All files; the graphs, whose weights are in them, with their encodings."""
        options, source = self.options, self.source
        chat = self.write_texts()
        embedding = self.write_embedding("uint16", shared.hidden[0].quantize)
        graphs, block_files = [], []
        for index, layers in enumerate(self.layers):
            name = f"block_{index:02}"
            self.progress(name, source.config.num_layers + 1 + index)
            its = ranges[index]
            encodings, converted = block_encodings(source.config, index, layers, its, shared)
            parts = {layer_name(number): prepared[number] for number in layers}
            apart = {number: prepared[number].apart for number in layers}
            float_graph = block_graph(source, layers, has_matrices=False, apart=apart)
            graph, files = self._write_graph(name, float_graph, parts, its, encodings, converted)
            graphs.append((graph, encodings))
            block_files.append(BlockFiles(layers.start, len(layers), f"{name}.weights", files))
        encodings = {"hidden": shared.hidden[-1], "logits": shared.logits}
        float_graph = head_graph(source, has_matrices=False)
        graph, files = self._write_graph(HEAD, float_graph, {HEAD: head}, ranges[-1], encodings, {})
        graphs.append((graph, encodings))
        self.write_manifest(
            slots=options.context,
            blocks=block_files,
            head=HeadFiles(["head.weights"], files),
            embedding=embedding,
            chat=chat,
            qnn=shared,
        )
        return graphs

    def _write_graph(
        self,
        name: str,
        float_graph: onnx.ModelProto,
        parts: Mapping[str, PreparedGraph],
        ranges: Ranges,
        encodings: dict[str, Encoding],
        converted: dict[str, Conversion],
    ) -> tuple[onnx.ModelProto, dict[int, str]]:
        """The weights in a file, and a small graph of every width that refers to it.

        `parts` are the prepared layers, or the head. The matrices of one are in memory at a time.
        """
        is_head = name == HEAD
        constants = {key: it for part in parts.values() for key, it in part.constants.items()}
        for tensor in float_graph.graph.initializer:
            if tensor.name in constants:
                tensor.CopyFrom(numpy_helper.from_array(constants[tensor.name], tensor.name))
        matrices = [matrix for part in parts.values() for matrix in part.matrices]
        graph = quantize_graph(float_graph, ranges, encodings, matrices, converted)
        with self.staging.create(f"{name}.weights") as file:
            writer = WeightWriter(f"{name}.weights", file, None)
            for part in parts:
                for matrix, its in self.work.load(
                    part, lambda name: self.bits.get(name, HEAD_BITS)
                ).matrices.items():
                    (integers,) = its.forms.values()
                    if integers.multiples is not None:
                        read_in_blocks(graph, matrix)
                    graph.graph.initializer.extend(
                        _external(tensor, writer) for tensor in matrix_tensors(matrix, integers)
                    )
            for tensor in graph.graph.initializer:
                _external(tensor, writer)
        files = {}
        for rows in self.options.widths:
            files[rows] = f"{name}.{rows}.onnx"
            content = fix_shape(graph, rows, None if is_head else self.options.context)
            self.staging.write(files[rows], content.SerializeToString())
        return graph, files

    def _compare(
        self,
        preparation: Preparation,
        graphs: Sequence[tuple[onnx.ModelProto, dict[str, Encoding]]],
    ) -> QuantizationReport:
        """Read the held-out texts with the quantised graphs, one block in memory at a time."""
        config, directory = self.source.config, self.staging.directory
        expected = preparation.held_out(preparation.first_states())
        states, cosines = list(expected), []
        for layers, (graph, encodings) in zip(self.layers, graphs, strict=False):
            block = QuantizedGraph(graph, encodings, directory)
            for index, it in enumerate(states):
                inputs = text_inputs(config, layers, len(it))
                states[index] = block.run({"hidden": it[np.newaxis], **inputs})["hidden_out"][0]
            expected = preparation.held_out(self.work.states(layer_name(layers[-1])))
            cosines.append(mean_cosine(states, expected))
            del block
        head = QuantizedGraph(*graphs[-1], directory)
        fidelity = head_fidelity(self.source, head, self.texts.held_out, states, expected)
        records = self.staging.records.items()
        return QuantizationReport(
            fidelity.num_rows,
            tuple(cosines),
            fidelity.agreement,
            fidelity.divergence,
            fidelity.perplexity,
            fidelity.expected_perplexity,
            matrices_of_8_bits=tuple(name for name, bits in self.bits.items() if bits == 8),
            file_bytes={name: it.num_bytes for name, it in records if name != MANIFEST_NAME},
        )


def _block_ranges(layers: range, prepared: Sequence[PreparedGraph]) -> Ranges:
    """The ranges of a block, from those of its layers."""
    joined = Ranges()
    for number in layers:
        names = {}
        if number != layers[0]:
            names["hidden"] = f"layer_{number - 1}.after_ffn"
        if number != layers[-1]:
            names["hidden_out"] = f"layer_{number}.after_ffn"
        joined.join(prepared[number].ranges, names)
    return joined


def mixed_bits(matrices: Mapping[str, Matrix], most_bits: float) -> dict[str, int]:
    """8 bits for the matrices whose loss falls most for each bit, 4 for the others.

    Args:
        matrices: All matrices of the blocks, by name.
        most_bits: Most bits of a weight, in the mean.
    """

    def extra(name: str) -> int:
        return matrices[name].num_bits[8] - matrices[name].num_bits[4]

    def gain(name: str) -> float:
        losses = matrices[name].losses
        return (losses[4] - losses[8]) / extra(name)

    bits = dict.fromkeys(matrices, 4)
    left = sum(most_bits * it.size - it.num_bits[4] for it in matrices.values())
    for name in sorted(matrices, key=gain, reverse=True):
        if extra(name) <= left:
            bits[name], left = 8, left - extra(name)
    return bits


def _external(tensor: onnx.TensorProto, writer: WeightWriter) -> onnx.TensorProto:
    """The tensor with its values in the file, unless they are few."""
    if len(tensor.raw_data) >= _LEAST_EXTERNAL_BYTES:
        stored = writer.raw(tensor)
        tensor.ClearField("raw_data")
        stored.refer(tensor)
    return tensor
