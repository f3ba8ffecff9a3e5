"""What GGUF files of a family hold, in the words of Hugging Face.

In: a file's metadata, and a family's `Gguf`. Out: the fields that a config.json would have, for the
same reader; the Hugging Face name of each tensor. Names on the left are those of Hugging Face for
fields, and those of GGUF for tensors. What llama.cpp knows of an architecture without being told by
the file is filled in here, or beside the family.
Sources: llama.cpp's `llama-model.cpp` (loading), `conversion/` (the same, backwards).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata, check_keys
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config_json import FULL, SLIDING
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.rope import yarn_attention
from coordgen_rs.errors import CheckpointError

Key = str | tuple[str, Any]
"""A number of the metadata; with what it is where the file does not tell it."""

Arranged = tuple[dict[str, Tensor], ModelConfig]

HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORM_BEHIND_ATTENTION = {"post_attention_norm": "post_attention_layernorm"}
NORMS_BEHIND = {**NORM_BEHIND_ATTENTION, "post_ffw_norm": "post_feedforward_layernorm"}
GEMMA_NORMS = {**NORMS_BEHIND, "ffn_norm": "pre_feedforward_layernorm"}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
DENSE = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
BESIDE_EXPERTS = {
    "ffn_gate_shexp": "mlp.gate_proj",
    "ffn_up_shexp": "mlp.up_proj",
    "ffn_down_shexp": "mlp.down_proj",
}
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""Of `expert_gating_func`."""

_MODEL = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    **DENSE,
}
_WINDOW_PATTERN = "attention.sliding_window_pattern"
_INPUT_NORMS = ("attn_norm", "ffn_norm")
_ROPE_FREQS, _LONG, _SHORT = (
    f"rope_{kind}.weight" for kind in ("freqs", "factors_long", "factors_short")
)
ROPE_TENSORS = (_ROPE_FREQS, _LONG, _SHORT)
"""Tensors that belong to the configuration, not to the weights."""

_KEYS: dict[str, Key] = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "attn_logit_softcapping": ("attn_logit_softcapping", None),
    "final_logit_softcapping": ("final_logit_softcapping", None),
}
"""Of all architectures."""
_COMPUTED = {
    "attention_factor": "rope.scaling.attn_factor",
    "attention_multiplier": "attention.scale",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "linear_value_head_dim": "ssm.inner_size",
    "llama_4_scaling_beta": "attention.temperature_scale",
    "mamba_expand": "ssm.inner_size",
    "moe_intermediate_size": "expert_feed_forward_length",
    "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "num_local_experts": "expert_count",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "partial_rotary_factor": "rope.dimension_count",
    "query_pre_attn_scalar": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "suppress_tokens": "tokenizer.ggml.suppress_tokens",
}
"""What fields are made of, where it is no number as it stands: for messages."""


