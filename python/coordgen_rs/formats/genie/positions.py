"""Cosines and sines of positions, made by the graph for CPU that a pipeline has for them.

In: the graph's file. Out: tables by position. The graph is run once, on a few positions at a
time, since it makes a mask of them all, too, which is not used.
"""

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genie.binary.names import COS, SIN
from coordgen_rs.formats.genie.model import GenieModel
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

_AT_ONCE = 64
_TYPES = {"tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(float)": np.float32}


def position_tables(path: Path, model: GenieModel) -> dict[str, NDArray[np.float32]]:
    """Cosines and sines by position, `(context, head_dim / 2) f32` each.

    Raises:
        BundleError: The graph cannot be run, or gives something else.
    """
    set_threads(None)
    try:
        session = cpu_session(path)
        outputs = {key: _output(session, name) for key, name in (("cos", COS), ("sin", SIN))}
        pieces: dict[str, list[NDArray[np.float32]]] = {key: [] for key in outputs}
        for first in range(0, model.context, _AT_ONCE):
            positions = np.arange(first, min(first + _AT_ONCE, model.context))
            results = session.run(
                list(outputs.values()), _inputs(session, positions, model.context)
            )
            for key, result in zip(pieces, results, strict=True):
                pieces[key].append(np.asarray(result, np.float32).reshape(len(positions), -1))
        tables = {key: np.concatenate(arrays) for key, arrays in pieces.items()}
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise BundleError(f"{path}: ONNX Runtime cannot run it: {error}") from error
    for key, table in tables.items():
        if table.shape != (model.context, model.head_dim // 2) or not np.isfinite(table).all():
            raise BundleError(f"{path} gives {key} of the shape {table.shape}")
    return tables


def _output(session: onnxruntime.InferenceSession, name: str) -> str:
    """The output whose name begins with that of the input that it is for."""
    return next(str(item.name) for item in session.get_outputs() if item.name.startswith(name))


def _inputs(
    session: onnxruntime.InferenceSession, positions: NDArray[np.int64], context: int
) -> dict[str, NDArray[np.generic]]:
    """Some positions, and the mask of a context that is full."""
    return {
        item.name: (
            positions[np.newaxis] if item.name == "position_ids" else np.ones((1, context))
        ).astype(_TYPES[item.type])
        for item in session.get_inputs()
    }
