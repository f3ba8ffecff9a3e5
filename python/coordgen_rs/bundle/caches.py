"""The keys and values that layers attend to, where not all layers have their own of one size.

In: what an exporter knows of its graphs. Out: the heads of each layer, and which layer writes what
it reads. How keys and values are kept is for the session (`runtime/caches/kv_cache.py`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCache:
    """The keys and values that a layer attends to."""

    num_kv_heads: int
    head_dim: int
    written_by: int
    """The layer whose keys and values they are: itself, or an earlier one."""
