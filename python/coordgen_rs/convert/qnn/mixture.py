"""How many bits each matrix gets, where some may have 8 and the others 4.

In: what each matrix loses by 4 bits, and its size. Out: bits of each, such that the blocks do not
take more than was asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MatrixCosts:
    """A matrix that may have 4 or 8 bits."""

    num_bits: Mapping[int, int]
    """Bits of the whole matrix, steps included."""
    losses: Mapping[int, float]


def mixed_bits(
    matrices: Mapping[str, MatrixCosts], num_weights: int, most_bits: float
) -> dict[str, int]:
    """8 bits for the matrices whose loss falls most for each bit, 4 for the others.

    Args:
        matrices: All matrices of the blocks, by name.
        num_weights: Number of weights in all of them.
        most_bits: Most bits of a weight, in the mean.
    """
    bits = dict.fromkeys(matrices, 4)
    left = most_bits * num_weights - sum(it.num_bits[4] for it in matrices.values())
    for name in _most_gain_first(matrices):
        extra = matrices[name].num_bits[8] - matrices[name].num_bits[4]
        if extra <= left:
            bits[name], left = 8, left - extra
    return bits


def _most_gain_first(matrices: Mapping[str, MatrixCosts]) -> Sequence[str]:
    def gain(name: str) -> float:
        it = matrices[name]
        return (it.losses[4] - it.losses[8]) / (it.num_bits[8] - it.num_bits[4])

    return sorted(matrices, key=gain, reverse=True)
