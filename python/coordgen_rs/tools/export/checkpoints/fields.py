"""Single fields of a config.json, checked where they are read.

In: the parsed config.json and a name. Out: a value in its range, or a CheckpointError that says
what is there. What a field means is its reader's to know.
"""

from collections.abc import Mapping
from typing import Any

from coordgen_rs.bundle.manifest import MOST_OF_A_SIZE
from coordgen_rs.errors import CheckpointError


def positive(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """An integer from 1 to 2^24; `default` where the field is missing or null.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST_OF_A_SIZE:
        raise CheckpointError(
            f"config.json: {name} is {value!r:.60}, expected 1 to {MOST_OF_A_SIZE}"
        )
    return value


def number(config: Mapping[str, Any], name: str, low: float = 0, high: float = 1) -> float:
    """A number from `low` to `high`.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise CheckpointError(f"config.json: {name} is {value!r:.60}, expected {low:g} to {high:g}")


def per_layer(config: Mapping[str, Any], name: str, num_layers: int) -> list[Any] | None:
    """A list with an entry per layer, or None.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if value is not None and (not isinstance(value, list) or len(value) != num_layers):
        raise CheckpointError(
            f"config.json: {name} is {value!r:.60}, expected an entry for each of "
            f"{num_layers} layers"
        )
    return value
