"""Embeddings of layers: what each layer reads of a token beside the stream.

In: what an exporter has written. Out: where the table is, and what graphs call their inputs. Rows
are looked up on the host, from a file that stays on disk (`Bundle.per_layer_embedding`).
"""

from dataclasses import dataclass

from coordgen_rs.bundle.panels import WeightType

EMBEDDED, PER_LAYER = "embedded", "per_layer"
"""Inputs with a row per token: the embedded token as the first layer reads it, and what the table
holds of it for all layers."""


@dataclass(frozen=True)
class PerLayerFile:
    """A second embedding, of which each layer reads its own numbers of a token.

    Weights in panels `(vocab_size * num_layers, size)`: for each token a row for each layer. It may
    be larger than all other weights, and few of its rows are ever read.
    """

    file: str
    dtype: WeightType
    size: int
    """Numbers of a layer."""
    scale: float
    """What weights are multiplied by."""
