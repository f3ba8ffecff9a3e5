"""The metadata of a GGUF file, checked where it is read, and that nothing is left unread.

In: the header. Out: a text, or a number of the file's architecture; how many layers it has; an
error that names a key which llama.cpp reads, which changes the arithmetic, and which nothing here
has read. Keys that llama.cpp does not know change nothing there, nor here.
Source: llama.cpp's `llama-arch.cpp` (names) and `llama-model.cpp` (what they do).
"""

import math
from typing import Any

from coordgen_rs.convert.containers.gguf.file import GgufHeader, open_tensor
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_MOST_LAYERS = 1 << 12
_BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
"""Numbers that a file may tell for each layer."""

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


class GgufMetadata:
    """The metadata of one file, by the names that its architecture gives them.

    `read` holds the names of the values that were asked for, whether or not they are there.
    """

    def __init__(self, header: GgufHeader) -> None:
        self.header, self.read = header, set[str]()
        self.architecture = self.text("general.architecture")

    def wrong(self, name: str, value: Any, expected: str) -> CheckpointError:
        """The error of a value that is not what is expected."""
        told = f"{self.header.path}: {self.architecture}.{name} is {value!r:.60}"
        return CheckpointError(f"{told}, expected {expected}")

    def unsupported(self, name: str, value: Any, why: str) -> UnsupportedModelError:
        """The error of a value that the graphs cannot follow."""
        told = f"{self.header.path}: {self.architecture}.{name} is {value!r:.60}"
        return UnsupportedModelError(f"{told}{why}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        value = self.header.metadata.get(key, default)
        if not isinstance(value, str):
            raise CheckpointError(f"{self.header.path}: {key} is {value!r:.60}, expected a text")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the architecture, such as `block_count`."""
        self.read.add(name)
        return self.header.metadata.get(f"{self.architecture}.{name}", default)

    def number(self, name: str, default: float | None = None) -> Any:
        """An integer or float of the architecture; if files tell it by layer, the same in all.

        Raises:
            CheckpointError: It is missing, or something else, or not told for each layer.
            UnsupportedModelError: Layers differ.
        """
        value = self.get(name, default)
        if name in _BY_LAYER and isinstance(value, list):
            if len(set(map(repr, self.by_layer(name, self.blocks)))) > 1:
                why = ": layers that differ in it are not supported"
                raise self.unsupported(name, value, why)
            value = value[0]
        return self.of(name, value)

    def by_layer(self, name: str, layers: int) -> list[Any]:
        """A value for each of so many layers, which may be one for all.

        Raises:
            CheckpointError: There are more or fewer.
        """
        value = self.get(name)
        if not isinstance(value, list):
            return [value] * layers
        if len(value) != layers:
            raise CheckpointError(
                f"{self.header.path}: {self.architecture}.{name} has {len(value)} entries, "
                f"expected one for each of {layers} layers"
            )
        return value

    def of(self, name: str, value: Any) -> Any:
        """The value of `name` if it is an integer or a float.

        Raises:
            CheckpointError: It is something else.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, value, "a number")
        return value

    def quotient(self, name: str, by: str) -> int:
        """A number divided by another.

        Raises:
            CheckpointError: It is no multiple of it.
        """
        value, divisor = self.number(name), self.number(by)
        are_integers = isinstance(value, int) and isinstance(divisor, int)
        if not are_integers or not divisor or value % divisor:
            raise self.wrong(name, value, f"a multiple of {by}, {divisor}")
        return int(value // divisor)

    @property
    def blocks(self) -> int:
        """The number of all layers in the file.

        Raises:
            CheckpointError: It is missing, or more than any model has.
        """
        blocks = self.number("block_count")
        if not isinstance(blocks, int) or not 1 <= blocks <= _MOST_LAYERS:
            raise CheckpointError(f"{self.header.path}: block_count is {blocks}")
        return blocks

    @property
    def layers(self) -> int:
        """The number of layers, without those at the end that predict further tokens.

        Raises:
            CheckpointError: It is no number, or not less than that of all layers.
        """
        predicting, blocks = self.number("nextn_predict_layers", 0), self.blocks
        if not isinstance(predicting, int) or not 0 <= predicting < blocks:
            raise self.wrong("nextn_predict_layers", predicting, f"0 to {blocks - 1}")
        return blocks - predicting

    def vector(self, name: str) -> list[float]:
        """The values of a small tensor of floats.

        Raises:
            CheckpointError: It is missing, damaged, or not a vector of floats.
        """
        stored = self.header.tensors.get(name)
        if stored is None or len(stored.shape) != 1:
            raise CheckpointError(f"{self.header.path} has no vector {name}")
        return [float(value) for value in open_tensor(stored).load()]


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
            where = f"beside another {others[0]}" if others else "in this architecture"
            raise metadata.unsupported(name, values[name], f", which is not supported {where}")


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
