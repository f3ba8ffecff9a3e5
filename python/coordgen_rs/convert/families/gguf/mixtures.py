"""What GGUF metadata says of mixtures of experts, as a Hugging Face config.json would say it.

In: the metadata. Out: the fields that `../mixtures.py` reads. What llama.cpp does in an
architecture without being told by the file is filled in here; what it reads from there and no
config.json of the family can say is refused. Source: llama.cpp's `src/models/`.
"""

from typing import Any

from coordgen_rs.convert.containers.gguf.values import GgufMetadata, num_layers
from coordgen_rs.errors import UnsupportedModelError

_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN = 1, 2, 3
"""Of `expert_gating_func`."""


def qwen3_moe_options(metadata: GgufMetadata) -> dict[str, Any]:
    """Qwen3-MoE, whose shares llama.cpp always norms.

    Raises:
        CheckpointError: A value is missing or no number.
        UnsupportedModelError: Experts are chosen in another way.
    """
    _check_scoring(metadata, _SOFTMAX)
    return {**_sizes(metadata), "norm_topk_prob": True}


def qwen35_moe_options(metadata: GgufMetadata) -> dict[str, Any]:
    """Qwen3.5-MoE; raises as `qwen3_moe_options` does."""
    _check_scoring(metadata, _SOFTMAX)
    shared = metadata.get("expert_shared_feed_forward_length")
    if shared is None:
        shared = metadata.same("feed_forward_length")
    return {**_sizes(metadata), "shared_expert_intermediate_size": shared}


def granite_moe_options(metadata: GgufMetadata) -> dict[str, Any]:
    """Granite 4, with experts or without; raises as `qwen3_moe_options` does."""
    if not metadata.number("expert_count", 0):
        return {"num_local_experts": 0}
    _check_scoring(metadata, _SOFTMAX)
    sizes = _sizes(metadata)
    return {
        **sizes,
        "num_local_experts": sizes["num_experts"],
        "intermediate_size": metadata.same("feed_forward_length"),
        "shared_intermediate_size": metadata.number("expert_shared_feed_forward_length", 0),
    }


def lfm2_moe_options(metadata: GgufMetadata) -> dict[str, Any]:
    """LFM2-MoE, whose shares llama.cpp always norms; raises as `qwen3_moe_options` does."""
    _check_scoring(metadata, _SIGMOID)
    return {
        **_sizes(metadata),
        "num_dense_layers": metadata.number("leading_dense_block_count", 0),
        "norm_topk_prob": True,
        "use_expert_bias": True,
    }


def gpt_oss_options(metadata: GgufMetadata) -> dict[str, Any]:
    """gpt-oss; raises as `qwen3_moe_options` does."""
    _check_scoring(metadata, _SOFTMAX_OF_CHOSEN)
    sizes = _sizes(metadata)
    return {
        "num_local_experts": sizes["num_experts"],
        "num_experts_per_tok": sizes["num_experts_per_tok"],
        "intermediate_size": sizes["moe_intermediate_size"],
    }


def all_attention(metadata: GgufMetadata) -> dict[str, Any]:
    """Granite 4 without recurrent layers.

    Raises:
        CheckpointError: The number of layers is none.
    """
    is_rotated = metadata.get("rope.scaling.finetuned", True) is not False
    return {
        "layer_types": ["attention"] * num_layers(metadata),
        "position_embedding_type": "rope" if is_rotated else None,
    }


def _sizes(metadata: GgufMetadata) -> dict[str, Any]:
    """Numbers and size of experts.

    Raises:
        CheckpointError: A value is missing or no number.
    """
    chosen = metadata.number("expert_used_count")
    size = metadata.get("expert_feed_forward_length")
    if size is None:
        size = metadata.same("feed_forward_length") // max(chosen, 1)
    return {
        "num_experts": metadata.number("expert_count"),
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": size,
    }


def _check_scoring(metadata: GgufMetadata, scoring: int) -> None:
    """Refuse other ways to choose experts than that of the architecture.

    Args:
        metadata: That of the file.
        scoring: The gating function, which the file need not tell.

    Raises:
        CheckpointError: A value is no number.
        UnsupportedModelError: The file asks for another; the message names the key.
    """
    known = {
        "expert_gating_func": (0, scoring),
        "expert_group_count": (0, 1),
        "expert_weights_norm": (True,),
        "expert_weights_scale": (0, 1),
        "expert_shared_count": (0, 1),
        "moe_every_n_layers": (0, 1),
    }
    for name, values in known.items():
        value = metadata.get(name)
        if value is not None and value not in values:
            raise UnsupportedModelError(
                f"{metadata.header.path}: {metadata.architecture}.{name} is {value!r:.60}, which "
                "is not supported in mixtures of experts"
            )
