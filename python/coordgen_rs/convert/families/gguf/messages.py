"""Errors of what reads a config.json, in the words of the GGUF file that it was made of.

In: an error on its way out. Out: the same error, naming the file and its keys.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from coordgen_rs.convert.containers.gguf.values import GgufMetadata
from coordgen_rs.errors import CheckpointError

_KEYS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "global_head_dim": "attention.key_length",
    "head_dim": "attention.key_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "llama_4_scaling_beta": "attention.temperature_scale",
    "logits_scaling": "logit_scale",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
    "max_position_embeddings": "context_length",
    "moe_intermediate_size": "expert_feed_forward_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "num_attention_heads": "attention.head_count",
    "num_dense_layers": "leading_dense_block_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "num_local_experts": "expert_count",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "partial_rotary_factor": "rope.dimension_count",
    "residual_multiplier": "residual_scale",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "suppress_tokens": "tokenizer.ggml.suppress_tokens",
}
"""What a GGUF file calls the fields of a config.json."""
_FIELD = re.compile(rf"(?<![\w.])({'|'.join(_KEYS)})(?![\w.])")


@contextmanager
def named_by_file(metadata: GgufMetadata) -> Iterator[None]:
    """Within the block, errors name the file and its keys, where they would name a config.json.

    Raises:
        CheckpointError: What the block raises.
    """
    try:
        yield
    except CheckpointError as error:
        told, path = str(error).removeprefix("generation_"), str(metadata.header.path)
        if told.startswith("config.json"):
            told = _FIELD.sub(lambda found: _KEYS[found[1]], told.removeprefix("config.json: "))
            error.args = (f"{path}: {told.replace('config.json', path)}",)
        raise
