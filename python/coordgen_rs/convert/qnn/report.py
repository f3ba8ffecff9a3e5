"""How good a quantised model is: its blocks and its choices beside those of the float one.

In: both models and held-out text. Out: a `QuantizationReport`. The quantised graphs run on CPU with
the very encodings; what the HTP itself makes of them is `coordgen check`'s to tell.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from coordgen_rs.bundle.qnn import Encoding
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.writer import Progress
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

Array = NDArray[np.float32]

_ROWS = 64
"""Rows whose logits are in memory at a time."""
_LEAST_LENGTH = np.float32(1e-30)
_LOGITS = 1 << 20
"""Numbers that are in memory as float64 at a time, several times over."""
_NUMBER = " _0123456789"
"""What stands behind the name of a stage that has several parts."""


@dataclass(frozen=True)
class QuantizationReport:
    """A quantised model beside its float form.

    Attributes:
        tokens: Number of held-out tokens.
        block_cosine: Cosine of the hidden states behind each block, over all tokens.
        argmax_agreement: Share of tokens after which both choose the same next one.
        divergence: Kullback-Leibler divergence of its distribution from the float model's, nats a
            token, in the mean.
        perplexity: Perplexity of the held-out tokens.
        float_perplexity: Perplexity of the same tokens by the float model.
        matrices_of_8_bits: The matrices that got 8 bits with `int4`.
        file_bytes: Size of every file of the bundle.
        float_bytes: Size of the checkpoint's weights as float32.
        peak_bytes: Most memory of the process during the export; 0 where the system does not tell.
        stage_seconds: Seconds that each stage of the export took, in order; what an interrupted
            run had done already is not counted.
    """

    tokens: int
    block_cosine: tuple[float, ...]
    argmax_agreement: float
    divergence: float
    perplexity: float
    float_perplexity: float
    matrices_of_8_bits: tuple[str, ...]
    file_bytes: dict[str, int]
    float_bytes: int = 0
    peak_bytes: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds that the export took."""
        return sum(self.stage_seconds.values())

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return asdict(self) | {"seconds": self.seconds}

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [
            f"block {index}: cosine {cosine:.5f} against float"
            for index, cosine in enumerate(self.block_cosine)
        ]
        agreement = f"{100 * self.argmax_agreement:.1f} % of {self.tokens} held-out tokens"
        lines.append(f"same next token as float: {agreement}")
        lines.append(f"divergence from float: {self.divergence:.4f} nats a token")
        rise = 100 * (self.perplexity / self.float_perplexity - 1)
        lines.append(
            f"perplexity: {self.perplexity:.3f}, of float {self.float_perplexity:.3f} "
            f"({rise:+.1f} %)"
        )
        if self.matrices_of_8_bits:
            lines.append(f"matrices of 8 bits: {', '.join(self.matrices_of_8_bits)}")
        lines += [f"{name}: {size} bytes" for name, size in sorted(self.file_bytes.items())]
        stages = ", ".join(f"{name} {took:.0f}" for name, took in self.stage_seconds.items())
        lines.append(f"time: {self.seconds:.0f} s ({stages})")
        if self.peak_bytes:
            peak, weights = self.peak_bytes / 1e6, self.float_bytes / 1e6
            lines.append(f"memory: {peak:.0f} MB; the weights in float32 take {weights:.0f} MB")
        return lines


