"""Fields of a config.json, checked where they are read.

In: the parsed config.json. Out: a value in its range; the numbers of the layers that differ from
others, by a sliding window or by not being rotated; the sampling that is recommended. What is
out of range is a CheckpointError that says what is there. Families say by different fields which
layers see the last tokens only; `table.py` names the rule of each, for where `layer_types` tells
nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from coordgen_rs.bundle.layers import MOST_OF_A_SIZE
from coordgen_rs.bundle.manifest import Recommended
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

FULL, SLIDING, RECURRENT = "full_attention", "sliding_attention", "linear_attention"

_MOST_LAYERS = 1 << 12
"""No known model has more; a damaged file may, and would fill the memory with their kinds."""

WindowRule = Callable[[Mapping[str, Any], int], Iterable[int]]
"""Maps a config.json and the number of layers to the layers with a window, if there is one."""


def refuse_field(config: Mapping[str, Any], name: str, expected: str) -> NoReturn:
    """Refuse a field that is not what is expected.

    Raises:
        CheckpointError: Always.
    """
    raise CheckpointError(f"config.json: {name} is {config.get(name)!r:.60}, expected {expected}")


def refuse_value(config: Mapping[str, Any], name: str) -> NoReturn:
    """Refuse a field whose value no graph can follow.

    Raises:
        UnsupportedModelError: Always.
    """
    raise UnsupportedModelError(f"config.json: {name} = {config[name]!r:.200} is not supported")


def positive(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """An integer from 1 to 2^24; `default` where the field is missing or null.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST_OF_A_SIZE:
        refuse_field(config, name, f"1 to {MOST_OF_A_SIZE}")
    return value


def layer_count(config: Mapping[str, Any]) -> int:
    """The number of layers.

    Raises:
        CheckpointError: It is none, or more than any model has.
    """
    layers = positive(config, "num_hidden_layers")
    if layers > _MOST_LAYERS:
        refuse_field(config, "num_hidden_layers", f"1 to {_MOST_LAYERS}")
    return layers


def number(
    config: Mapping[str, Any],
    name: str,
    low: float = 0,
    high: float = 1,
    default: float | None = None,
) -> float:
    """A number from `low` to `high`; `default` where the field is missing or null.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    refuse_field(config, name, f"{low:g} to {high:g}")


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """A yes or no; `default` where the field is missing or null.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        refuse_field(config, name, "true or false")
    return value


def per_layer(config: Mapping[str, Any], name: str, num_layers: int) -> list[Any] | None:
    """A list with an entry per layer, or None.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if value is not None and (not isinstance(value, list) or len(value) != num_layers):
        refuse_field(config, name, f"an entry for each of {num_layers} layers")
    return value


def layer_numbers(config: Mapping[str, Any], name: str, num_layers: int) -> list[int] | None:
    """A list of layers, or None.

    Raises:
        CheckpointError: It is something else.
    """
    value = config.get(name)
    if value is not None and not (
        isinstance(value, list) and all(type(it) is int and 0 <= it < num_layers for it in value)
    ):
        refuse_field(config, name, f"numbers of {num_layers} layers")
    return value


def layer_kinds(model: str, kinds: Sequence[Any], known: Mapping[str, str]) -> list[str]:
    """The kinds of layers in the words of `known`.

    Raises:
        UnsupportedModelError: One is not known, or none has attention.
    """
    for layer, kind in enumerate(kinds):
        if not isinstance(kind, str) or kind not in known:
            raise UnsupportedModelError(
                f"config.json: layer_types: layer {layer} of {len(kinds)} is of the kind "
                f"{kind!r:.60}, which is not supported in {model}, only {', '.join(known)}"
            )
    found = [known[kind] for kind in kinds]
    if set(found) == {RECURRENT}:
        raise UnsupportedModelError(
            f"config.json: layer_types: none of the {len(kinds)} layers has attention, which "
            f"is not supported in {model}"
        )
    return found


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


def suppressed_token_ids(generation: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """The ids of `suppress_tokens`, which no answer holds; those that no token has change nothing.

    Raises:
        CheckpointError: It is no list of whole numbers.
    """
    given = generation.get("suppress_tokens") or []
    if not isinstance(given, list) or not all(type(token_id) is int for token_id in given):
        raise CheckpointError(
            f"generation_config.json: suppress_tokens is {given!r:.60}, expected a list of tokens"
        )
    return tuple(sorted({token_id for token_id in given if 0 <= token_id < vocab_size}))


def refused(config: Mapping[str, Any], model: str, name: str, is_refused: bool) -> None:
    """Refuse a field whose value changes the arithmetic of a model.

    Raises:
        UnsupportedModelError: `is_refused`; the message names the field, its value and the model.
    """
    if is_refused:
        raise UnsupportedModelError(
            f"config.json: {name} = {config.get(name)!r:.60} is not supported in {model}"
        )


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Refuse heads that the graphs cannot do.

    Raises:
        UnsupportedModelError: They cannot be grouped and rotated.
    """
    if heads % kv_heads or head_dim < 2 or head_dim % 2:
        raise UnsupportedModelError(
            f"config.json: {heads} heads over {kv_heads} key/value heads of "
            f"dimension {head_dim} cannot be grouped and rotated"
        )


