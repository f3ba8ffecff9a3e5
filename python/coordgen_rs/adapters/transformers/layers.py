"""What drafts need of a model: a cache that can be cut anywhere, and positions that stand still.

In: a model's configuration. Out: an empty cache, the window of each kind of layer, and how many
tokens a draft may reach. What cannot be cut is refused here, before any token.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

from coordgen_rs.errors import OptionError

_KINDS = ("full_attention", "sliding_attention")
_OWN_LOOP = "use transformers' own loop"


def cache_name(takes: Callable[..., Any]) -> str:
    """What a method of a model calls its cache: `past_key_values`, or `cache` since 5.24.

    Args:
        takes: `forward`, say; code of a checkpoint may have the older name in any version.
    """
    return "cache" if "cache" in signature(takes).parameters else "past_key_values"


def new_cache(config: Any) -> tuple[Any, dict[str, int | None]]:
    """An empty cache, and the window of each kind of attention layer, None where it sees all.

    Layers with a window keep everything: transformers' own drop what has left the window, which
    a rejected draft would need again. Their masks see the window alone all the same.

    Args:
        config: A model's configuration.

    Raises:
        OptionError: A layer is of another kind: recurrent, chunked, sparse or shared.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    text_config = config.get_text_config(decoder=True)
    cache: Any = DynamicCache(config=config)
    windows: dict[str, int | None] = {}
    for number, layer in enumerate(cache.layers):
        kind = _kind(text_config, number)
        if kind not in _KINDS or type(layer) not in {DynamicLayer, DynamicSlidingWindowLayer}:
            raise OptionError(
                f"layer {number} of the model is of the kind {kind!r}, whose cache cannot be cut, "
                f"so drafts cannot be dropped: {_OWN_LOOP}"
            )
        window = layer.sliding_window if type(layer) is DynamicSlidingWindowLayer else None
        if windows.setdefault(kind, window) != window:
            raise OptionError(
                f"the model's layers have windows of {windows[kind]} and {window} tokens, but "
                f"drafts need one: {_OWN_LOOP}"
            )
        cache.layers[number] = DynamicLayer()
    return cache, windows or {_KINDS[0]: None}


def _kind(config: Any, number: int) -> str:
    """The kind of a layer; configurations that name none have one kind for all."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return str(kinds[number])
    own = config.per_layer_config[number] if hasattr(config, "per_layer_config") else config
    if getattr(own, "sliding_window", None) is not None:
        return "sliding_attention"
    chunked = getattr(own, "attention_chunk_size", None) is not None
    return "chunked_attention" if chunked else "full_attention"


def check_given_cache(cache: Any) -> None:
    """Refuse a cache that cannot be cut.

    Args:
        cache: What `generate` was given.

    Raises:
        OptionError: It is not a `DynamicCache` of layers that keep all of their tokens.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    layers = getattr(cache, "layers", [])
    kept = all(type(layer) is DynamicLayer for layer in layers)
    if type(cache) is not DynamicCache or not kept or getattr(cache, "offloading", False):
        named = sorted({type(layer).__name__ for layer in layers})
        raise OptionError(
            f"the given cache is a {type(cache).__name__} of {', '.join(named) or 'no layers'}, "
            "which cannot be cut: give a DynamicCache() without a configuration, or none"
        )


def draftable_len(config: Any, text_len: int) -> int:
    """Tokens of prompt and answer that drafts may reach; behind them, a step has one row.

    Learned positions end there, and frequencies that grow with the text ("dynamic") depend from
    there on on how many rows a step has.

    Args:
        config: A model's configuration.
        text_len: Most tokens of prompt and answer.

    Raises:
        OptionError: The text may grow past the place where "longrope" changes all positions.
    """
    text_config = config.get_text_config(decoder=True)
    most: int = getattr(text_config, "max_position_embeddings", None) or text_len
    for rope in _rope_parameters(text_config):
        original = rope.get("original_max_position_embeddings") or getattr(
            text_config, "original_max_position_embeddings", None
        )
        rope_type = rope.get("rope_type", "default")
        if rope_type == "longrope" and original and text_len > original:
            raise OptionError(
                f"prompt and answer may have {text_len} tokens, but behind {original} the model "
                "computes all positions anew (longrope): ask for fewer new tokens, or "
                f"{_OWN_LOOP}"
            )
        if "dynamic" in rope_type and original:
            most = min(most, original)
    return most


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of the model, or of each kind of its layers."""
    found = getattr(config, "rope_parameters", None) or {}
    by_kind = [value for value in found.values() if isinstance(value, dict)]
    return by_kind or [found]
