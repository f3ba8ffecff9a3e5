"""Writing a bundle for Qualcomm's HTP.

In: the path of a checkpoint, a chip, and what the bundle is to be. Out: a directory for
`Bundle.open`, and a report on what quantisation cost. Needs no QNN provider: nothing is compiled
here (`target/qnn/compile.py`).
Memory: all float graphs at once, and their quantised forms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from coordgen_rs.bundle.fixed_point import Encoding
from coordgen_rs.bundle.manifest import (
    MANIFEST_NAME,
    BlockFiles,
    EmbeddingFile,
    HeadFiles,
    QnnTarget,
)
from coordgen_rs.errors import OptionError, UnsupportedModelError
from coordgen_rs.export.bundle import (
    TOKENIZER_NAME,
    BundleOptions,
    Progress,
    cut_layers,
    model_shape,
    no_progress,
    write_manifest,
)
from coordgen_rs.export.calibration.texts import CalibrationTexts, texts_for
from coordgen_rs.export.chat import write_chat
from coordgen_rs.export.checkpoints.checkpoint import Checkpoint, open_checkpoint
from coordgen_rs.export.checkpoints.config import ModelConfig
from coordgen_rs.export.layers import first_hidden_tensor
from coordgen_rs.export.qnn.calibration import Ranges, WatchedGraph
from coordgen_rs.export.qnn.encodings import (
    CacheType,
    SharedEncodings,
    block_encodings,
    choose_encodings,
    head_encodings,
)
from coordgen_rs.export.qnn.graph import block_graph, head_graph
from coordgen_rs.export.qnn.quantize import fix_shape, quantize_graph
from coordgen_rs.export.qnn.report import QuantizationReport, QuantizedGraph, compare
from coordgen_rs.export.qnn.text_model import GraphRunner, TextModel
from coordgen_rs.export.stored import WeightWriter
from coordgen_rs.export.writer import Staging, memory_named, refuse_taken, staged_directory
from coordgen_rs.target.qnn.options import Soc, soc_named

_DEFAULT_CONTEXT = 1024
_MOST_ROWS = 1024
_BITS: dict[str, Literal[8, 4]] = {"int8": 8, "int4": 4}
_HEAD_BITS: Literal[8] = 8
"""The head is more sensitive."""
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
    context: int | None = None,
    chat_template: str | Path | None = None,
    on_progress: Progress | None = None,
) -> QuantizationReport:
    """Write the bundle `out` for a chip; it appears only when it is complete.

    Args:
        checkpoint: Same as in `export_checkpoint`.
        out: A directory that does not exist yet, or is empty.
        soc: Name of the chip (`coordgen_rs.target.qnn.options.SOCS`).
        weights: Precision of the blocks' weights; the head always has 8 bits.
        cache_type: How keys and values are stored.
        calibration: Text like that which the model is to read (`read_texts`); None takes texts
            of our own, which fit a model with a language of its own badly.
        blocks: Number of blocks into which the layers are cut.
        prefill_rows: Rows of the prefill graph.
        decode_rows: Rows of the decode graph.
        context: Most tokens of a request; None takes the model's limit, but at most 1,024.
        chat_template: Same as in `export_checkpoint`.
        on_progress: Called with what comes next, steps done, and steps in all.

    Raises:
        OptionError: An option is outside its range, or the calibration file cannot be used.
        CheckpointError: Same as in `export_checkpoint`.
        ChatTemplateError: The chat template cannot be read.
        ExportError: `out` exists or cannot be written, or disk or memory do not suffice.
    """
    chat = None if chat_template is None else Path(chat_template)
    with memory_named(Path(out)):
        refuse_taken(Path(out))
        source = open_checkpoint(Path(checkpoint))
        if context is None:
            context = min(source.config.max_positions, _DEFAULT_CONTEXT)
        options = _Options(weights, blocks, prefill_rows, decode_rows, context, soc, cache_type)
        options.check(source.config)
        texts = texts_for(source, None if calibration is None else Path(calibration))
        with staged_directory(Path(out)) as staging:
            on_progress = on_progress or no_progress
            return _QnnExporter(source, staging, options, texts, chat, on_progress).run()


@dataclass(frozen=True)
class _Options(BundleOptions):
    """What the bundle is to be; see `export_qnn`."""

    soc: str
    cache_type: CacheType

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


def _refuse_switches(config: ModelConfig) -> None:
    """Refuse what only the graphs for CPU can do.

    Raises:
        UnsupportedModelError: The model needs it; the message names it.
    """
    needed = {
        "norms behind attention and feed-forward": config.output_norms,
        f"a sliding window of {config.window} tokens": config.window is not None,
    }
    for what, is_needed in needed.items():
        if is_needed:
            raise UnsupportedModelError(
                f"config.json: {config.family} has {what}, which --provider qnn does not support; "
                "--provider cpu does"
            )


class _QnnExporter:
    """One export: calibrate, quantise, write, compare."""

    def __init__(
        self,
        source: Checkpoint,
        staging: Staging,
        options: _Options,
        texts: CalibrationTexts,
        chat_template: Path | None,
        on_progress: Progress,
    ) -> None:
        self._source, self._staging, self._options = source, staging, options
        self._texts, self._on_progress = texts, on_progress
        self._chat_template = chat_template
        self._model = model_shape(source.config)
        self._layers = list(cut_layers(source.config.num_layers, options.blocks))
        self._embedding = first_hidden_tensor(source).load()
        self._steps = len(texts.calibration) + len(self._layers) + 2

    def run(self) -> QuantizationReport:
        """Write all files, the manifest last."""
        floats = [block_graph(self._source, self._model, layers) for layers in self._layers]
        floats.append(head_graph(self._source, self._model))
        watched = [WatchedGraph(graph) for graph in floats]
        expected = self._text_model(watched)
        for number, text in enumerate(self._texts.calibration):
            self._on_progress("calibrating", number, self._steps)
            for _ in expected.run(text):
                pass
        ranges = [graph.ranges for graph in watched]
        most_rotation = max(1.0, self._source.config.rope_factor or 1.0)
        shared = choose_encodings(ranges, self._layers, self._options.cache_type, most_rotation)
        graphs = []
        for index, graph in enumerate(floats):
            self._on_progress("quantising", len(self._texts.calibration) + index, self._steps)
            graphs.append(self._quantize(index, graph, ranges[index], shared))
        got = self._text_model([QuantizedGraph(*pair) for pair in graphs])
        self._write([graph for graph, _ in graphs], shared)
        self._on_progress("comparing", self._steps - 1, self._steps)
        records = self._staging.records.items()
        sizes = {name: record.num_bytes for name, record in records if name != MANIFEST_NAME}
        report = compare(expected, got, self._texts.held_out, sizes)
        self._on_progress("done", self._steps, self._steps)
        return report

    def _quantize(
        self, index: int, graph: onnx.ModelProto, ranges: Ranges, shared: SharedEncodings
    ) -> tuple[onnx.ModelProto, dict[str, Encoding]]:
        """Block `index`, or the head behind the last of them, with the encodings it was given."""
        if index == len(self._layers):
            encodings = head_encodings(shared)
            return quantize_graph(graph, ranges, encodings, _HEAD_BITS), encodings
        config = self._source.config
        bare_keys = () if config.qk_norm else config.unrotated_layers
        encodings = block_encodings(index, self._layers[index], ranges, shared, bare_keys)
        bits = _BITS[self._options.weights]
        return quantize_graph(graph, ranges, encodings, bits), encodings

    def _text_model(self, graphs: Sequence[GraphRunner]) -> TextModel:
        *blocks, head = graphs
        pairs = list(zip(self._layers, blocks, strict=True))
        config = self._source.config
        rope_factor = config.rope_factor or 1.0
        return TextModel(self._model, pairs, head, self._embedding, config.inv_freq, rope_factor)

    def _write(self, graphs: Sequence[onnx.ModelProto], shared: SharedEncodings) -> None:
        options = self._options
        *blocks, head = graphs
        self._staging.write(TOKENIZER_NAME, self._source.read_tokenizer().encode())
        chat = write_chat(self._staging, self._source, self._chat_template)
        self._staging.write("embedding.bin", shared.hidden[0].quantize(self._embedding).tobytes())
        block_files = []
        for index, (layers, graph) in enumerate(zip(self._layers, blocks, strict=True)):
            name = f"block_{index:02}"
            files = self._write_graph(name, graph, options.context)
            block_files.append(BlockFiles(layers.start, len(layers), f"{name}.weights", files))
        head_files = HeadFiles(["head.weights"], self._write_graph("head", head, None))
        write_manifest(
            self._staging,
            self._source.config,
            options,
            slots=options.context,
            blocks=block_files,
            head=head_files,
            embedding=EmbeddingFile("embedding.bin", "uint16"),
            chat=chat,
            qnn=_target(soc_named(options.soc), shared),
        )

    def _write_graph(self, name: str, graph: onnx.ModelProto, past: int | None) -> dict[int, str]:
        """The weights in a file, and a small graph of every width that refers to it."""
        with self._staging.create(f"{name}.weights") as file:
            writer = WeightWriter(f"{name}.weights", file)
            for tensor in graph.graph.initializer:
                if len(tensor.raw_data) >= _LEAST_EXTERNAL_BYTES:
                    stored = writer.raw(tensor)
                    tensor.ClearField("raw_data")
                    stored.refer(tensor)
        files = {}
        for rows in self._options.widths:
            files[rows] = f"{name}.{rows}.onnx"
            content = fix_shape(graph, rows, past).SerializeToString()
            self._staging.write(files[rows], content)
        return files


def _target(soc: Soc, shared: SharedEncodings) -> QnnTarget:
    return QnnTarget(
        soc=soc.name,
        soc_model=soc.model,
        htp_arch=soc.htp_arch,
        mask_value=shared.mask_value,
        mask=shared.mask,
        rotation=shared.rotation,
        hidden=shared.hidden,
        caches=shared.caches,
        logits=shared.logits,
    )