def recurrent_layers(config: Mapping[str, Any], num_layers: int) -> frozenset[int]:
    """The layers that `layer_types` says have no attention.

    Raises:
        CheckpointError: The field is malformed.
    """
    kinds = per_layer(config, "layer_types", num_layers) or ()
    return frozenset(number for number, kind in enumerate(kinds) if kind == RECURRENT)


def no_layer(config: Mapping[str, Any], num_layers: int) -> Iterable[int]:
    """No layer, as in Llama."""
    return ()


def every_layer(config: Mapping[str, Any], num_layers: int) -> Iterable[int]:
    """All layers, as in Mistral."""
    return range(num_layers)


def unrotated_layers(config: Mapping[str, Any], num_layers: int) -> Iterable[int]:
    """Layers without rotary embedding: as in SmolLM3, whose `no_rope_layers` has a 0 for them.

    Raises:
        CheckpointError: A field is malformed.
    """
    is_rotated = per_layer(config, "no_rope_layers", num_layers)
    if is_rotated is not None:
        return [number for number, rotated in enumerate(is_rotated) if not rotated]
    if "no_rope_layer_interval" not in config:
        return ()
    interval = positive(config, "no_rope_layer_interval")
    return range(interval - 1, num_layers, interval)


def pattern_layers(config: Mapping[str, Any], num_layers: int) -> Iterable[int]:
    """All layers but each nth, n being `sliding_window_pattern`: as in Gemma.

    Raises:
        CheckpointError: It is no positive number.
    """
    pattern = positive(config, "sliding_window_pattern", 6)
    return (number for number in range(num_layers) if (number + 1) % pattern)


def last_layers(config: Mapping[str, Any], num_layers: int) -> Iterable[int]:
    """Layers from `max_window_layers` on, as in Qwen.

    Raises:
        CheckpointError: It is no number of layers.
    """
    first = config.get("max_window_layers")
    return range(0 if first == 0 else positive(config, "max_window_layers", 28), num_layers)


def sliding_window(
    config: Mapping[str, Any],
    num_layers: int,
    rule: WindowRule,
    has_layer_types: bool,
    has_recurrent: bool = False,
) -> tuple[int | None, frozenset[int]]:
    """The window in tokens, and the layers that have it; None and no layers if there is none.

    Args:
        config: With `use_sliding_window` where the family has windows.
        num_layers: Layers of the model.
        rule: Tells which layers have the window, where `layer_types` does not tell.
        has_layer_types: Whether the family follows `layer_types`; others may only repeat the rule.
        has_recurrent: Whether the family has layers without attention.

    Raises:
        UnsupportedModelError: A layer is of another kind, or of one that the family does not have.
        CheckpointError: A field is malformed.
    """
    window = None
    if config.get("use_sliding_window") and config.get("sliding_window") is not None:
        window = positive(config, "sliding_window")
    by_rule = frozenset(rule(config, num_layers)) if window is not None else frozenset()
    if config.get("use_sliding_window") and rule is no_layer:
        refuse_value(config, "use_sliding_window")
    kinds = per_layer(config, "layer_types", num_layers)
    if kinds is None:
        return window, by_rule
    layers = frozenset(number for number, kind in enumerate(kinds) if kind == SLIDING)
    known = (FULL, SLIDING, RECURRENT) if has_recurrent else (FULL, SLIDING)
    is_known = all(kind in known for kind in kinds)
    if not is_known or (layers and window is None) or (layers != by_rule and not has_layer_types):
        refuse_value(config, "layer_types")
    return (window if layers else None), layers


def recommended(generation: Mapping[str, Any]) -> Recommended | None:
    """The sampling of a generation_config.json; None where it has none, or draws nothing.

    What a request cannot have is left out: advice that cannot be followed is no damage.
    """
    if generation.get("do_sample") is False:
        return None
    top_k = _within(generation, "top_k", 1, 2**32 - 1)
    found = Recommended(
        temperature=_within(generation, "temperature", 0, 100),
        top_k=int(top_k) if top_k is not None and top_k.is_integer() else None,
        top_p=_within(generation, "top_p", 1e-6, 1),
        min_p=_within(generation, "min_p", 0, 1),
        repetition_penalty=_within(generation, "repetition_penalty", 1e-6, 100),
    )
    return found if found.told() else None


def _within(generation: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = generation.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return round(float(value), 6)  # files with float32 have more digits than anybody meant
