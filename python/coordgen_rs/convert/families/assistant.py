"""The drafter that is published for a model of Gemma 4 (`gemma4_assistant`), beside its target.

In: its directory, and the target's checkpoint. Out: a checkpoint whose layers are further layers of
the target: they have queries alone, and read the keys and values that the target's last layer of
their kind has written. What does not fit the target is refused by name.
Source: transformers' `models/gemma4_assistant` and `models/gemma4_unified_assistant`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from coordgen_rs.bundle.layers import LayerCache
from coordgen_rs.convert.containers.hugging_face import open_weights, read_json_file, read_tokenizer
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.config_json import flag, positive, refuse_field
from coordgen_rs.convert.families.family import Family
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.table import FAMILIES, parse_config
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_TARGETS = {family.assistant: family for family in FAMILIES if family.assistant}
"""The families that have such drafters, by the architecture of these."""
_NUM_CLUSTERS, _CHOSEN_CLUSTERS = 2048, 32
"""What a config.json means by leaving them out."""
_ORDERING, _CENTROIDS = "masked_embedding.token_ordering", "masked_embedding.centroids.weight"
_INTEGERS: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "I32": np.dtype("<i4")}
_MUST_BE_OFF = ("enable_moe_block", "use_double_wide_mlp")
_LARGEST_DIFFERENCE = 1e-4
"""Of frequencies of a rotation, relatively: GGUF files hold factors in float32."""


@dataclass(frozen=True)
class Clusters:
    """Tokens that are scored together: those of the likeliest clusters."""

    num: int
    chosen: int
    centroids: Tensor
    """`(num, hidden_size)`: what a state is multiplied by to score a cluster."""
    ordering: NDArray[np.uint32]
    """`(vocab_size,)`, cluster after cluster."""


@dataclass(frozen=True)
class Assistant:
    """An opened drafter that fits its target."""

    path: Path
    source: Checkpoint
    """Its layers have the numbers behind the target's, which its configuration counts, too."""
    num_layers: int
    before: Tensor
    """From an embedded token and a state of the target, one after the other, to its own size."""
    behind: Tensor
    """Back to the size of the target's states."""
    clusters: Clusters | None
    """None where every token is scored."""

    @property
    def layers(self) -> range:
        """The numbers of its layers."""
        return range(self.source.config.num_layers - self.num_layers, self.source.config.num_layers)

    @property
    def reads(self) -> list[int]:
        """The target's layers whose keys and values it reads, ascending."""
        return sorted({self.source.config.cache_of(layer).written_by for layer in self.layers})

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Within the block, errors name the drafter, and its layers by their own numbers.

        Raises:
            CheckpointError: Whatever the block raises.
        """
        with _named(self.path):
            try:
                yield
            except CheckpointError as error:
                shown = str(error)
                for own, number in enumerate(self.layers):
                    shown = shown.replace(f"model.layers.{number}.", f"model.layers.{own}.")
                raise type(error)(shown) from error


def open_assistant(path: Path, target: Checkpoint) -> Assistant:
    """Open the directory of a drafter for a target.

    Raises:
        UnsupportedModelError: It is no drafter that is known, or one that the graphs cannot do.
        CheckpointError: Something is missing or damaged, or it was made for another target.
    """
    with _named(path):
        config = read_json_file(path / "config.json")
        family = _target_family(config)
        _check_sizes(config, target.config)
        own = _parsed(config, family.architecture)
        first = target.config.num_layers
        found = replace(
            own,
            num_layers=first + own.num_layers,
            caches=(*map(target.config.cache_of, range(first)), *_shared(own, target.config)),
            window_layers=frozenset(first + it for it in own.window_layers),
            # Its row stands behind all that it sees, and sees as far as transformers' does.
            window=None if own.window is None else own.window + 1,
            keys_are_values=frozenset(),
            logits_cap=None,
        )
        tensors = _numbered(open_weights(path), own.num_layers, first)
        source = Checkpoint(found, tensors, partial(read_tokenizer, path))
        source.output_tensor()  # its size is asked for before it is written
        if (path / "tokenizer.json").is_file():
            _check_same_tokens(source, target)
        backbone, hidden = target.config.hidden_size, own.hidden_size
        return Assistant(
            path,
            source,
            own.num_layers,
            source.tensor("pre_projection.weight", hidden, 2 * backbone),
            source.tensor("post_projection.weight", backbone, hidden),
            _clusters(config, source),
        )


def check_config(path: Path) -> None:
    """Check that a directory's config.json is that of a drafter.

    Raises:
        UnsupportedModelError: It is of something else.
        CheckpointError: It is missing or damaged.
    """
    with _named(path):
        _target_family(read_json_file(path / "config.json"))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Within the block, errors name the drafter: the target's files have the same names.

    Raises:
        CheckpointError: Whatever the block raises.
    """
    try:
        yield
    except CheckpointError as error:
        shown = str(error)
        raise error if str(path) in shown else type(error)(f"{path}: {shown}") from error