@dataclass(frozen=True)
class Gguf:
    """What GGUF files of a family have in common, by the name of their architecture."""

    architecture: str
    layer_names: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's tensors that differ from `_LAYER`, or come on top."""
    rotates_neighbours: bool = False
    """Rows of query and key are reordered, because pairs are neighbours (GGML_ROPE_TYPE_NORM)."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Numbers by field of a config.json, beside `_KEYS` or in their place."""
    fields: Callable[[GgufMetadata], dict[str, Any]] = lambda metadata: {}
    """Fields of a config.json that are more than a number as it stands."""
    is_meant: Callable[[GgufMetadata], bool] = lambda metadata: True
    """Whether a file is one of the family, where families have one architecture."""
    whole_names: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's tensors that have no `.weight` behind them, or not in both."""
    model_names: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors beside the layers' that only such models have."""
    next_names: Mapping[str, str] = field(default_factory=dict)
    """Beside its layer, what a head for further tokens has; none where there is none."""
    arranged: Callable[[dict[str, Tensor], ModelConfig], Arranged] = lambda *given: given
    """Tensors in Hugging Face's order and shapes, and the configuration for them."""
    output_norm: str = "output_norm"
    """What the last norm is called."""
    has_input_norms: bool = True
    """Attention and feed-forward read normed rows."""

    @property
    def has_experts(self) -> bool:
        """Whether layers may have mixtures of experts."""
        return "ffn_gate_inp" in self.layer_names

    def tensor_names(self, num_layers: int) -> dict[str, str]:
        """The Hugging Face name of every tensor that a model may have, by its name in GGUF."""
        names = {**_MODEL, **self.model_names, f"{self.output_norm}.weight": "model.norm.weight"}
        own = self.layer_names
        parts = {part: it for part, it in _LAYER.items() if it not in own.values()} | {**own}
        if not self.has_input_norms:
            parts = {part: name for part, name in parts.items() if part not in _INPUT_NORMS}
        for number in range(num_layers):
            for part, name in parts.items():
                for kind in ("weight", "bias"):
                    names[f"blk.{number}.{part}.{kind}"] = f"model.layers.{number}.{name}.{kind}"
            for part, name in self.whole_names.items():
                names[f"blk.{number}.{part}"] = f"model.layers.{number}.{name}"
        return names

    def next_token_names(self, block: int) -> dict[str, str]:
        """The same of a head for further tokens, whose layer is block number `block`."""
        prefix, usual = f"blk.{block}.", f"model.layers.{block}."
        names = {
            f"{prefix}{part}.weight": f"mtp.{name}.weight" for part, name in self.next_names.items()
        }
        for name, known in self.tensor_names(block + 1).items():
            if name.startswith(prefix):
                names[name] = f"mtp.layers.0.{known.removeprefix(usual)}"
        return names


