"""Runs the graphs of a bundle with ONNX Runtime alone, so that tests of the export need no session.

Keys and values are bound in place, as the session does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.layers import RecurrentLayers
from coordgen_rs.runtime.caches.kv_cache import row_bytes
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

_MOST_NODES = 256
"""Of a tree."""


class GraphRunner:
    """Feeds tokens of one sequence through a bundle, any number of rows at a time.

    Recurrent layers apply the rows of a run when the next one begins.
    """

    def __init__(self, bundle: Bundle) -> None:
        set_threads(None)
        self.bundle = bundle
        self.length = 0
        self._sessions: dict[str, ort.InferenceSession] = {}
        manifest, slots = bundle.manifest, bundle.manifest.slots
        shapes = {
            layer: (1, heads, slots, row_bytes("f32", size))
            for layer, (heads, size) in zip(
                manifest.cached_layers, manifest.cache_heads, strict=True
            )
        }
        self.caches = {
            f"{kind}_{layer}": ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.uint8))
            for kind in ("key", "value")
            for layer, shape in shapes.items()
        }
        self.caches |= {
            name: ort.OrtValue.ortvalue_from_numpy(content)
            for name, content in empty_states(bundle.manifest.recurrent, _MOST_NODES).items()
        }
        files = ExpertFiles(bundle)
        self._experts = {
            name: value
            for layer in range(manifest.model.num_layers)
            for name, value in files.inputs(layer).items()
        }
        self._pending = 0

    def feed(self, token_ids: Any, width: int) -> NDArray[np.float32]:
        """Appends at most `width` tokens in one run; their logits `(tokens, vocab)`."""
        logits = self.run(token_ids, range(-1, len(token_ids) - 1), width)
        self.length += len(token_ids)
        self._pending = len(token_ids)
        return logits

    def feed_all(self, token_ids: Any, width: int) -> NDArray[np.float32]:
        """Appends all tokens, `width` at a time; their logits."""
        pieces = [token_ids[i : i + width] for i in range(0, len(token_ids), width)]
        return np.concatenate([self.feed(piece, width) for piece in pieces])

    def run(self, token_ids: Any, parents: Sequence[int], width: int) -> NDArray[np.float32]:
        """One run of a tree at the current length; the cache's length stays.

        A parent is the number of a node, or -1.
        """
        manifest = self.bundle.manifest
        n, depths = len(token_ids), list[int]()
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        hidden = np.zeros((1, width, manifest.model.hidden_size), np.float32)
        hidden[0, :n] = self.bundle.embedding()[np.asarray(token_ids, np.int64)]
        padded = np.zeros(width, np.int64)
        padded[:n] = self.length + np.array(depths)
        tables = self.bundle.rope_tables()
        common = {
            **{name: table[padded][None, None] for name, table in tables.items()},
            "parents": np.array(parents, np.int32),
            "sequences": np.zeros(n, np.int32),
            "lengths": np.array([self.length], np.int32),
            "span": np.array([0, n], np.int32),
        }
        if manifest.recurrent is not None:
            pending = range(self._pending) if self._pending else [-1]
            common |= {"reads": np.zeros(1, np.int32), "pending": np.array(pending, np.int32)}
        for block in manifest.blocks:
            session = self._session(block.graphs[width])
            names = [it.name for it in session.get_inputs()]
            inputs = {"hidden": hidden, **{name: common[name] for name in names if name in common}}
            caches = [name for name in names if name in self.caches]
            hidden = self._run(session, inputs, "hidden_out", caches)
        session = self._session(manifest.head.graphs[width])
        return self._run(session, {"hidden": hidden}, "logits", [])[0, :n]

    def _run(
        self, session: ort.InferenceSession, inputs: dict[str, Any], output: str, caches: list[str]
    ) -> NDArray[np.float32]:
        binding = session.io_binding()
        for name in [it.name for it in session.get_inputs() if it.name in self._experts]:
            binding.bind_ortvalue_input(name, self._experts[name])
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name in caches:
            binding.bind_ortvalue_input(name, self.caches[name])
            binding.bind_ortvalue_output(f"{name}_out", self.caches[name])
        binding.bind_output(output)
        session.run_with_iobinding(binding)
        result: NDArray[np.float32] = binding.get_outputs()[-1].numpy()
        return result

    def _session(self, name: str) -> ort.InferenceSession:
        if name not in self._sessions:
            self._sessions[name] = cpu_session(self.bundle.file(name))
        return self._sessions[name]


def empty_states(recurrent: RecurrentLayers | None, num_nodes: int) -> dict[str, NDArray[np.uint8]]:
    """States before the first token, and updates of so many nodes, by the names of inputs."""
    found = {}
    for layer in recurrent.layers if recurrent else ():
        for sizes in recurrent.states if recurrent else ():
            state, updates = sizes.inputs(layer)
            found[state] = np.zeros((1, 2, sizes.num_bytes), np.uint8)
            found[updates] = np.zeros((2, sizes.updates_bytes(num_nodes)), np.uint8)
    return found


def tokens(count: int, vocab: int) -> NDArray[np.int64]:
    """Random tokens, the same in every run."""
    return np.random.default_rng(7).integers(0, vocab, count)