def _target_family(config: dict[str, Any]) -> Family:
    """The family that a drafter's config.json drafts for.

    Raises:
        UnsupportedModelError: It is of no drafter that is known.
    """
    architectures = config.get("architectures")
    for known, family in _TARGETS.items():
        if architectures == [known]:
            return family
    raise UnsupportedModelError(
        f"config.json: architectures {architectures!r:.80} is no drafter, only "
        f"{', '.join(_TARGETS)}"
    )


def _check_sizes(config: dict[str, Any], target: ModelConfig) -> None:
    """Check that it was made for states and tokens like the target's.

    Raises:
        CheckpointError: It was not; the message names what differs.
    """
    names = [family.name for family in _TARGETS.values()]
    if target.family not in names:
        raise CheckpointError(f"it drafts for {' and '.join(names)}, not for {target.family}")
    text = config.get("text_config")
    if not isinstance(text, dict):
        refuse_field(config, "text_config", "an object")
    sizes = {
        "backbone_hidden_size": (config, target.hidden_size, "hidden_size"),
        "vocab_size": (text, target.vocab_size, "vocab_size"),
    }
    for name, (where, expected, its) in sizes.items():
        if (size := positive(where, name)) != expected:
            raise CheckpointError(
                f"config.json: {name} is {size}, but the target's {its} is {expected}: it drafts "
                "for another model"
            )


def _parsed(config: dict[str, Any], architecture: str) -> ModelConfig:
    """Its layers as those of a model with keys and values of their own.

    Raises:
        UnsupportedModelError: They have what a drafter has not.
        CheckpointError: A field is malformed.
    """
    text = dict(config["text_config"])
    layers = positive(text, "num_hidden_layers")
    shared = text.get("num_kv_shared_layers") or layers
    if shared != layers:
        raise UnsupportedModelError(
            f"config.json: num_kv_shared_layers is {shared!r:.60}, expected all {layers} layers"
        )
    for name in _MUST_BE_OFF:
        if flag(text, name, False):
            raise UnsupportedModelError(f"config.json: {name} is true, which no drafter has")
    outside = {"tie_word_embeddings": flag(config, "tie_word_embeddings", True)}
    parsed = parse_config(
        {**text, **outside, "num_kv_shared_layers": 0, "architectures": [architecture]}, {}
    )
    if parsed.per_layer_size:
        raise UnsupportedModelError(
            f"config.json: hidden_size_per_layer_input is {parsed.per_layer_size}, expected 0"
        )
    return parsed