def config_fields(metadata: GgufMetadata, gguf: Gguf) -> dict[str, Any]:
    """What a config.json would hold, but for the architecture.

    Raises:
        CheckpointError: A key is missing or no number.
        UnsupportedModelError: The file needs what no config.json says, or what nothing here reads.
    """
    header, heads = metadata.header, metadata.number("attention.head_count")
    if not heads:
        raise metadata.wrong("attention.head_count", heads, "1 or more")
    size = head_dim(metadata)
    in_this = ", which is not supported in this architecture"
    if (values := metadata.number("attention.value_length", size)) != size:
        why = f", but attention.key_length {size}, which is not supported"
        raise metadata.unsupported("attention.value_length", values, why)
    if (experts := metadata.number("expert_count", 0)) and not gguf.has_experts:
        why = ", and mixtures of experts are not supported in this architecture"
        raise metadata.unsupported("expert_count", experts, why)
    if metadata.layers != metadata.blocks and not gguf.next_names:
        further = metadata.blocks - metadata.layers
        raise metadata.unsupported("nextn_predict_layers", further, in_this)
    embedding = header.tensors.get("token_embd.weight")
    found = {
        "num_hidden_layers": metadata.layers,
        "head_dim": size,
        "vocab_size": None if embedding is None else embedding.shape[0],
        "rms_norm_eps": _shortest(metadata.number("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{name: _number(metadata, key) for name, key in {**_KEYS, **gguf.keys}.items()},
        **gguf.fields(metadata),
    }
    if "intermediate_size" not in found:
        # Files need not tell it where no layer is dense.
        default = ("feed_forward_length", None)
        found["intermediate_size"] = _number(metadata, default if gguf.has_experts else default[0])
    if "num_key_value_heads" not in found:
        found["num_key_value_heads"] = metadata.number("attention.head_count_kv", heads)
    if "rope_parameters" not in found:
        found |= _rope(metadata, size)
    check_keys(metadata)
    return found


@contextmanager
def named_by_file(metadata: GgufMetadata, gguf: Gguf) -> Iterator[None]:
    """Within the block, errors name the file and its keys, where they would name a config.json.

    Raises:
        CheckpointError: What the block raises.
    """
    numbers = {**_KEYS, **gguf.keys}.items()
    keys = _COMPUTED | {name: key if isinstance(key, str) else key[0] for name, key in numbers}
    try:
        yield
    except CheckpointError as error:
        told, path = str(error).removeprefix("generation_"), str(metadata.header.path)
        if told.startswith("config.json"):
            fields = rf"(?<![\w.])({'|'.join(keys)})(?![\w.])"
            told = re.sub(fields, lambda it: keys[it[1]], told.removeprefix("config.json: "))
            error.args = (f"{path}: {told.replace('config.json', path)}",)
        raise


def head_dim(metadata: GgufMetadata) -> Any:
    """The dimensions of a head.

    Raises:
        CheckpointError: A value is missing or no number.
    """
    hidden, heads = metadata.number("embedding_length"), metadata.number("attention.head_count")
    return metadata.number("attention.key_length", hidden // heads)


def expert_fields(metadata: GgufMetadata, scoring: int) -> dict[str, Any]:
    """Numbers and size of experts.

    Args:
        metadata: That of the file.
        scoring: The gating function of the architecture, which the file need not tell.

    Raises:
        CheckpointError: A value is missing or no number.
        UnsupportedModelError: Experts are chosen in another way; the message names the key.
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
            why = ", which is not supported in mixtures of experts"
            raise metadata.unsupported(name, value, why)
    chosen = metadata.number("expert_used_count")
    size, dense = metadata.get("expert_feed_forward_length"), "feed_forward_length"
    # That of dense layers is checked also where none is dense.
    dense_size = _number(metadata, dense if size is None else (dense, None))
    if size is None:
        size = dense_size // max(chosen, 1)
    return {
        "num_experts": metadata.number("expert_count"),
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": size,
    }


def kinds_by_heads(metadata: GgufMetadata, recurrent: str) -> dict[str, Any]:
    """The kinds of layers, those without heads of keys and values being recurrent.

    Args:
        metadata: That of the file.
        recurrent: What config.json calls those.

    Raises:
        CheckpointError: There are more or fewer entries than layers, or one is no number.
        UnsupportedModelError: Layers with attention differ.
    """
    name = "attention.head_count_kv"
    if not isinstance(metadata.get(name), list):
        return {"layer_types": [FULL] * metadata.blocks}
    heads = metadata.by_layer(name, metadata.blocks)
    found = [it for it in heads if it] or heads
    if len(set(map(repr, found))) > 1:
        why = ": layers that differ in it, but for 0 in recurrent ones, are not supported"
        raise metadata.unsupported(name, heads, why)
    return {
        "num_key_value_heads": metadata.of(name, found[0]),
        "layer_types": [FULL if it else recurrent for it in heads],
    }


def window_fields(metadata: GgufMetadata, every: int) -> dict[str, Any]:
    """The window, and the layers that have one: all but each `every`th, or those that are told.

    Raises:
        CheckpointError: The pattern is malformed.
    """
    pattern = metadata.get(_WINDOW_PATTERN, every)
    if isinstance(pattern, list):
        kinds = kinds_by_windows(metadata)
    else:
        every = metadata.of(_WINDOW_PATTERN, pattern)
        if not isinstance(every, int) or every < 1:
            raise metadata.wrong(_WINDOW_PATTERN, every, "a whole number from 1 on")
        kinds = [SLIDING if (layer + 1) % every else FULL for layer in range(metadata.layers)]
    return {"sliding_window": metadata.number("attention.sliding_window"), "layer_types": kinds}


def kinds_by_windows(metadata: GgufMetadata) -> list[str]:
    """The kinds of layers, of which the file tells one by one whether they have a window.

    Raises:
        CheckpointError: There are more or fewer entries than layers, or one is no yes or no.
    """
    pattern = metadata.by_layer(_WINDOW_PATTERN, metadata.layers)
    for layer, has_window in enumerate(pattern):
        if not isinstance(has_window, int) or has_window not in (0, 1):
            expected = f"true or false in layer {layer}"
            raise metadata.wrong(_WINDOW_PATTERN, has_window, expected)
    return [SLIDING if it else FULL for it in pattern]


def _number(metadata: GgufMetadata, key: Key) -> Any:
    """A number, or what it is where the file does not tell it.

    Raises:
        CheckpointError: It is missing, or something else.
    """
    if isinstance(key, str):
        return metadata.number(key)
    name, default = key
    return default if metadata.get(name) is None else metadata.number(name)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value)))


def _rope(metadata: GgufMetadata, head_dim: int) -> dict[str, Any]:
    """The rotary embedding.

    Raises:
        CheckpointError: A factor is missing.
        UnsupportedModelError: It is scaled in a way that is not known.
    """
    tensors, most = metadata.header.tensors, metadata.number("context_length")
    rope: dict[str, Any] = {
        "rope_theta": metadata.number("rope.freq_base", 10_000.0),
        "partial_rotary_factor": metadata.number("rope.dimension_count", head_dim) / head_dim,
    }
    kind = metadata.get("rope.scaling.type", "linear")
    has_factors = _ROPE_FREQS in tensors or _LONG in tensors
    if kind == "none":
        metadata.read |= {"rope.scaling.factor", "rope.scale_linear"}  # of no effect then
    if has_factors and kind in ("none", "linear", "longrope"):
        # Llama 3's scaling stands in the file as its result; longrope takes any factors.
        long, short = (_LONG, _SHORT) if _LONG in tensors else (_ROPE_FREQS, _ROPE_FREQS)
        rope["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": metadata.vector(long),
            "short_factor": metadata.vector(short),
            "attention_factor": metadata.number("rope.scaling.attn_factor", 1.0),
        }
        # Only longrope has other factors behind it.
        original = metadata.number("rope.scaling.original_context_length", most)
        rope["original_max_position_embeddings"] = original if _LONG in tensors else most
    elif kind == "yarn" and not has_factors:
        rope["rope_scaling"] = _yarn(metadata)
    elif kind == "linear":
        old = metadata.number("rope.scale_linear", 0.0)
        factor = metadata.number("rope.scaling.factor", old) or 1.0
        if factor != 1:
            rope["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind != "none":
        beside = " beside factors of frequencies" if has_factors else ""
        raise metadata.unsupported("rope.scaling.type", kind, f", which is not supported{beside}")
    growth = metadata.number("attention.temperature_scale", 0.0)
    if growth:
        rope["rope_scaling"] = {
            "original_max_position_embeddings": metadata.number(
                "rope.scaling.original_context_length", most
            ),
            **rope.get("rope_scaling", {}),
            "llama_4_scaling_beta": _shortest(growth),
        }
    return rope


def _yarn(metadata: GgufMetadata) -> dict[str, Any]:
    """YaRN's figures.

    Raises:
        CheckpointError: One is no number.
        UnsupportedModelError: One has a meaning that is not known.
    """
    factor = metadata.number("rope.scaling.factor", 1.0)
    scale = metadata.number("rope.scaling.yarn_log_multiplier", 0.0)
    found = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": metadata.number(
            "rope.scaling.original_context_length", metadata.number("context_length")
        ),
        "beta_fast": metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number("rope.scaling.yarn_beta_slow", 1.0),
        # No file says so, and llama.cpp rounds the ramp of all: gpt-oss was trained without.
        "truncate": metadata.architecture != "gpt-oss",
    }
    if scale:
        found |= {"mscale": 1.0, "mscale_all_dim": scale}
    # A converter writes config.json's, which llama.cpp does not read: it computes its own.
    said, computed = metadata.get("rope.scaling.yarn_attn_factor"), yarn_attention(found, factor)
    if said is not None and not math.isclose(
        metadata.of("rope.scaling.yarn_attn_factor", said), computed, rel_tol=1e-5
    ):
        why = f", where yarn's other figures give {computed:g}"
        raise metadata.unsupported("rope.scaling.yarn_attn_factor", said, why)
    for name in ("rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor"):
        value = metadata.number(name, 1.0)
        if value != 1:
            raise metadata.unsupported(name, value, ", which is not supported beside yarn")
    return found