class Stages:
    """Passes progress on, and notes how long each stage takes: layers count as one, as do blocks.

    Attributes:
        seconds: Seconds by stage, in the order in which they began; "start" is the time before.
    """

    def __init__(self, on_progress: Progress) -> None:
        self._on_progress = on_progress
        self._stage, self._since_s = "start", time.monotonic()
        self.seconds: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Note that a stage begins, and the one before has ended."""
        now_s = time.monotonic()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now_s - self._since_s
        self._stage, self._since_s = what.rstrip(_NUMBER), now_s
        self._on_progress(what, done, total)


class Fidelity:
    """Sums over rows of logits.

    Attributes:
        num_rows: How many there were.
    """

    def __init__(self) -> None:
        self.num_rows = self._num_following = self._num_agreed = 0
        self._divergence = self._surprise = self._expected_surprise = 0.0

    def add(self, expected: Array, got: Array, following: NDArray[np.int64]) -> None:
        """Count some rows.

        Args:
            expected: Logits of the float model, `(rows, vocab_size)`.
            got: Those of the other.
            following: The next token of the text, `(rows,)`; -1 at its end.
        """
        step = max(1, _LOGITS // expected.shape[1])
        for start in range(0, len(expected), step):
            rows = slice(start, start + step)
            expected_logs, logs = _log_softmax(expected[rows]), _log_softmax(got[rows])
            known = np.flatnonzero(following[rows] >= 0)
            said = following[rows][known]
            self._surprise -= float(logs[known, said].sum())
            self._expected_surprise -= float(expected_logs[known, said].sum())
            self._divergence += float((np.exp(expected_logs) * (expected_logs - logs)).sum())
            self._num_agreed += int((expected_logs.argmax(-1) == logs.argmax(-1)).sum())
            self.num_rows += len(logs)
            self._num_following += len(known)

    @property
    def agreement(self) -> float:
        """Share of rows in which both choose the same token."""
        return self._num_agreed / self.num_rows

    @property
    def divergence(self) -> float:
        """Kullback-Leibler divergence from the float model, nats a row, in the mean."""
        return self._divergence / self.num_rows

    @property
    def perplexity(self) -> float:
        """Perplexity of the text; 1 where no row has a token behind it."""
        return float(np.exp(self._surprise / max(1, self._num_following)))

    @property
    def expected_perplexity(self) -> float:
        """Perplexity of the text by the float model."""
        return float(np.exp(self._expected_surprise / max(1, self._num_following)))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


class QuantizedGraph:
    """A quantised graph on CPU, behind conversions from and to float32.

    Args:
        graph: A graph with integer inputs and outputs.
        encodings: The encodings of both.
        weights: The directory of the files that hold its weights.
    """

    def __init__(
        self, graph: onnx.ModelProto, encodings: Mapping[str, Encoding], weights: Path
    ) -> None:
        set_threads(None)
        self._session = cpu_session(graph.SerializeToString(), weights, as_written=True)
        self._inputs = [item.name for item in self._session.get_inputs()]
        self._outputs = [item.name for item in self._session.get_outputs()]
        self._encodings = encodings

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        integers = {name: self._encodings[name].quantize(inputs[name]) for name in self._inputs}
        values = self._session.run(None, integers)
        return {
            name: self._encodings[name].dequantize(value)
            for name, value in zip(self._outputs, values, strict=True)
        }


def normed(states: Array, scale: Array, epsilon: float) -> Array:
    """Rows `(rows, D)` as RMSNorm gives them."""
    squares = np.square(states).mean(-1, keepdims=True)
    rows: Array = states / np.sqrt(squares + np.float32(epsilon)) * scale
    return rows


def head_fidelity(
    source: Checkpoint,
    graph: QuantizedGraph,
    texts: Sequence[Sequence[int]],
    states: Sequence[Array],
    expected: Sequence[Array],
) -> Fidelity:
    """How like the next tokens of a quantised model are to those of its float form.

    Args:
        source: The float model, whose head is held in memory.
        graph: The quantised head.
        texts: Token ids.
        states: What the quantised blocks make of each text, `(tokens, D)`.
        expected: What those of the float model do.

    Raises:
        CheckpointError: The head is missing or damaged.
    """
    fidelity, config = Fidelity(), source.config
    scale, weight = source.final_norm_tensor().load(), source.output_tensor().load()
    for text, its, floats in zip(texts, states, expected, strict=True):
        following = np.asarray([*text[1:], -1])
        for start in range(0, len(text), _ROWS):
            rows = slice(start, start + _ROWS)
            logits = graph.run({"hidden": its[np.newaxis, rows]})["logits"][0]
            exact = normed(floats[rows], scale, config.rms_norm_eps) @ weight.T
            fidelity.add(exact, logits, following[rows])
    return fidelity


def mean_cosine(states: Sequence[Array], expected: Sequence[Array]) -> float:
    """Cosine of hidden states with others, `(tokens, D)` a text, over all tokens.

    Rows are of unit length, so that none outweighs the others; one that is rounded to zeros is like
    no other.
    """

    def unit(rows: Array) -> Array:
        lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
        return np.asarray(rows / np.maximum(lengths, _LEAST_LENGTH))

    sums = np.zeros(3)
    for one, other in zip(states, expected, strict=True):
        a, b = unit(one), unit(other)
        sums += float(np.vdot(a, b)), float(np.vdot(a, a)), float(np.vdot(b, b))
    return float(sums[0] / np.sqrt(sums[1] * sums[2]))
