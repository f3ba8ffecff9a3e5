"""What a training run is made of: its length, its rate, its rows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """What a run is made of."""

    num_pools: int = 85
    pool_steps: int = 120
    warmup_pools: int = 2
    decay_share: float = 0.25
    peak_rate: float = 2.5e-3
    weight_decay: float = 0.02
    batch_rows: int = 8
    row_len: int = 512
    prompt_weight: float = 0.03
    twin_share: float = 0.7
    seed: int = 0


def rate(recipe: Recipe, pool: int) -> float:
    """Linear warm-up, a plateau, then linearly to zero over the last part of the run."""
    warm = (pool + 1) / recipe.warmup_pools
    left = (recipe.num_pools - pool) / (recipe.num_pools * recipe.decay_share)
    return recipe.peak_rate * min(1.0, warm, left)
