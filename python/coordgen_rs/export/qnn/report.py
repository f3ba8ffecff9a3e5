"""How good a quantised model is: its blocks and its choices beside those of the float one.

In: both models and held-out text. Out: a `QuantizationReport`. The quantised graphs run on CPU with
the very encodings; what the HTP itself makes of them is `coordgen check`'s to tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from coordgen_rs.bundle.fixed_point import Encoding
from coordgen_rs.export.qnn.text_model import Array, TextModel
from coordgen_rs.target.onnx_runtime import cpu_session, set_threads

_QUANTILES = (0.5, 0.9, 1.0)


@dataclass(frozen=True)
class QuantizationReport:
    """A quantised model beside its float form.

    Attributes:
        tokens: Number of held-out tokens.
        block_cosine: Cosine of the hidden states behind each block, over all tokens.
        argmax_agreement: Share of tokens after which both choose the same next one.
        margins: Where they differ, the float model's lead of its first choice over its second:
            median, 90 % quantile and maximum; empty where they never differ.
        file_bytes: Size of every file of the bundle.
    """

    tokens: int
    block_cosine: tuple[float, ...]
    argmax_agreement: float
    margins: tuple[float, ...]
    file_bytes: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [
            f"block {index}: cosine {cosine:.5f} against float"
            for index, cosine in enumerate(self.block_cosine)
        ]
        agreement = f"{100 * self.argmax_agreement:.1f} % of {self.tokens} held-out tokens"
        lines.append(f"same next token as float: {agreement}")
        if self.margins:
            median, most, maximum = self.margins
            lines.append(
                f"where it differs, float's lead was {median:.3f} (median), {most:.3f} (90 %), "
                f"{maximum:.3f} (most)"
            )
        lines += [f"{name}: {size} bytes" for name, size in sorted(self.file_bytes.items())]
        return lines


class QuantizedGraph:
    """A quantised graph on CPU, behind conversions from and to float32.

    Args:
        graph: With integer inputs and outputs.
        encodings: Of both.
    """

    def __init__(self, graph: onnx.ModelProto, encodings: Mapping[str, Encoding]) -> None:
        set_threads(None)
        self._session = cpu_session(graph.SerializeToString())
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


def compare(
    expected: TextModel,
    got: TextModel,
    texts: Sequence[Sequence[int]],
    file_bytes: dict[str, int],
) -> QuantizationReport:
    """Run both models over the texts (token ids), at least one of which is not empty."""
    products: list[NDArray[np.float64]] = []
    agreed: list[NDArray[np.bool_]] = []
    margins: list[Array] = []
    for text in texts:
        for (states, logits), (other_states, other_logits) in zip(
            expected.run(text), got.run(text), strict=True
        ):
            pairs = zip(states, other_states, strict=True)
            products.append(np.array([_products(one, other) for one, other in pairs]))
            same = logits.argmax(-1) == other_logits.argmax(-1)
            agreed.append(same)
            best = np.partition(logits[~same], -2, axis=-1)[:, -2:]
            margins.append(best[:, 1] - best[:, 0])
    product, square, other_square = np.sum(products, axis=0).T
    every, differing = np.concatenate(agreed), np.concatenate(margins)
    return QuantizationReport(
        tokens=len(every),
        block_cosine=tuple(map(float, product / np.sqrt(square * other_square))),
        argmax_agreement=float(every.mean()),
        margins=tuple(map(float, np.quantile(differing, _QUANTILES))) if len(differing) else (),
        file_bytes=file_bytes,
    )


def _products(one: Array, other: Array) -> tuple[float, float, float]:
    """Sums over all rows of the unit rows' products, so that no row outweighs the others."""
    one, other = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (one, other))
    return float(np.vdot(one, other)), float(np.vdot(one, one)), float(np.vdot(other, other))
