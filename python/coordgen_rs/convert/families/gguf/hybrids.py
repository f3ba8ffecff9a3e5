"""What GGUF metadata says of recurrent layers, as a Hugging Face config.json would say it.

In: the metadata. Out: the fields that `../hybrids.py` reads. Source: llama.cpp's `src/models/`.
"""

from typing import Any

from coordgen_rs.convert.containers.gguf.values import GgufMetadata, num_blocks
from coordgen_rs.convert.families.config.fields import FULL, RECURRENT
from coordgen_rs.errors import CheckpointError, UnsupportedModelError


def lfm2_options(metadata: GgufMetadata) -> dict[str, Any]:
    """LFM2, whose metadata holds the final size of the feed-forward.

    Raises:
        CheckpointError: A value is missing or no number.
        UnsupportedModelError: Attention has a window.
    """
    if metadata.number("attention.sliding_window", 0):
        raise UnsupportedModelError(
            f"{metadata.header.path}: attention.sliding_window is "
            f"{metadata.get('attention.sliding_window')!r:.60}, which is not supported in LFM2"
        )
    return {
        "layer_types": _kinds_by_heads(metadata, "conv"),
        "conv_L_cache": metadata.number("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
        "norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
    }


def qwen35_options(metadata: GgufMetadata, layers: int, head_dim: int) -> dict[str, Any]:
    """Qwen3.5, whose layers are told by a list, or by how many lie between those with attention.

    Raises:
        CheckpointError: A value is missing, no number, or not divided by another.
    """
    inner, heads = "ssm.inner_size", "ssm.time_step_rank"
    recurrent, kinds = metadata.get("attention.recurrent_layers"), None
    if recurrent is not None:
        if not isinstance(recurrent, list):
            recurrent = [recurrent] * num_blocks(metadata)
        _check_per_layer(metadata, "attention.recurrent_layers", recurrent)
        kinds = [RECURRENT if it else FULL for it in recurrent[:layers]]
    return {
        "layer_types": kinds,
        "full_attention_interval": metadata.number("full_attention_interval", 4),
        "linear_num_key_heads": metadata.number("ssm.group_count"),
        "linear_num_value_heads": metadata.number(heads),
        "linear_key_head_dim": metadata.number("ssm.state_size"),
        "linear_value_head_dim": _divided(metadata, inner, heads, metadata.number(heads)),
        "linear_conv_kernel_dim": metadata.number("ssm.conv_kernel"),
        "partial_rotary_factor": metadata.number("rope.dimension_count", head_dim) / head_dim,
    }


def granite_hybrid_options(metadata: GgufMetadata) -> dict[str, Any]:
    """Granite 4 with recurrent layers, without what its experts change (`mixtures.py`).

    Raises:
        CheckpointError: A value is missing, no number, or not divided by another.
    """
    inner, hidden, heads = "ssm.inner_size", "embedding_length", "ssm.time_step_rank"
    is_rotated = metadata.get("rope.scaling.finetuned", True) is not False
    return {
        "layer_types": _kinds_by_heads(metadata, "mamba"),
        "position_embedding_type": "rope" if is_rotated else None,
        "shared_intermediate_size": metadata.same("feed_forward_length"),
        "mamba_n_heads": metadata.number(heads),
        "mamba_d_head": _divided(metadata, inner, heads, metadata.number(heads)),
        "mamba_n_groups": metadata.number("ssm.group_count", 1),
        "mamba_d_state": metadata.number("ssm.state_size"),
        "mamba_d_conv": metadata.number("ssm.conv_kernel"),
        "mamba_expand": _divided(metadata, inner, hidden, metadata.number(hidden)),
        "mamba_conv_bias": any(
            name.endswith(".ssm_conv1d.bias") for name in metadata.header.tensors
        ),
    }


def _kinds_by_heads(metadata: GgufMetadata, recurrent: str) -> list[str]:
    """The kinds of layers: those without heads of keys and values are recurrent.

    Raises:
        CheckpointError: There are more or fewer entries than layers.
    """
    heads = metadata.get("attention.head_count_kv")
    if not isinstance(heads, list):
        return [FULL] * num_blocks(metadata)
    _check_per_layer(metadata, "attention.head_count_kv", heads)
    return [FULL if it else recurrent for it in heads]


def _check_per_layer(metadata: GgufMetadata, name: str, value: list[Any]) -> None:
    """Refuse a list that is not of all layers.

    Raises:
        CheckpointError: It has more or fewer entries.
    """
    layers = num_blocks(metadata)
    if len(value) != layers:
        raise CheckpointError(
            f"{metadata.header.path}: {metadata.architecture}.{name} has {len(value)} entries, "
            f"expected one for each of {layers} layers"
        )


def _divided(metadata: GgufMetadata, name: str, by: str, divisor: Any) -> int:
    """A value divided by another.

    Raises:
        CheckpointError: It is no multiple of it.
    """
    value = metadata.number(name)
    if not isinstance(value, int) or not isinstance(divisor, int) or not divisor or value % divisor:
        raise CheckpointError(
            f"{metadata.header.path}: {metadata.architecture}.{name} is {value}, expected a "
            f"multiple of {by}, {divisor}"
        )
    return value // divisor
