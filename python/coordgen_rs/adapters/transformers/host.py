"""A causal language model of transformers as a host: it verifies chains, and trees by 4-D masks.

Drafts need a cache that can be cut anywhere, and positions that stand still: of a model's
configuration an empty cache, the window of each kind of layer, and how many tokens a draft may
reach. What cannot be cut is refused here, before any token.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError

if TYPE_CHECKING:
    import torch


_TAKE_CHAINS = "verify chains: Drafted(trees=False), or takes_trees=False"


class TransformersHost:
    """A causal language model of transformers.

    Args:
        model: An `AutoModelForCausalLM`.
        logits_processor: Called with the text and a row of scores; None for none.
        do_sample: Whether tokens are drawn, or the likeliest is taken.
        takes_trees: Whether to verify trees; they need a model that adds a 4-D mask to its scores,
            which is tried once for each model.
        capacity: Most tokens of prompt and answer.
        cache: A `DynamicCache` to go on with, whose tokens the prompt begins with; None for a new
            one at each `clear`.

    Attributes:
        takes_trees: The `takes_trees` argument.
        commit: Same as in `Host`.
        capacity: Same as in `Host`.
        vocab_size: Same as in `Host`.

    Raises:
        OptionError: The model's cache cannot be cut, its attention takes no trees, or the given
            cache cannot be cut.
    """

    def __init__(
        self,
        model: Any,
        *,
        logits_processor: Any = None,
        do_sample: bool = False,
        takes_trees: bool = True,
        capacity: int | None = None,
        cache: Any = None,
    ) -> None:
        self._model, self._processor, self._do_sample = model, logits_processor, do_sample
        config = model.config.get_text_config(decoder=True)
        if model.config.is_encoder_decoder:
            raise OptionError("the model has an encoder: drafts need a model of text alone")
        if cache is not None:
            check_given_cache(cache)
        self._given, self._num_given = cache, 0 if cache is None else cache.get_seq_length()
        self.takes_trees = takes_trees
        self.commit = "compact"
        self.vocab_size: int = config.vocab_size
        self.capacity: int = capacity or config.max_position_embeddings
        self._takes = frozenset(signature(model.forward).parameters)
        self._cache_name = cache_name(model.forward)
        self._tree: tuple[list[int], list[int]] = ([], [])
        self.clear()
        if takes_trees:
            _check_trees(model)

    def clear(self) -> None:
        """Forget all tokens, but those of a given cache.

        Raises:
            OptionError: The model's cache cannot be cut.
        """
        self._cache, self._windows = new_cache(self._model.config)
        if self._given is not None:
            self._cache = self._given
            self.cut(self._num_given)
        self._text: list[int] = []

    def cut(self, num_tokens: int) -> None:
        """Forget all but the first tokens, whether committed or of an interrupted step."""
        num_dropped = self._cache.get_seq_length() - num_tokens
        if num_dropped > 0:
            self._cache.crop(-num_dropped)

    def read(self, token_ids: NDArray[np.uint32]) -> None:
        """Compute and commit a prompt, in one run; a given cache holds its first tokens."""
        self._logits = self._forward(token_ids[self._num_given :], None, None, logits_to_keep=1)
        self._text += token_ids.tolist()
        self._tree = ([], [])

    def run(self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
        """Compute a tree; a chain needs no mask."""
        mask = positions = None
        if not np.array_equal(parents[1:], np.arange(len(token_ids) - 1)):
            mask, positions = self._masks(parents)
        self._tree = (token_ids.tolist(), parents.tolist())
        self._logits = self._forward(token_ids, mask, positions, logits_to_keep=0)

    def choose(self, row: int) -> int:
        """What transformers chooses: processors first, then the likeliest or one that is drawn."""
        import torch

        scores = self._logits[row : row + 1]
        if self._processor:
            scores = self._processor(self._text_up_to(row), scores.clone())
        if not self._do_sample:
            return int(scores.argmax())
        return int(torch.multinomial(scores.softmax(dim=-1), num_samples=1))

    def scores(self, row: int) -> NDArray[np.float32]:
        """The logits after a node, before any processor, `(vocab_size,) f32`."""
        scores: NDArray[np.float32] = self._logits[row].cpu().numpy()
        return scores

    def keep(self, rows: Sequence[int]) -> None:
        """Keep a path: its keys and values move together, and the others are cut off."""
        import torch

        length, token_ids = len(self._text), self._tree[0]
        if list(rows) != list(range(len(rows))):
            moved = torch.tensor([length + row for row in rows])
            layers: Any = self._cache.layers
            for layer in layers:
                for held in (layer.keys, layer.values):
                    kept = held[:, :, moved.to(held.device)]
                    held[:, :, length : length + len(rows)] = kept
        self.cut(length + len(rows))
        self._text += [token_ids[row] for row in rows]

    def _masks(self, parents: NDArray[np.uint32]) -> tuple[Any, Any]:
        """What each node sees, for each kind of layer, and the nodes' positions."""
        import torch

        num_nodes, length = len(parents), len(self._text)
        sees = np.eye(num_nodes, length + num_nodes, length, dtype=bool)
        sees[:, :length] = True
        depths = np.zeros(num_nodes, np.int64)
        for node in range(1, num_nodes):
            sees[node] |= sees[parents[node]]
            depths[node] = depths[parents[node]] + 1
        places = np.concatenate([np.arange(length), length + depths])
        away = (length + depths)[:, None] - places
        least = torch.finfo(self._model.dtype).min
        masks = {}
        for kind, window in self._windows.items():
            seen = torch.from_numpy(sees if window is None else sees & (away < window))
            masks[kind] = torch.where(seen, 0.0, least).to(self._model.dtype)[None, None]
        positions = torch.from_numpy(length + depths)[None]
        return masks if len(masks) > 1 else next(iter(masks.values())), positions

    def _text_up_to(self, row: int) -> "torch.Tensor":
        import torch

        token_ids, parents = self._tree
        path = token_ids[row : row + 1]  # none behind the prompt
        while row:
            row = parents[row]
            path.append(token_ids[row])
        return torch.tensor([self._text + path[::-1]], device=self._model.device)

    def _forward(
        self, token_ids: NDArray[np.uint32], mask: Any, positions: Any, *, logits_to_keep: int
    ) -> Any:
        import torch

        given = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
        if "logits_to_keep" in self._takes:
            given["logits_to_keep"] = logits_to_keep
        given["input_ids"] = torch.from_numpy(token_ids.astype(np.int64))[None]
        with torch.no_grad():
            done = self._model(
                **{name: _on(value, self._model.device) for name, value in given.items()},
                **{self._cache_name: self._cache},
            )
        return done.logits[0, -logits_to_keep:].float()


