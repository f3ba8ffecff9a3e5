"""The embedding of a bundle whose first graph reads embedded tokens: a file with a row per token.

In: the bundle. Out: a function from token ids to rows in the graph's encoding. Rows are taken from
the mapped file, so that only those in use are read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.formats.genie.config import GenieConfig
from coordgen_rs.formats.genie.model import GenieModel


def read_lookup(
    directory: Path, config: GenieConfig, model: GenieModel
) -> Callable[[NDArray[np.int64]], NDArray[Any]]:
    """A function from token ids `(rows,)` to rows `(rows, hidden_size)`.

    Raises:
        BundleDamagedError: The file is missing, or of another size.
        BundleError: The config names no such file, or it holds other numbers than float32.
    """
    entry, encoding, size = config.embedding, model.embedded, model.hidden_size
    if entry is None or encoding is None or size is None:
        raise BundleError(f"{directory}: its graphs read embedded tokens, but it has no embedding")
    path = directory / entry.lut_path
    if entry.datatype not in (None, "float32"):
        raise BundleError(f"{path} holds {entry.datatype!r:.60}; only float32 can be read")
    if entry.size not in (None, size):
        raise BundleError(f"{path} has rows of {entry.size}, the graphs read {size}")
    shape = (config.vocab_size, size)
    try:
        num_bytes = path.stat().st_size
        if num_bytes != shape[0] * shape[1] * 4:
            raise BundleDamagedError(f"{path} has {num_bytes} bytes, expected rows {shape} float32")
        table = np.asarray(np.memmap(path, np.dtype("<f4"), "r", shape=shape))
    except OSError as error:
        raise BundleDamagedError(f"{path} cannot be mapped: {error}") from error
    quantize = encoding.quantize

    def rows(token_ids: NDArray[np.int64]) -> NDArray[Any]:
        return quantize(table[token_ids])

    return rows
