"""What the graphs of a bundle of Genie read and write beside caches: ids, rotations, mask, logits.

In: ids, positions and mask as the core fills them. Out: the same in the graphs' integers, made
before each run (`before_run`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.formats.genie.binary.names import CACHE_INDEX, COS, EMBEDDED, MASK, SIN, TOKENS
from coordgen_rs.formats.genie.model import GenieModel
from coordgen_rs.runtime.buffers import Buffers, ort_value
from coordgen_rs.runtime.qnn.buffers import BoundMask, MaskIntegers

Embed = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Token ids `(rows,) i64` to what the first graph reads, `(rows, hidden_size)`."""


@dataclass(frozen=True)
class Forms:
    """How the graphs read what the core fills.

    Attributes:
        model: The graphs.
        tables: Cosines and sines by position, in their encoding.
        embed: The embedding, where the first graph reads embedded tokens; else None.
        mask: The integers of the graphs' masks.
    """

    model: GenieModel
    tables: Mapping[str, NDArray[Any]]
    embed: Embed | None
    mask: MaskIntegers


class GenieBuffers(Buffers):
    """What the graphs of one width read and write in a run.

    Args:
        arrays: Those of `Buffers`, in its order; the drafted mask has absolute slots as columns.
        forms: How the graphs read them.

    Attributes:
        logits: `(rows, vocab_size)`, as the last graph gives them.
    """

    def __init__(self, *arrays: Any, forms: Forms) -> None:
        super().__init__(*arrays)
        self._forms = forms
        model, rows = forms.model, self.rows
        graphs = [part[rows] for part in model.parts]
        layered = next(graph for graph in graphs if graph.slots)
        self._read = {
            name: np.zeros(facts.shape, facts.numpy_type)
            for graph in graphs
            for name, facts in graph.facts.inputs.items()
            if name in (TOKENS, *EMBEDDED, MASK, COS, SIN, CACHE_INDEX)
        }
        self._bound_mask = BoundMask(self._read[MASK], forms.mask, is_native=layered.is_native)
        last = graphs[-1]
        out = last.facts.outputs[last.out]
        self.logits = np.zeros((rows, model.vocab_size), out.numpy_type)
        self.values = {name: ort_value(array) for name, array in self._read.items()}
        self.logits_value = ort_value(self.logits.reshape(out.shape))

    @classmethod
    def of_rows(cls, rows: int, forms: Forms) -> "GenieBuffers":
        """New buffers for `rows` tokens."""
        model = forms.model
        ids, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        # As many columns at every width, so that a narrow step can be run under a wide graph.
        columns = model.context + model.widths[-1]
        mask = np.zeros((1, 1, rows, columns), np.float32)
        size = (1, rows, model.hidden_size or 1)
        dtype = model.hidden[0].dtype if model.hidden else "uint16"
        states = np.zeros(size, dtype), np.zeros(size, dtype)
        return cls(ids, positions, {"mask": mask}, states, forms=forms)

    def _of(self, *arrays: Any) -> "GenieBuffers":
        return GenieBuffers(*arrays, forms=self._forms)

    def hidden_value(self, place: int, shape: tuple[int, ...]) -> onnxruntime.OrtValue:
        """Hidden states as a graph has them: `(1, rows, hidden_size)`, or with fewer or more ones.

        Args:
            place: 0 or 1: a part reads one and gives the other.
            shape: The graph's.
        """
        return ort_value(self.hidden[place].reshape(shape))

    def before_run(self) -> None:
        """Turn ids, positions and mask into the graphs' own."""
        forms, read = self._forms, self._read
        if TOKENS in read:
            read[TOKENS][0] = self.input_ids
        for name in EMBEDDED:
            if name in read and forms.embed is not None:
                read[name].reshape(self.rows, -1)[:] = forms.embed(self.input_ids)
        for name, table in ((COS, forms.tables["cos"]), (SIN, forms.tables["sin"])):
            table.take(self.position_ids, axis=0, out=read[name][0, 0], mode="clip")
        start = int(self.write_index[0])
        if CACHE_INDEX in read:
            read[CACHE_INDEX][0] = start
        self._bound_mask.fill(self.by_row["mask"], start)