def _on(value: Any, device: Any) -> Any:
    """A tensor, or those of a dict, on a device; anything else as it is."""
    if isinstance(value, dict):
        return {key: each.to(device) for key, each in value.items()}
    return value.to(device) if hasattr(value, "to") else value


_TREES_SEEN: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Models that see trees, with the attention that was tried."""

_PROBE = np.array([1, 2, 3], np.uint32)


def _check_trees(model: Any) -> None:
    """Refuse trees where a row does not see its own path alone; tried once for each model.

    Two siblings behind a token: the second must say what it says without the first, and not what it
    says behind it.

    Raises:
        OptionError: The model's attention takes no 4-D mask, or ignores it.
    """
    attention = str(getattr(model.config, "_attn_implementation", None))
    if _TREES_SEEN.get(model) == attention:
        return
    if "position_ids" not in signature(model.forward).parameters:
        raise OptionError(f"the model takes no positions, so no trees: {_TAKE_CHAINS}")
    try:
        siblings = _last_scores(model, _PROBE, [0, 0, 0])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise OptionError(
            f"the model's attention ({attention}) takes no 4-D mask: {_TAKE_CHAINS}"
        ) from error
    alone = _last_scores(model, _PROBE[[0, 2]], [0, 0])
    behind = _last_scores(model, _PROBE, [0, 0, 1])
    if not np.abs(siblings - alone).max() <= 0.1 * np.abs(siblings - behind).max():
        raise OptionError(
            f"the model's attention ({attention}) does not follow a 4-D mask: {_TAKE_CHAINS}"
        )
    _TREES_SEEN[model] = attention


def _last_scores(model: Any, token_ids: NDArray[np.uint32], parents: list[int]) -> Any:
    """What a model says after the last node of a tree behind one token."""
    host = TransformersHost(model, takes_trees=False, capacity=len(token_ids) + 1)
    host.read(np.zeros(1, np.uint32))
    host.run(token_ids, np.array(parents, np.uint32))
    return host.scores(len(token_ids) - 1)


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
