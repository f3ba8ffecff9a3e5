"""What each kind of weights costs: bytes, and how far the model then is from its float form.

In: a checkpoint and a text. Out: a `Quality` for each kind. Each is exported to a temporary
directory, the float32 bundle first, whose logits stay in a file until the end.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import WeightKind
from coordgen_rs.errors import OptionError
from coordgen_rs.export import export_checkpoint
from coordgen_rs.export.calibration.texts import texts_for
from coordgen_rs.export.checkpoints.checkpoint import Checkpoint, open_checkpoint
from coordgen_rs.export.cpu.exporter import CALIBRATED, weight_kinds
from coordgen_rs.target.device import CpuDevice
from coordgen_rs.target.onnx_runtime import set_threads
from coordgen_rs.target.ort_session import OrtSession

FLOAT = "fp32"


@dataclass(frozen=True)
class Quality:
    """A model with weights of one kind, beside its float form.

    Attributes:
        weights: The kind.
        is_calibrated: Whether a text decided how they were rounded.
        num_bytes: Of all files of the bundle.
        perplexity: Of the text.
        agreement: Share of tokens behind which both choose the same next one.
        divergence: Kullback-Leibler divergence of its distribution from the float model's, nats a
            token, in the mean.
    """

    weights: str
    is_calibrated: bool
    num_bytes: int
    perplexity: float
    agreement: float
    divergence: float

    def to_json(self) -> dict[str, Any]:
        """The row as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class QualityReport:
    """All kinds of weights of a checkpoint, float first."""

    num_tokens: int
    """Of the text."""
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
    on_progress: Callable[[str, int, int], None] | None = None,
) -> QualityReport:
    """Export a checkpoint with each kind of weights, and read a text with it.

    Args:
        checkpoint: Same as in `export_checkpoint`.
        weights: The kinds; None for all that the checkpoint can have. Float is always there.
        text: What is read, in pieces of at most 256 tokens (`read_texts`). None takes the part of
            `calibration` that is held out, or else four short English texts.
        calibration: Weights that gain from a calibration text are compared with it, too.
        most_tokens: Of the text, at least 2.
        threads: Compute threads; None for one per core.
        on_progress: Called with what comes next, bundles done, and bundles in all.

    Raises:
        OptionError: A kind of weights is unknown, or a text cannot be used.
        CheckpointError: Same as in `export_checkpoint`.
        ExportError: Same as in `export_checkpoint`.
    """
    source = open_checkpoint(checkpoint)
    variants = _variants(source, weights, has_calibration=calibration is not None)
    pieces = _pieces(source, text, calibration, most_tokens)
    set_threads(threads)
    rows = []
    with tempfile.TemporaryDirectory(prefix="coordgen-quality-") as directory:
        reference = _Reference(Path(directory) / "logits", pieces, source.config.vocab_size)
        for number, (kind, is_calibrated) in enumerate(variants):
            if on_progress is not None:
                on_progress(kind, number, len(variants))
            with tempfile.TemporaryDirectory(dir=directory) as parent:
                bundle = Path(parent) / "bundle"
                export_checkpoint(
                    checkpoint,
                    bundle,
                    weights=kind,
                    context=max(map(len, pieces)),
                    calibration=calibration if is_calibrated else None,
                )
                rows.append(_measured(Bundle.open(bundle), is_calibrated, pieces, reference))
    return QualityReport(sum(map(len, pieces)), tuple(rows))


def _variants(
    source: Checkpoint, weights: Sequence[str] | None, *, has_calibration: bool
) -> list[tuple[WeightKind, bool]]:
    """The kinds of weights, float first, and whether each is calibrated.

    Raises:
        OptionError: The checkpoint cannot have one of them.
    """
    able = weight_kinds(source)
    kinds = able if weights is None else weights
    for kind in kinds:
        if kind not in able:
            raise OptionError(f"weights is {kind!r}, expected some of {', '.join(able)}")
    variants: list[tuple[WeightKind, bool]] = []
    for kind in able:
        if kind in kinds or kind == FLOAT:
            variants.append((kind, False))
        if kind in kinds and kind in CALIBRATED and has_calibration:
            variants.append((kind, True))
    return variants


def _pieces(
    source: Checkpoint, text: Path | None, calibration: Path | None, most_tokens: int
) -> list[list[int]]:
    """Token ids to read, in pieces of two tokens and more.

    Raises:
        OptionError: The text cannot be used, or is too short.
    """
    if text is None and calibration is not None:
        texts = texts_for(source, calibration).held_out
    else:
        both = texts_for(source, text)
        texts = both.calibration + [it for it in both.held_out if it not in both.calibration]
    pieces = []
    for piece in texts:
        piece = piece[:most_tokens]
        most_tokens -= len(piece)
        if len(piece) > 1:
            pieces.append(piece)
    if not pieces:
        raise OptionError(f"{text or calibration} is too short: expected a text of two tokens")
    return pieces


class _Reference:
    """The float model's logits of all pieces, in a file: `(tokens, vocab_size) f32`."""

    def __init__(self, path: Path, pieces: Sequence[Sequence[int]], vocab_size: int) -> None:
        shape = sum(map(len, pieces)), vocab_size
        self.logits = np.memmap(path, np.float32, "w+", shape=shape)
        self.is_filled = False


def _measured(
    bundle: Bundle, is_calibrated: bool, pieces: Sequence[Sequence[int]], reference: _Reference
) -> Quality:
    session = OrtSession(CpuDevice(bundle))
    surprise, divergence, num_agreed, row = 0.0, 0.0, 0, 0
    for piece in pieces:
        session.rewind(0)
        following = np.asarray([*piece[1:], -1], np.int64)
        done = 0
        for logits in _logits(session, piece):
            stop = row + len(logits)
            if not reference.is_filled:
                reference.logits[row:stop] = logits
            expected, got = _log_softmax(reference.logits[row:stop]), _log_softmax(logits)
            said = following[done : done + len(logits)]
            has_next = said >= 0
            surprise -= float(got[has_next, said[has_next]].sum())
            divergence += float((np.exp(expected) * (expected - got)).sum())
            num_agreed += int((expected.argmax(-1) == got.argmax(-1)).sum())
            row, done = stop, done + len(logits)
    reference.is_filled = True
    session.close()
    return Quality(
        weights=bundle.manifest.weights,
        is_calibrated=is_calibrated,
        num_bytes=sum(record.num_bytes for record in bundle.manifest.files.values()),
        perplexity=float(np.exp(surprise / (row - len(pieces)))),
        agreement=num_agreed / row,
        divergence=divergence / row,
    )


def _logits(session: OrtSession, piece: Sequence[int]) -> list[NDArray[np.float32]]:
    """Of each chunk of a text, `(rows, vocab_size)`."""
    chunks: list[NDArray[np.float32]] = []
    session.prefill(
        np.asarray(piece, np.uint32), on_logits=lambda logits: chunks.append(logits.copy())
    )
    return chunks


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide
