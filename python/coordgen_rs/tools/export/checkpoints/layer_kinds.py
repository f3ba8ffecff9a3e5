"""How layers of one model differ: which have a sliding window, which are not rotated.

In: the parsed config.json. Out: numbers of layers. Families say by different fields which layers
see the last tokens only; `families.py` holds the rule of each, where `layer_types` is not there.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coordgen_rs.errors import UnsupportedModelError
from coordgen_rs.tools.export.checkpoints.fields import per_layer, positive

FULL, SLIDING = "full_attention", "sliding_attention"

WindowRule = Callable[[Mapping[str, Any], int], Iterable[int]]
"""Maps a config.json and the number of layers to the layers with a window, if there is one."""


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
    config: Mapping[str, Any], num_layers: int, rule: WindowRule, has_layer_types: bool
) -> tuple[int | None, frozenset[int]]:
    """The window in tokens, and the layers that have it; None and no layers if there is none.

    Args:
        config: With `use_sliding_window` where the family has windows.
        num_layers: Layers of the model.
        rule: Tells which layers have the window, where `layer_types` does not tell.
        has_layer_types: Whether the family follows `layer_types`; others may only repeat the rule.

    Raises:
        UnsupportedModelError: A layer is of another kind, or of one that the family does not have.
        CheckpointError: A field is malformed.
    """
    window = None
    if config.get("use_sliding_window") and config.get("sliding_window") is not None:
        window = positive(config, "sliding_window")
    by_rule = frozenset(rule(config, num_layers)) if window is not None else frozenset()
    if config.get("use_sliding_window") and rule is no_layer:
        raise UnsupportedModelError(_not_supported(config, "use_sliding_window"))
    kinds = per_layer(config, "layer_types", num_layers)
    if kinds is None:
        return window, by_rule
    layers = frozenset(number for number, kind in enumerate(kinds) if kind == SLIDING)
    is_known = all(kind in (FULL, SLIDING) for kind in kinds)
    if not is_known or (layers and window is None) or (layers != by_rule and not has_layer_types):
        raise UnsupportedModelError(_not_supported(config, "layer_types"))
    return (window if layers else None), layers


def _not_supported(config: Mapping[str, Any], name: str) -> str:
    return f"config.json: {name} = {config[name]!r:.200} is not supported"
