"""What each kind of weights costs: bytes, and how far the model then is from its float form.

In: a checkpoint and a text, or bundles of it. Out: a `Quality` for each kind or bundle. Each kind
is exported to a temporary directory, the float32 bundle first, whose logits stay in a file until
the end. Graphs for QNN run on the CPU, in the same fixed point.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import WeightKind, refuse_gone
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.cpu.exporter import CALIBRATED, weight_kinds
from coordgen_rs.convert.families.checkpoint import Checkpoint, open_checkpoint
from coordgen_rs.convert.qnn.calibration import CacheType
from coordgen_rs.convert.qnn.exporter import QNN_WEIGHTS, export_qnn
from coordgen_rs.convert.qnn.report import Fidelity
from coordgen_rs.convert.texts import other_texts, texts_for
from coordgen_rs.convert.writer import model_shape
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.device import Device
from coordgen_rs.runtime.onnx_runtime import set_threads
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice
from coordgen_rs.runtime.qnn.options import QnnOptions

FLOAT: WeightKind = "fp32"
_ROWS, _HEAD_ROWS = 256, 32
"""Rows of the graphs for QNN."""


@dataclass(frozen=True)
class Quality:
    """A model with weights of one kind, beside its float form.

    Attributes:
        weights: The kind.
        cache_type: How keys and values are stored on QNN; None on CPU.
        is_calibrated: Whether a text decided how they were rounded.
        num_bytes: Bytes of all files of the bundle.
        perplexity: Perplexity of the text.
        agreement: Share of tokens behind which both choose the same next one.
        divergence: Kullback-Leibler divergence of its distribution from the float model's, nats a
            token, in the mean.
    """

    weights: str
    cache_type: str | None
    is_calibrated: bool
    num_bytes: int
    perplexity: float
    agreement: float
    divergence: float


@dataclass(frozen=True)
class QualityReport:
    """All kinds of weights of a checkpoint, float first."""

    num_tokens: int
    """Tokens of the text."""
    rows: tuple[Quality, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return asdict(self)


def compare_weights(
    checkpoint: Path,
    *,
    weights: Sequence[str] | None = None,
    text: Path | None = None,
    calibration: Path | None = None,
    most_tokens: int = 2048,
    threads: int | None = None,
    soc: str | None = None,
    cache_type: CacheType = "uint8",
    bundles: Sequence[Path] = (),
    on_progress: Callable[[str, int, int], None] | None = None,
) -> QualityReport:
    """Export a checkpoint with each kind of weights, and read a text with it.

    Args:
        checkpoint: Same as in `export_checkpoint`.
        weights: The kinds; None for all that the checkpoint can have. Float is always there.
        text: What is read, in pieces of at most 256 tokens (`read_texts`). None takes the part of
            `calibration` that is held out, or else four short English texts, which nothing is
            calibrated on.
        calibration: A calibration text; weights that gain from one are compared with it, too.
        most_tokens: Most tokens of the text, at least 2.
        threads: Compute threads; None for one per core.
        soc: Compare the kinds of `export_qnn` for this chip instead of those for CPU.
        cache_type: With `soc`, how keys and values are stored.
        bundles: Compare these bundles of the checkpoint, instead of exporting any but float.
        on_progress: Called with what comes next, bundles done, and bundles in all.

    Raises:
        OptionError: A kind of weights is unknown, or a text cannot be used.
        CheckpointError: Same as in `export_checkpoint`.
        ExportError: Same as in `export_checkpoint`.
        OSError: The temporary directory cannot be written.
    """
    arguments.count("most_tokens", most_tokens, least=2)
    source = open_checkpoint(checkpoint)
    pieces = _pieces(source, text, calibration, most_tokens)
    exports = _exports(source, weights, calibration, soc, cache_type, max(map(len, pieces)))
    if bundles:
        exports = exports[:1]
    set_threads(threads)
    rows, total = [], len(exports) + len(bundles)
    with ExitStack() as opened:
        directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="coordgen-quality-"))
        reference = opened.enter_context(_Reference(Path(directory) / "logits"))
        for number, (kind, is_calibrated, export) in enumerate(exports):
            if on_progress is not None:
                on_progress(kind, number, total)
            with tempfile.TemporaryDirectory(dir=directory) as parent:
                bundle = Path(parent) / "bundle"
                export(checkpoint, bundle)
                rows.append(_measured(open_bundle(bundle), is_calibrated, pieces, reference))
        for number, path in enumerate(bundles, len(exports)):
            if on_progress is not None:
                on_progress(str(path), number, total)
            rows.append(_measured(_fitting(path, source, pieces), False, pieces, reference))
    return QualityReport(sum(map(len, pieces)), tuple(rows))


def _exports(
    source: Checkpoint,
    weights: Sequence[str] | None,
    calibration: Path | None,
    soc: str | None,
    cache_type: CacheType,
    context: int,
) -> list[tuple[str, bool, Callable[[Path, Path], object]]]:
    """The kinds of weights, float first, whether each is calibrated, and how it is exported.

    Raises:
        OptionError: The checkpoint cannot have one of them.
    """

    def on_cpu(kind: WeightKind, text: Path | None = None) -> Callable[[Path, Path], object]:
        return partial(export_checkpoint, weights=kind, context=context, calibration=text)

    if soc is None:
        able = weight_kinds(source)
        kinds = able if weights is None else weights
        for kind in kinds:
            refuse_gone("weights", kind)
            if kind not in able:
                raise OptionError(f"weights is {kind!r}, expected some of {', '.join(able)}")
        exports: list[tuple[str, bool, Callable[[Path, Path], object]]] = []
        for kind in able:
            if kind in kinds or kind == FLOAT:
                exports.append((kind, False, on_cpu(kind)))
            if kind in kinds and kind == CALIBRATED and calibration is not None:
                exports.append((kind, True, on_cpu(kind, calibration)))
        return exports
    on_qnn = partial(
        export_qnn,
        soc=soc,
        cache_type=cache_type,
        context=context,
        prefill_rows=min(context, _ROWS),
        decode_rows=min(context, _HEAD_ROWS),
        calibration=calibration,
    )
    kinds = QNN_WEIGHTS if weights is None else weights
    for kind in kinds:
        if kind not in (FLOAT, *QNN_WEIGHTS):
            raise OptionError(f"weights is {kind!r}, expected some of {', '.join(QNN_WEIGHTS)}")
    chosen = [kind for kind in QNN_WEIGHTS if kind in kinds]
    return [
        (FLOAT, False, on_cpu(FLOAT)),
        *((kind, True, partial(on_qnn, weights=kind)) for kind in chosen),
    ]


def _fitting(path: Path, source: Checkpoint, pieces: Sequence[Sequence[int]]) -> Bundle:
    """A bundle that can read the pieces.

    Raises:
        OptionError: It is another model's, or its context is too short.
    """
    bundle = open_bundle(path)
    if bundle.manifest.model != model_shape(source.config):
        raise OptionError(f"{path} is no bundle of this checkpoint: their shapes differ")
    longest = max(map(len, pieces))
    if bundle.manifest.context < longest:
        raise OptionError(
            f"{path} has a context of {bundle.manifest.context} tokens, a piece of the text "
            f"{longest}: export it with a longer one"
        )
    return bundle


def _pieces(
    source: Checkpoint, text: Path | None, calibration: Path | None, most_tokens: int
) -> list[list[int]]:
    """Token ids to read, in pieces of two tokens and more.

    Raises:
        OptionError: The text cannot be used, or is too short.
    """
    if text is None and calibration is None:
        texts = other_texts(source)
    elif text is None:
        texts = texts_for(source, calibration, is_chat=True).held_out
    else:
        texts = texts_for(source, text, is_chat=True).given
    pieces = []
    for piece in texts:
        piece = piece[:most_tokens]
        most_tokens -= len(piece)
        if len(piece) > 1:
            pieces.append(piece)
    if not pieces:
        raise OptionError(f"{text or calibration} is too short: expected two tokens at least")
    return pieces


class _Reference:
    """The float model's logits of all pieces, in a file: rows of float32 as they came."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w+b")  # mapped, a full disk would end the process
        self._is_filled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def beside(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The next rows: those of the float model, which is the first to be read.

        Raises:
            OSError: The disk is full.
        """
        if not self._is_filled:
            self._stream.write(logits.tobytes())
            return logits
        content = self._stream.read(logits.nbytes)
        return np.frombuffer(content, np.float32).reshape(logits.shape)

    def end(self) -> None:
        """All rows were given; the next model begins."""
        self._stream.seek(0)
        self._is_filled = True


def _measured(
    bundle: Bundle, is_calibrated: bool, pieces: Sequence[Sequence[int]], reference: _Reference
) -> Quality:
    target, session = bundle.manifest.qnn, OrtSession(_device(bundle))
    likeness = Fidelity()
    for piece in pieces:
        session.rewind(0)
        following, done = np.asarray([*piece[1:], -1], np.int64), 0
        for logits in _logits(session, piece):
            said = following[done : done + len(logits)]
            likeness.add(reference.beside(logits), logits, said)
            done += len(logits)
    reference.end()
    session.close()
    return Quality(
        weights=bundle.manifest.weights,
        cache_type=None if target is None else target.caches[0].key.dtype,
        is_calibrated=is_calibrated,
        num_bytes=sum(record.num_bytes for record in bundle.manifest.files.values()),
        perplexity=likeness.perplexity,
        agreement=likeness.agreement,
        divergence=likeness.divergence,
    )


def _device(bundle: Bundle) -> Device:
    if bundle.manifest.qnn is None:
        return CpuDevice(bundle)
    return QnnDevice(bundle, options=QnnOptions(on_cpu=True))


def _logits(session: OrtSession, piece: Sequence[int]) -> list[NDArray[np.float32]]:
    """Logits of each chunk of a text, `(rows, vocab_size)`."""
    chunks: list[NDArray[np.float32]] = []
    session.prefill(
        np.asarray(piece, np.uint32), on_logits=lambda logits: chunks.append(logits.copy())
    )
    return chunks