def _shared(own: ModelConfig, target: ModelConfig) -> Iterator[LayerCache]:
    """What each of its layers reads: what the target's last layer of its kind has written.

    Raises:
        CheckpointError: The target has no such layer, or heads and rotations are others.
    """
    rotations = {False: "inv_freq", True: "window_inv_freq"}
    for layer in range(own.num_layers):
        is_windowed = layer in own.window_layers
        kind = "sliding_attention" if is_windowed else "full_attention"
        writers = [
            number
            for number in range(target.num_layers)
            if (number in target.window_layers) == is_windowed and not target.shares_keys(number)
        ]
        if not writers:
            raise CheckpointError(
                f"config.json: layer {layer} of {own.num_layers} is of the kind {kind}, which no "
                "layer of the target is: it drafts for another model"
            )
        found, its = own.cache_of(layer), target.cache_of(writers[-1])
        sizes = (found.num_kv_heads, found.head_dim), (its.num_kv_heads, its.head_dim)
        if sizes[0] != sizes[1]:
            raise CheckpointError(
                f"config.json: layer {layer} of the kind {kind} has {found.num_kv_heads} key/value "
                f"heads of dimension {found.head_dim}, the target's {its.num_kv_heads} of "
                f"{its.head_dim}: it drafts for another model"
            )
        name = rotations[is_windowed and own.window_inv_freq is not None]
        one, other = getattr(own, name) or [], getattr(target, name) or []
        if len(one) != len(other) or not np.allclose(one, other, rtol=_LARGEST_DIFFERENCE, atol=0):
            raise CheckpointError(
                f"config.json: rope_parameters: layers of the kind {kind} are rotated otherwise "
                "than the target's: it drafts for another model"
            )
        yield its


def _numbered(tensors: dict[str, Tensor], layers: int, first: int) -> dict[str, Tensor]:
    """Tensors whose layers are counted from `first` on."""
    prefixes = {f"model.layers.{it}.": f"model.layers.{first + it}." for it in range(layers)}
    found = {}
    for name, tensor in tensors.items():
        prefix = next((it for it in prefixes if name.startswith(it)), "")
        found[prefixes.get(prefix, "") + name.removeprefix(prefix)] = tensor
    return found


def _check_same_tokens(source: Checkpoint, target: Checkpoint) -> None:
    """Check that every token of its tokenizer has the id that it has in the target's.

    Raises:
        CheckpointError: One has another; the message names the first.
    """
    one, other = (Tokenizer.from_str(it.read_tokenizer()).get_vocab() for it in (source, target))
    if one == other:
        return
    token = min(it for it in one.keys() | other.keys() if one.get(it) != other.get(it))
    raise CheckpointError(
        f"tokenizer.json: {token!r:.40} has the id {one.get(token)}, in the target's "
        f"{other.get(token)}: it drafts for another model"
    )


def _clusters(config: dict[str, Any], source: Checkpoint) -> Clusters | None:
    """Its clusters of tokens; None where every token is scored.

    Raises:
        CheckpointError: They are not all tokens, or not of one size.
    """
    if not flag(config, "use_ordered_embeddings", False):
        return None
    vocab, hidden = source.config.vocab_size, source.config.hidden_size
    num = positive(config, "num_centroids", _NUM_CLUSTERS)
    chosen = positive(config, "centroid_intermediate_top_k", _CHOSEN_CLUSTERS)
    if vocab % num or chosen > num:
        raise CheckpointError(
            f"config.json: {chosen} of {num} centroids do not fit a vocabulary of {vocab} tokens"
        )
    stored = source.tensor(_ORDERING, vocab)
    dtype = _INTEGERS.get(stored.stored_type or "")
    if dtype is None or stored.read_bytes is None:
        raise CheckpointError(
            f"{_ORDERING} has the type {stored.stored_type}, expected {', '.join(_INTEGERS)}"
        )
    ordering = stored.read_bytes(0, vocab * dtype.itemsize).view(dtype)
    if not np.array_equal(np.sort(ordering), np.arange(vocab)):
        raise CheckpointError(f"{_ORDERING} does not hold each of {vocab} token ids once")
    centroids = source.tensor(_CENTROIDS, num, hidden)
    return Clusters(num, chosen, centroids, ordering.astype(np.uint32))
