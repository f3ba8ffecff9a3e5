"""What GGUF metadata says of Gemma 4, as a Hugging Face config.json would say it.

In: the metadata. Out: the fields that `../gemma4.py` reads. Sizes of layers are lists where they
differ. Source: llama.cpp's `src/models/gemma4.cpp` and `conversion/gemma.py`.
"""

from typing import Any

from coordgen_rs.convert.containers.gguf.tensors import read_numbers
from coordgen_rs.convert.containers.gguf.values import GgufMetadata, num_layers
from coordgen_rs.convert.families.config.fields import FULL, PROPORTIONAL, SLIDING
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_STANDS_STILL = 1e29
"""What the frequency of a pair that does not turn is divided by, or more."""
_PATTERN, _KV_HEADS = "attention.sliding_window_pattern", "attention.head_count_kv"
_FFN, _SHARED = "feed_forward_length", "attention.shared_kv_layers"


def gemma4_options(metadata: GgufMetadata) -> dict[str, Any]:
    """The fields of Gemma 4.

    Raises:
        CheckpointError: A value is missing or malformed.
        UnsupportedModelError: Layers have sizes, or pairs frequencies, that are not known.
    """
    layers = num_layers(metadata)
    kinds = [SLIDING if it else FULL for it in _of_layers(metadata, _PATTERN, layers)]
    shared = metadata.number(_SHARED, 0)
    kv_heads = _by_kind(metadata, _KV_HEADS, kinds)
    is_shared = [layer >= layers - shared for layer in range(layers)]
    ffn = _by_kind(metadata, _FFN, is_shared)
    narrow, wide = ffn[is_shared[0]], ffn[is_shared[-1]]
    if wide not in (narrow, 2 * narrow):
        raise UnsupportedModelError(
            f"{metadata.header.path}: {_FFN} is {narrow}, and {wide} in the last layers, which is "
            "not supported"
        )
    head_dim = metadata.number("attention.key_length_swa", metadata.number("attention.key_length"))
    size = metadata.number("embedding_length_per_layer_input", 0)
    embedding = metadata.header.tensors.get("per_layer_token_embd.weight")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "intermediate_size": narrow,
        "use_double_wide_mlp": wide != narrow,
        "num_kv_shared_layers": shared,
        "layer_types": kinds,
        "sliding_window": metadata.number("attention.sliding_window"),
        "head_dim": head_dim,
        "global_head_dim": metadata.number("attention.key_length"),
        "num_key_value_heads": kv_heads.get(SLIDING, kv_heads.get(FULL)),
        "per_layer_config": {
            str(layer): {
                "head_dim": metadata.number("attention.key_length"),
                "num_key_value_heads": kv_heads[FULL],
            }
            for layer, kind in enumerate(kinds)
            if kind == FULL
        },
        "attention_k_eq_v": _keys_are_values(metadata, kinds, is_shared),
        "hidden_size_per_layer_input": size,
        "vocab_size_per_layer_input": None if embedding is None else embedding.shape[0],
        "rope_parameters": {
            FULL: _rotation(metadata),
            SLIDING: {
                "rope_type": "default",
                "rope_theta": metadata.number("rope.freq_base_swa", 10_000.0),
            },
        },
    }


def _of_layers(metadata: GgufMetadata, name: str, layers: int) -> list[Any]:
    """A value for each layer, which may be one for all.

    Raises:
        CheckpointError: There are more or fewer.
    """
    value = metadata.get(name)
    if not isinstance(value, list):
        return [value] * layers
    if len(value) != layers:
        raise CheckpointError(
            f"{metadata.header.path}: {metadata.architecture}.{name} has {len(value)} entries, "
            f"expected one for each of {layers} layers"
        )
    return value


def _by_kind(metadata: GgufMetadata, name: str, kinds: list[Any]) -> dict[Any, Any]:
    """The number that all layers of a kind have, by kind.

    Raises:
        CheckpointError: One is no number.
        UnsupportedModelError: Layers of a kind differ.
    """
    found: dict[Any, Any] = {}
    for layer, value in enumerate(_of_layers(metadata, name, len(kinds))):
        size = metadata.of(name, value)
        if found.setdefault(kinds[layer], size) != size:
            raise UnsupportedModelError(
                f"{metadata.header.path}: {metadata.architecture}.{name} is {size} in layer "
                f"{layer}, but {found[kinds[layer]]} in others of its kind, which is not supported"
            )
    return found


def _keys_are_values(metadata: GgufMetadata, kinds: list[str], is_shared: list[bool]) -> bool:
    """Whether layers without a window have no values of their own.

    Raises:
        CheckpointError: Some have, or a layer with a window has none.
    """
    tensors, lacking = metadata.header.tensors, set[tuple[str, bool]]()
    for layer, kind in enumerate(kinds):
        if not is_shared[layer]:
            lacking.add((kind, f"blk.{layer}.attn_v.weight" not in tensors))
    if (SLIDING, True) in lacking or {(FULL, True), (FULL, False)} <= lacking:
        raise CheckpointError(f"{metadata.header.path} lacks tensors blk.N.attn_v.weight")
    return (FULL, True) in lacking


def _rotation(metadata: GgufMetadata) -> dict[str, Any]:
    """The rotation in layers without a window: what frequencies are divided by, 1 or much.

    Raises:
        CheckpointError: Frequencies are missing.
        UnsupportedModelError: They are scaled in another way.
    """
    factors = read_numbers(metadata.header, "rope_freqs.weight")
    pairs = sum(factor == 1 for factor in factors)
    others = factors[pairs:]
    kind = metadata.get("rope.scaling.type", "linear")
    if factors[:pairs] != [1.0] * pairs or min(others, default=_STANDS_STILL) < _STANDS_STILL:
        raise UnsupportedModelError(
            f"{metadata.header.path}: rope_freqs.weight has factors other than 1 and 1e30"
        )
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{metadata.header.path}: rope.scaling.type is {kind!r:.60}, which is not supported"
        )
    # Half a pair more, so that what is rounded down are as many.
    share = min(1.0, (pairs + 0.5) / len(factors))
    return {
        "rope_type": PROPORTIONAL,
        "partial_rotary_factor": share,
        "rope_theta": metadata.number("rope.freq_base"),
    }
