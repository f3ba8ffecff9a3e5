"""Gemma 4: what its files say, in Llama's words, and what only its models have.

In: the fields of a config.json of the language model, or of a GGUF file. Out: the same with what
they leave unsaid; the keys and values of each layer, embeddings of layers, and other fields of a
`ModelConfig`. What the graphs cannot do is refused by name.
Layers without a window have heads of another size, and perhaps fewer of keys and values; the last
layers read those of earlier ones. Sources: transformers' `models/gemma4`, llama.cpp's
`src/models/gemma4.cpp` and `conversion/gemma.py`.
"""

from collections.abc import Mapping
from typing import Any

from coordgen_rs.bundle.layers import LayerCache
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.families.config_json import (
    FULL,
    SLIDING,
    check_heads,
    every_layer,
    flag,
    layer_count,
    layer_kinds,
    number,
    per_layer,
    positive,
    refuse_field,
    refused,
)
from coordgen_rs.convert.families.family import Family
from coordgen_rs.convert.families.gguf import GEMMA_NORMS, HEAD_NORMS, Gguf, kinds_by_windows
from coordgen_rs.convert.families.rope import PROPORTIONAL
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": True,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}
"""What a config.json means by leaving a field out."""
_UNIFIED: dict[str, Any] = {
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
"""What it means otherwise where pictures have no model of their own."""

_MODEL = "Gemma 4"
_PATTERN = 6
"""Each of so many layers is without a window, where nothing tells which."""
_ROTATIONS = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}
_OVERRIDES = ("head_dim", "num_key_value_heads")
"""What layers may have of their own."""
_LEAST_CAP, _MOST_CAP = 1e-3, 1e6
_STANDS_STILL = 1e29
"""What the frequency of a pair that does not turn is divided by, or more."""
_GGUF_KV_HEADS = "attention.head_count_kv"
_GGUF_FFN, _GGUF_SHARED = "feed_forward_length", "attention.shared_kv_layers"


