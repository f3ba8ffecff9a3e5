"""The keys of a GGUF file's architecture that llama.cpp reads, and that nothing here has read.

In: the metadata, behind all who read it. Out: nothing, or an error that names a key which changes
the arithmetic. Keys that llama.cpp does not know change nothing there, nor here.
Source: llama.cpp's `llama-arch.cpp` (names) and `llama-model.cpp` (what they do).
"""

import math
from typing import Any

from coordgen_rs.convert.containers.gguf.values import GgufMetadata
from coordgen_rs.errors import UnsupportedModelError

CHANGE_NOTHING = {
    *("vocab_size", "tensor_data_layout", "pooling_type"),
    *("classifier.output_labels", "classifier.pooling_type", "deepstack_mapping"),
    *("attention.layer_norm_epsilon", "attention.group_norm_epsilon"),  # no layer has such a norm
    *("attention.group_norm_groups", "moe_every_n_layers"),
    *("expert_chunk_feed_forward_length", "expert_group_scale"),  # of groups, which are refused
    *("expert_group_used_count", "experts_per_group"),
    *("feed_forward_length", "expert_feed_forward_length"),  # where all, or none, are experts
    *("rope.dimension_sections", "rope.scaling.finetuned"),  # of pictures; of Granite
    *("rope.scaling.original_context_length", "rope.scaling.yarn_log_multiplier"),  # of YaRN
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    *("decoder_block_count", "decoder_start_token_id"),  # of models of other kinds
    *("convnext.block_count", "convnext.embedding_length", "features_length"),
    *("posnet.block_count", "posnet.embedding_length", "swin_norm"),
    *("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"),
}
"""What has no effect in an architecture that does not read it."""

_NO_EFFECT: dict[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "attention.scale": (0,),
    **dict.fromkeys(("attention.output_scale", "attention.value_scale"), (0, 1)),
    **dict.fromkeys(("embedding_scale", "logit_scale", "residual_scale"), (0, 1)),
    **dict.fromkeys(("full_attention_interval", "interleave_moe_layer_step"), (0, 1)),
    **dict.fromkeys(("rope.scale_linear", "rope.scaling.factor"), (0, 1)),
    "rope.scaling.alpha": (0, 1),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), (1,)),
    "rope.scaling.yarn_ext_factor": (-1, 0),
    **dict.fromkeys(
        (
            *("attention.clamp_kqv", "attention.max_alibi_bias", "attention.q_lora_rank"),
            *("attention.kv_lora_rank", "attention.decay_lora_rank", "attention.gate_lora_rank"),
            *("attention.iclr_lora_rank", "attention.value_residual_mix_lora_rank"),
            *("attention.indexer.head_count", "attention.indexer.key_length"),
            *("attention.indexer.top_k", "attention.key_length_mla", "attention.recurrent_layers"),
            *("attention.relative_buckets_count", "attention.shared_kv_layers"),
            *("attention.sliding_window", "attention.sliding_window_pattern"),
            *("attention.temperature_length", "attention.temperature_scale"),
            *("attention.value_length_mla", "attn_logit_softcapping", "final_logit_softcapping"),
            *("embedding_length_per_layer_input", "expert_shared_feed_forward_length"),
            *("kda.head_dim", "leading_dense_block_count", "moe_latent_size"),
            *("n_deepstack_layers", "nextn_predict_layers", "rescale_every_n_layers"),
            *("router_logit_softcapping", "shortconv.l_cache", "ssm.conv_kernel"),
            *("ssm.dt_b_c_rms", "ssm.group_count", "ssm.inner_size", "ssm.state_size"),
            *("ssm.time_step_rank", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
            *("time_decay_extra_dim", "time_mix_extra_dim", "token_shift_count"),
            *("use_parallel_residual", "wkv.head_size"),
        ),
        (0,),
    ),
}
"""The values of others with which they have no effect."""

_SAME_AS = {
    "attention.key_length_swa": ("attention.key_length",),
    "attention.value_length_swa": ("attention.key_length_swa", "attention.key_length"),
    "embedding_length_out": ("embedding_length",),
    "rope.dimension_count": ("attention.key_length",),
    "rope.dimension_count_swa": (
        "attention.key_length_swa",
        "rope.dimension_count",
        "attention.key_length",
    ),
    "rope.freq_base_swa": ("rope.freq_base",),
}
"""Those that have no effect where they repeat the first of these that is there."""


def check_keys(metadata: GgufMetadata) -> None:
    """Refuse a key that nothing has read, and that llama.cpp would not leave aside.

    Raises:
        UnsupportedModelError: There is one; the message names it.
    """
    prefix = f"{metadata.architecture}."
    values = {
        key.removeprefix(prefix): value
        for key, value in metadata.header.metadata.items()
        if key.startswith(prefix)
    }
    has_experts = bool(values.get("expert_count"))
    for name in sorted(values.keys() - metadata.read - CHANGE_NOTHING):
        if name.startswith("expert_") and not has_experts:
            continue
        others = [other for other in _SAME_AS.get(name, ()) if other in values]
        if not _has_no_effect(name, values[name], [values[other] for other in others]):
            raise UnsupportedModelError(
                f"{metadata.header.path}: {prefix}{name} is {values[name]!r:.60}, which is not "
                f"supported {f'beside another {others[0]}' if others else 'in this architecture'}"
            )


def _has_no_effect(name: str, value: Any, others: list[Any]) -> bool:
    known = others[:1] if name in _SAME_AS else _NO_EFFECT.get(name)
    return known is None or all(
        any(_is_same(it, one) for one in known)
        for it in (value if isinstance(value, list) else [value])
    )


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are the same, float32 being as exact as a file tells."""
    if isinstance(value, int | float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-6)
    return bool(value == other)
