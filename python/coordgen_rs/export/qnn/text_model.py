"""A whole model run over a text, graph after graph, while it is being exported.

In: something that runs each block and the head on float arrays (the float graphs, or quantised ones
behind conversions), and tokens. Out: hidden states and logits. No drafts, no sessions.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import ModelShape
from coordgen_rs.export.qnn.graph import key_value_names

Array = NDArray[np.float32]

_CHUNK = 64
_MASKED = -1e4


class GraphRunner(Protocol):
    """A graph of `graph.py` in any form."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name; inputs that the graph lacks are left aside."""


class TextModel:
    """The graphs of a model, run one after the other.

    Args:
        model: The sizes.
        blocks: Layers and graph of each block, in order.
        head: The head's graph.
        embedding: `(vocab_size, hidden_size) f32`.
        inv_freq: `(rotated pairs,)`, radians per position.
        rope_factor: What cosines and sines are multiplied by.
    """

    def __init__(
        self,
        model: ModelShape,
        blocks: Sequence[tuple[range, GraphRunner]],
        head: GraphRunner,
        embedding: Array,
        inv_freq: Sequence[float],
        rope_factor: float = 1.0,
    ) -> None:
        self._model, self._blocks, self._head = model, blocks, head
        self._embedding, self._inv_freq = embedding, np.asarray(inv_freq, np.float32)
        self._rope_factor = np.float32(rope_factor)

    def run(self, token_ids: Sequence[int]) -> Iterator[tuple[list[Array], Array]]:
        """Run a text from its start, a chunk after another.

        Yields:
            Hidden states `(1, rows, hidden_size)` behind each block, and logits
            `(rows, vocab_size)`.
        """
        model = self._model
        # A slot that nobody sees, because ONNX Runtime reduces no empty tensors.
        empty = np.zeros((1, model.num_kv_heads, 1, model.head_dim), np.float32)
        caches = {past: empty for number in range(model.num_layers) for past, _ in _pairs(number)}
        for start in range(0, len(token_ids), _CHUNK):
            tokens = np.asarray(token_ids[start : start + _CHUNK], np.int64)
            common, hidden, states = self._inputs(len(tokens), start), self._embedding[tokens], []
            hidden = hidden[np.newaxis]
            for layers, block in self._blocks:
                pairs = [pair for number in layers for pair in _pairs(number)]
                past = {name: caches[name] for name, _ in pairs}
                outputs = block.run({"hidden": hidden, **common, **past})
                hidden = outputs["hidden_out"]
                states.append(hidden)
                for name, new in pairs:
                    caches[name] = np.concatenate([caches[name], outputs[new]], 2)
            yield states, self._head.run({"hidden": hidden})["logits"][0]

    def _inputs(self, rows: int, start: int) -> dict[str, Array]:
        """Mask and rotations of a chunk that begins at position `start`."""
        mask = np.full((1, 1, rows, 1 + start + rows), _MASKED, np.float32)
        mask[..., 1 : 1 + start] = 0
        mask[0, 0, :, 1 + start :] = np.where(np.tri(rows, dtype=bool), 0, np.float32(_MASKED))
        angles = np.arange(start, start + rows, dtype=np.float32)[:, None] * self._inv_freq
        return {
            "mask": mask,
            "cos": np.cos(angles)[np.newaxis, np.newaxis] * self._rope_factor,
            "sin": np.sin(angles)[np.newaxis, np.newaxis] * self._rope_factor,
        }


def _pairs(layer: int) -> list[tuple[str, str]]:
    """Names of past and new rows of a layer's keys, and of its values."""
    return [key_value_names(layer, kind)[:2] for kind in ("key", "value")]