def _gemma4_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Gemma 4 with the kinds of all layers and their rotations.

    Raises:
        UnsupportedModelError: Layers have experts, or are rotated in a way that is not known.
        CheckpointError: A field is malformed.
    """
    if flag(config, "enable_moe_block", False):
        raise UnsupportedModelError(
            f"config.json: enable_moe_block = True: mixtures of experts are not supported in "
            f"{_MODEL}"
        )
    layers = layer_count(config)
    kinds = per_layer(config, "layer_types", layers)
    if kinds is None:
        kinds = [FULL if (layer + 1) % _PATTERN == 0 else SLIDING for layer in range(layers)]
    kinds = layer_kinds(_MODEL, kinds, {FULL: FULL, SLIDING: SLIDING})
    rotations = config.get("rope_parameters") or _ROTATIONS
    if not isinstance(rotations, dict) or not {FULL, SLIDING} <= set(rotations):
        refuse_field(config, "rope_parameters", f"{FULL} and {SLIDING}")
    for kind in (FULL, SLIDING):
        rotation = rotations[kind]
        if not isinstance(rotation, dict):
            raise CheckpointError(f"config.json: rope_parameters: {kind} is {rotation!r:.60}")
        is_part = rotation.get("partial_rotary_factor") not in (None, 1)
        refused(
            rotation,
            _MODEL,
            "partial_rotary_factor",
            is_part and (kind == SLIDING or rotation.get("rope_type") != "proportional"),
        )
    # Pictures alone see what comes behind them.
    sees_behind = config.get("use_bidirectional_attention")
    return {
        **config,
        "layer_types": [*kinds[:-1], FULL],  # the last is, whatever is told
        "rope_parameters": rotations,
        "use_bidirectional_attention": None if sees_behind == "vision" else sees_behind,
    }


def _gemma4_options(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """What only Gemma 4 has, by field of `ModelConfig`.

    Raises:
        UnsupportedModelError: Heads cannot be grouped, or embeddings of layers know other tokens.
        CheckpointError: A field is malformed.
    """
    kinds, caches = config["layer_types"], _caches(config)
    size = config.get("hidden_size_per_layer_input") or 0
    if size:
        size = positive(config, "hidden_size_per_layer_input")
        refused(
            config,
            _MODEL,
            "vocab_size_per_layer_input",
            positive(config, "vocab_size_per_layer_input") != positive(config, "vocab_size"),
        )
    has_cap = config.get("final_logit_softcapping") is not None
    sharing = [layer for layer, cache in enumerate(caches) if cache.written_by != layer]
    keys_are_values = flag(config, "attention_k_eq_v", False)
    return {
        "embedding_scale": hidden_size**0.5,
        "attention_scale": 1.0,
        "caches": caches,
        "value_norm": True,
        "layer_scalars": True,
        "keys_are_values": frozenset(
            layer for layer, kind in enumerate(kinds) if keys_are_values and kind == FULL
        ),
        "wide_ffn_layers": frozenset(sharing if flag(config, "use_double_wide_mlp", False) else ()),
        "per_layer_size": size,
        "logits_cap": number(config, "final_logit_softcapping", _LEAST_CAP, _MOST_CAP)
        if has_cap
        else None,
    }


def _caches(config: Mapping[str, Any]) -> tuple[LayerCache, ...]:
    """The keys and values that each layer reads.

    Raises:
        UnsupportedModelError: Heads cannot be grouped and rotated.
        CheckpointError: A field is malformed, or a layer shares what no layer has.
    """
    kinds, layers = config["layer_types"], layer_count(config)
    shared = config.get("num_kv_shared_layers") or 0
    if not isinstance(shared, int) or not 0 <= shared < layers:
        refuse_field(config, "num_kv_shared_layers", f"0 to {layers - 1}")
    sizes = [_sizes(config, layer) for layer in range(layers)]
    caches: list[LayerCache] = []
    writer: dict[str, int] = {}
    for layer, kind in enumerate(kinds):
        if layer < layers - shared:
            writer[kind] = layer
        if kind not in writer:
            raise CheckpointError(
                f"config.json: num_kv_shared_layers is {shared}, but no layer before them is of "
                f"the kind {kind!r:.60}, as layer {layer} is"
            )
        caches.append(LayerCache(*sizes[layer], writer[kind]))
        if sizes[layer] != sizes[writer[kind]] or sizes[layer][1] != sizes[kinds.index(kind)][1]:
            raise UnsupportedModelError(
                f"config.json: layer {layer} of the kind {kind!r:.60} has {sizes[layer][0]} "
                f"key/value heads of dimension {sizes[layer][1]}, others have other ones"
            )
    return tuple(caches)


def _sizes(config: Mapping[str, Any], layer: int) -> tuple[int, int]:
    """Heads of keys and values of a layer, and their dimension.

    Raises:
        UnsupportedModelError: They cannot be grouped and rotated.
        CheckpointError: A field is malformed.
    """
    heads = positive(config, "num_attention_heads")
    own = {"head_dim": config.get("head_dim"), **_overrides(config, layer)}
    own.setdefault("num_key_value_heads", config.get("num_key_value_heads"))
    kv_heads = positive(own, "num_key_value_heads", heads)
    head_dim = positive(own, "head_dim")
    check_heads(heads, kv_heads, head_dim)
    return kv_heads, head_dim


def _overrides(config: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """Sizes of a layer that are not those of the model: newer files have them layer by layer.

    Raises:
        UnsupportedModelError: Something else is of the layer's own.
        CheckpointError: It is no object.
    """
    listed = config.get("per_layer_config")
    if listed is None:
        if config["layer_types"][layer] != FULL:
            return {}
        found = {"head_dim": positive(config, "global_head_dim", 512)}
        if config.get("num_global_key_value_heads") and flag(config, "attention_k_eq_v", False):
            found["num_key_value_heads"] = positive(config, "num_global_key_value_heads")
        return found
    own = None
    if isinstance(listed, dict):  # transformers writes "05" where there are ten layers or more
        own = {str(key).lstrip("0") or "0": it for key, it in listed.items()}.get(str(layer), {})
    if not isinstance(own, dict):
        raise CheckpointError(f"config.json: per_layer_config is {listed!r:.60}")
    if not set(own) <= set(_OVERRIDES):
        raise UnsupportedModelError(
            f"config.json: per_layer_config: layer {layer} has {own!r:.60}, only "
            f"{' and '.join(_OVERRIDES)} are supported"
        )
    return own


def _gguf_fields(metadata: GgufMetadata) -> dict[str, Any]:
    """The fields of Gemma 4.

    Raises:
        CheckpointError: A value is missing or malformed.
        UnsupportedModelError: Layers have sizes, or pairs frequencies, that are not known.
    """
    layers = metadata.layers
    kinds = kinds_by_windows(metadata)
    shared = metadata.number(_GGUF_SHARED, 0)
    kv_heads = _by_kind(metadata, _GGUF_KV_HEADS, kinds)
    is_shared = [layer >= layers - shared for layer in range(layers)]
    ffn = _by_kind(metadata, _GGUF_FFN, is_shared)
    narrow, wide = ffn[is_shared[0]], ffn[is_shared[-1]]
    if wide not in (narrow, 2 * narrow):
        why = f", and {wide} in the last layers, which is not supported"
        raise metadata.unsupported(_GGUF_FFN, narrow, why)
    head_dim = metadata.number("attention.key_length_swa", metadata.number("attention.key_length"))
    embedding = metadata.header.tensors.get("per_layer_token_embd.weight")
    return {
        "intermediate_size": narrow,
        "use_double_wide_mlp": wide != narrow,
        "layer_types": kinds,
        "head_dim": head_dim,
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
        "vocab_size_per_layer_input": None if embedding is None else embedding.shape[0],
        "rope_parameters": {
            FULL: _gguf_rotation(metadata),
            SLIDING: {
                "rope_type": "default",
                "rope_theta": metadata.number("rope.freq_base_swa", 10_000.0),
            },
        },
    }


def _by_kind(metadata: GgufMetadata, name: str, kinds: list[Any]) -> dict[Any, Any]:
    """The number that all layers of a kind have, by kind.

    Raises:
        CheckpointError: One is no number.
        UnsupportedModelError: Layers of a kind differ.
    """
    found: dict[Any, Any] = {}
    for layer, value in enumerate(metadata.by_layer(name, len(kinds))):
        size = metadata.of(name, value)
        if found.setdefault(kinds[layer], size) != size:
            others = f"{found[kinds[layer]]} in others of its kind, which is not supported"
            raise metadata.unsupported(name, size, f" in layer {layer}, but {others}")
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


def _gguf_rotation(metadata: GgufMetadata) -> dict[str, Any]:
    """The rotation in layers without a window: what frequencies are divided by, 1 or much.

    Raises:
        CheckpointError: Frequencies are missing.
        UnsupportedModelError: They are scaled in another way.
    """
    factors = metadata.vector("rope_freqs.weight")
    pairs = sum(factor == 1 for factor in factors)
    others = factors[pairs:]
    kind = metadata.get("rope.scaling.type", "linear")
    if factors[:pairs] != [1.0] * pairs or min(others, default=_STANDS_STILL) < _STANDS_STILL:
        raise UnsupportedModelError(
            f"{metadata.header.path}: rope_freqs.weight has factors other than 1 and 1e30"
        )
    if kind not in ("none", "linear"):
        raise metadata.unsupported("rope.scaling.type", kind, ", which is not supported")
    # Half a pair more, so that what is rounded down are as many.
    share = min(1.0, (pairs + 0.5) / len(factors))
    return {
        "rope_type": PROPORTIONAL,
        "partial_rotary_factor": share,
        "rope_theta": metadata.number("rope.freq_base"),
    }


def _family(name: str, architecture: str, inside: tuple[str, str], **own: Any) -> Family:
    """One of the families of Gemma 4."""
    return Family(
        name,
        architecture,
        fields=_gemma4_fields,
        inside=inside,
        qk_norm=True,
        has_layer_types=True,
        window_rule=every_layer,
        options=_gemma4_options,
        rotates_by_kind=True,
        output_norms=True,
        activation="gelu_tanh",
        caps_logits=True,
        **own,
    )


GEMMA4_FAMILIES = (
    _family(
        "gemma4",
        "Gemma4ForCausalLM",
        ("Gemma4ForConditionalGeneration", "gemma4_text"),
        defaults=_DEFAULTS,
        assistant="Gemma4AssistantForCausalLM",
        gguf=(
            Gguf(
                "gemma4",
                {
                    **HEAD_NORMS,
                    **GEMMA_NORMS,
                    "inp_gate": "per_layer_input_gate",
                    "proj": "per_layer_projection",
                    "post_norm": "post_per_layer_input_norm",
                },
                keys={
                    "num_kv_shared_layers": (_GGUF_SHARED, 0),
                    "sliding_window": "attention.sliding_window",
                    "global_head_dim": "attention.key_length",
                    "hidden_size_per_layer_input": ("embedding_length_per_layer_input", 0),
                },
                fields=_gguf_fields,
                whole_names={"layer_output_scale.weight": "layer_scalar"},
                model_names={
                    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
                    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
                    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
                },
            ),
        ),
    ),
    _family(
        "gemma4_unified",
        "Gemma4UnifiedForCausalLM",
        ("Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text"),
        defaults={**_DEFAULTS, **_UNIFIED},
        assistant="Gemma4UnifiedAssistantForCausalLM",
    ),
)
