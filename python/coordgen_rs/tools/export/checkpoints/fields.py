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


def token_ids(
    name: str, config: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int
) -> list[int]:
    """The ids under `name`: generation_config.json first, as transformers does; one or a list.

    Raises:
        CheckpointError: An id is not in the vocabulary.
    """
    value = generation.get(name)
    if value is None:
        value = config.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        is_number = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_number or not 0 <= token_id < vocab_size:
            raise CheckpointError(f"config.json: {name} {token_id!r:.60} is not in the vocabulary")
    return ids
