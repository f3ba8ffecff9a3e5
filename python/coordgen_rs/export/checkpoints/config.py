"""What the exporter must know of a model, read from a Hugging Face config.json.

In: the parsed config.json (and generation_config.json). Out: a `ModelConfig`.
Everything that the graphs cannot do is refused here by name, never ignored.
"""

from dataclasses import dataclass
from typing import Any

from coordgen_rs.bundle.manifest import MOST_OF_A_SIZE
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from coordgen_rs.export.checkpoints.families import Family, family_of
from coordgen_rs.export.checkpoints.rope import inverse_frequencies


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder: RMSNorm, RoPE, grouped queries, a gated feed-forward.

    The switches, those with defaults, are where families differ; the defaults are Llama's.
    """

    family: str
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    inv_freq: list[float]
    """`(head_dim / 2,)`, rope scaling included."""
    tied_head: bool
    """The output layer is the embedding."""
    qkv_bias: bool
    bos_token_id: int | None
    end_token_ids: list[int]
    qk_norm: bool = False
    """Queries and keys are normed head by head before they are rotated."""


def parse_config(config: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    """Reads a config.json and, where there is one, a generation_config.json (else an empty dict).

    Raises:
        UnsupportedModelError: The exporter cannot do this model.
        CheckpointError: A field is missing or malformed.
    """
    family, config = family_of(config)
    _refuse_options(config, family)
    hidden_size = _positive(config, "hidden_size")
    num_heads = _positive(config, "num_attention_heads")
    num_kv_heads = _positive(config, "num_key_value_heads", num_heads)
    head_dim = _positive(config, "head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise UnsupportedModelError(
            f"config.json: {num_heads} heads over {num_kv_heads} key/value heads of "
            f"dimension {head_dim} cannot be grouped and rotated"
        )
    vocab_size = _positive(config, "vocab_size")
    bos_token_ids = _token_ids("bos_token_id", config, generation, vocab_size)
    return ModelConfig(
        family=family.name,
        hidden_size=hidden_size,
        ffn_size=_positive(config, "intermediate_size"),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=_positive(config, "max_position_embeddings"),
        rms_norm_eps=_number(config, "rms_norm_eps"),
        inv_freq=inverse_frequencies(config, head_dim),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family.qkv_bias,
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        end_token_ids=_token_ids("eos_token_id", config, generation, vocab_size),
        qk_norm=family.qk_norm,
    )


def _refuse_options(config: dict[str, Any], family: Family) -> None:
    """Refuse options that change the arithmetic.

    Raises:
        UnsupportedModelError: There is one; the message names it.
    """
    layer_types = config.get("layer_types")
    refused = {
        "quantization_config": config.get("quantization_config") is not None,
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "layer_types": layer_types is not None and not _is_full_attention(layer_types),
        "attention_bias": not family.qkv_bias and bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "hidden_act": config.get("hidden_act", "silu") not in ("silu", "swish"),
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0) != 1.0,
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModelError(f"config.json: {name} = {config[name]} is not supported")


def _is_full_attention(layer_types: Any) -> bool:
    return isinstance(layer_types, list) and all(kind == "full_attention" for kind in layer_types)


def _positive(config: dict[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST_OF_A_SIZE:
        raise CheckpointError(f"config.json: {name} is {value!r}, expected 1 to {MOST_OF_A_SIZE}")
    return value


def _number(config: dict[str, Any], name: str) -> float:
    value = config.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise CheckpointError(f"config.json: {name} is {value!r:.60}, expected 0 to 1")
    return float(value)


def _token_ids(
    name: str, config: dict[str, Any], generation: dict[str, Any], vocab_size: int
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
