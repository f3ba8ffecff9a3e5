"""GGUF files for tests, written by the gguf package as llama.cpp's converter writes them.

In: a Hugging Face directory of a random model. Out: the same model as a GGUF file: rows of query
and key reordered where the architecture wants it, norms with their + 1, value heads of delta nets
tiled, all experts of a layer in one tensor, the vocabulary from tokenizer.json.
"""

import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray
from safetensors.numpy import load_file

import gpt_oss
from coordgen_rs.convert.containers.gguf.file import GgufHeader, GgufTensor
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.families.checkpoint import read_metadata
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.table import FAMILIES
from dequantized import random_blocks

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Glm4ForCausalLM": "glm4",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "GraniteMoeHybridForCausalLM": "granitehybrid",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2moe",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "GptOssForCausalLM": "gpt-oss",
    "Ministral3ForCausalLM": "mistral3",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "Phi3ForCausalLM": "phi3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4UnifiedForCausalLM": "gemma4",
}
NAMED = {gguf.architecture: gguf for family in FAMILIES for gguf in family.gguf}
_NORMAL, _CONTROL, _BYTE = 1, 3, 6
_GLM4 = {
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_self_attn_layernorm": "post_attention_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}
"""What it calls Gemma's norms."""
_SIGMOID = 2
"""Of `expert_gating_func`."""
STEPS = {"Q2_K": 1.2, "Q3_K": 2.5, "Q4_K": 5.0, "Q5_K": 10.0, "Q6_K": 20.0}
STEPS |= {"IQ4_NL": 70.0, "IQ4_XS": 70.0, "IQ3_S": 8.0, "NVFP4": 1e3}
"""About how many steps of `random_blocks` a type's weights are wide."""


def write_gguf(
    path: Path,
    checkpoint: Path,
    types: dict[str, str] | str = "F32",
    *,
    metadata: dict[str, Any] | None = None,
    tensors_per_part: int = 0,
    no_tensors_in_first: bool = False,
    fuses_experts: bool = False,
) -> Path:
    """Write the model of a Hugging Face directory to `path` and return it.

    With `tensors_per_part`, write it in parts, and return the path of the first. With
    `fuses_experts`, gates and ups of an expert are one tensor, as newer converters can write them.

    `types` is the type of all matrices, or of those whose name in GGUF contains a key of the dict
    (the others stay F32). `metadata` replaces keys; None leaves a key out.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    name = ARCHITECTURES[config["architectures"][0]]
    if name == "granitehybrid" and not _recurrent_kinds(config):
        name = "granitemoe" if config.get("num_local_experts") else "granite"
    architecture = NAMED[name]
    given = {**_sizes(name, config), **tokenizer_metadata(checkpoint / "tokenizer.json", config)}
    if config.get("mtp_num_hidden_layers"):
        given[f"{name}.block_count"] += config["mtp_num_hidden_layers"]
        given[f"{name}.nextn_predict_layers"] = config["mtp_num_hidden_layers"]
    given |= metadata or {}
    writer = GGUFWriter(
        path, name, split_max_tensors=tensors_per_part, small_first_shard=no_tensors_in_first
    )
    for key, value in given.items():
        if value is not None:
            _add(writer, key, value)
    weights = {
        key: value.astype(np.float32)
        for file in sorted(checkpoint.glob("*.safetensors"))
        for key, value in load_file(file).items()
    }
    if name == "gpt-oss":
        weights = gpt_oss.in_gguf(weights)
    weights = _with_experts(_usual(weights), fuses_experts)
    weights = {key: _in_gguf(key, values, config) for key, values in weights.items()}
    names = hugging_face_names(name, config["num_hidden_layers"])
    if "mtp.fc.weight" in weights:
        names |= architecture.next_token_names(config["num_hidden_layers"])
    has_experts = _num_experts(config) > 0
    if name in ("granitemoe", "granitehybrid", "qwen35moe"):  # two names for one feed-forward
        other = ("ffn_gate.", "ffn_up.", "ffn_down.") if has_experts else ("_shexp.",)
        names = {key: it for key, it in names.items() if not any(part in key for part in other)}
    for in_gguf, in_hugging_face in names.items():
        if in_hugging_face in weights:
            values = weights[in_hugging_face]
            is_rotated = architecture.rotates_neighbours and name != "glm4"  # its rows are so
            if is_rotated and (".attn_q." in in_gguf or ".attn_k." in in_gguf):
                heads = "num_attention_heads" if "_q." in in_gguf else "num_key_value_heads"
                values = neighbours(values, config[heads])
            is_qwen = name in ("qwen35", "qwen35moe")
            has_offset = name == "gemma3" or (is_qwen and "ssm" not in in_gguf)
            if has_offset and "norm" in in_gguf:
                values = values + np.float32(1)
            _add_tensor(writer, in_gguf, values, types)
    for key, values in _rope_tensors(config).items():
        _add_tensor(writer, key, values, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))), path)


def parsed_metadata(
    architecture: str, values: dict[str, Any], tensors: Iterable[str] = ("token_embd.weight",)
) -> ModelConfig:
    """The configuration of `x.gguf`, which does not exist, with these values and tensors.

    Values are by their names in the architecture; one that is None is not told.
    """
    keys = {f"{architecture}.{key}": it for key, it in values.items() if it is not None}
    path, kind = Path("x.gguf"), GGMLQuantizationType.F32
    places = {name: GgufTensor(name, (16, 64), kind, path, 0) for name in tensors}
    header = GgufHeader(path, {"general.architecture": architecture, **keys}, places)
    return read_metadata(GgufMetadata(header))


def hugging_face_names(architecture: str, num_layers: int) -> dict[str, str]:
    """The Hugging Face names of tensors by those in GGUF files."""
    return NAMED[architecture].tensor_names(num_layers)


def _num_experts(config: dict[str, Any]) -> int:
    return config.get("num_experts") or config.get("num_local_experts") or 0


_ONE_EXPERT = re.compile(r"(.*experts\.)(\d+)\.(\w+)\.weight")
_OF_EXPERT = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_ALL_EXPERTS = {
    "mlp.experts.gate_up_proj": "gate_up_proj",
    "mlp.experts.down_proj": "down_proj",
    "block_sparse_moe.input_linear.weight": "gate_up_proj",
    "block_sparse_moe.output_linear.weight": "down_proj",
}


def _with_experts(
    weights: dict[str, NDArray[np.float32]], fuses: bool
) -> dict[str, NDArray[np.float32]]:
    """The same with the experts of a layer in tensors `(experts, rows, columns)`, by part."""
    found, single = {}, defaultdict[str, dict[int, NDArray[np.float32]]](dict)
    for name, values in weights.items():
        one = _ONE_EXPERT.fullmatch(name)
        whole = next((it for it in _ALL_EXPERTS if name.endswith(it)), None)
        if one is not None:
            part = _OF_EXPERT.get(one[3], one[3])
            prefix = one[1].replace("feed_forward", "mlp")
            single[f"{prefix}{part}.weight"][int(one[2])] = values
        elif whole is not None:
            prefix = name.removesuffix(whole)
            found[f"{prefix}mlp.experts.{_ALL_EXPERTS[whole]}.weight"] = values
        else:
            found[name.replace("block_sparse_moe.router.layer", "mlp.gate")] = values
    for name, parts in single.items():
        found[name] = np.stack([parts[number] for number in sorted(parts)])
    for name in list(found):
        both = name.replace("experts.gate_proj", "experts.gate_up_proj")
        if name.endswith("experts.gate_up_proj.weight") and not fuses:
            gate, up = np.split(found.pop(name), 2, axis=1)
            found[name.replace("gate_up", "gate")] = gate
            found[name.replace("gate_up", "up")] = up
        elif name.endswith("experts.gate_proj.weight") and fuses:
            up = found.pop(name.replace("gate_proj", "up_proj"))
            found[both] = np.concatenate([found.pop(name), up], axis=1)
    return found


_LFM2 = {
    "embedding_norm": "norm",
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "mlp.gate",
    "self_attn.out_proj": "self_attn.o_proj",
    "q_layernorm": "q_norm",
    "k_layernorm": "k_norm",
}


def _recurrent_kinds(config: dict[str, Any]) -> list[bool]:
    """Of each layer whether it is recurrent; empty if none is."""
    names = ("conv", "linear_attention", "mamba")
    kinds = [kind in names for kind in config.get("layer_types") or ()]
    return kinds if any(kinds) else []


def _in_gguf(name: str, values: NDArray[np.float32], config: dict[str, Any]) -> NDArray[np.float32]:
    """What a file holds of a recurrent layer's tensor; others as they are."""
    if name.endswith("shared_expert_gate.weight"):
        return values[0]
    if name.endswith((".A", ".D")) and "mamba" in name:
        return values[:, None]
    if name.endswith("mamba.norm.weight"):
        return values.reshape(config["mamba_n_groups"], -1)
    if "conv1d.weight" in name or "conv.conv.weight" in name:
        values = values[:, 0]
    if "linear_attn" not in name or "norm" in name:
        return values
    keys, value_dim = config["linear_num_key_heads"], config["linear_value_head_dim"]
    size = value_dim if any(it in name for it in ("qkv", "_z.", "conv1d", "out_proj")) else 1
    rows = values.T if "out_proj" in name else values
    rest = 2 * keys * config["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0
    heads = rows[rest:].reshape(keys, -1, size, *rows.shape[1:])
    rows = np.concatenate([rows[:rest], heads.swapaxes(0, 1).reshape(rows[rest:].shape)])
    return np.ascontiguousarray(rows.T if "out_proj" in name else rows)


def _usual(weights: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Weights of Granite 4, LFM2 and GLM-4 under Llama's names, logarithms of decays as decays."""
    found = {}
    for stored_name, stored in weights.items():
        name, values = stored_name, stored
        for other, part in _LFM2.items():
            name = name.replace(f".{other}.", f".{part}.")
        name = name.replace(".feed_forward.expert_bias", ".mlp.expert_bias")
        name = name.replace(".mlp.shared_expert.", ".mlp.")
        if any(".post_mlp_layernorm." in it for it in weights):
            for other, part in _GLM4.items():
                name = name.replace(f".{other}.", f".{part}.")
        if name.endswith(".A_log"):
            name, values = name.removesuffix("_log"), -np.exp(stored)
        prefix, is_shared, part = name.partition("shared_mlp.")
        if part.startswith("input_linear"):
            gate, up = np.split(values, 2)
            found |= {f"{prefix}mlp.gate_proj.weight": gate, f"{prefix}mlp.up_proj.weight": up}
        else:
            found[f"{prefix}mlp.down_proj.weight" if is_shared else name] = values
    return found


def neighbours(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of halves to rows of neighbouring pairs, as `LlamaModel.permute` of the converter."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def tokenizer_metadata(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the converter writes of a tokenizer.json, byte-level or with byte fallback."""
    document = json.loads(path.read_text())
    model, added = document["model"], document.get("added_tokens", [])
    vocabulary = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in added}
    kinds = [_CONTROL if token in special else _NORMAL for token in tokens]
    merges = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])
    ]
    found = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": config.get("bos_token_id"),
        "tokenizer.ggml.eos_token_id": config.get("eos_token_id"),
    }
    if merges and not model.get("byte_fallback"):
        return {
            **found,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.merges": merges,
        }
    if model["type"] == "WordLevel":  # a token per character
        found["tokenizer.ggml.tokens"] = [token.replace(" ", "\u2581") for token in tokens]
        found |= {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    is_byte = [token.startswith("<0x") and len(token) == 6 for token in tokens]
    return {
        **found,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.token_type": [
            _BYTE if byte else kind for byte, kind in zip(is_byte, kinds, strict=True)
        ],
        # Pieces of SentencePiece's BPE are numbered in the order of their merging.
        "tokenizer.ggml.scores": [-float(number) for number in range(len(tokens))],
    }


def _sizes(name: str, config: dict[str, Any]) -> dict[str, Any]:
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    sizes = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": _feed_forward(config),
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 0)),
        "rope.freq_base": float(_rope(config).get("rope_theta", 10_000.0)),
        "rope.dimension_count": int(head_dim * _rope(config).get("partial_rotary_factor", 1)),
    }
    if name in ("granite", "granitehybrid", "granitemoe"):
        sizes |= {
            "attention.scale": float(config["attention_multiplier"]),
            "embedding_scale": float(config["embedding_multiplier"]),
            "residual_scale": float(config["residual_multiplier"]),
            "logit_scale": float(config["logits_scaling"]),
        }
    if "position_embedding_type" in config:  # Granite 4: heads are told for each layer
        sizes["rope.scaling.finetuned"] = config["position_embedding_type"] == "rope"
        sizes["attention.head_count_kv"] = [config["num_key_value_heads"]] * layers
    sizes |= _recurrent_sizes(name, config) | _expert_sizes(name, config)
    if name == "gemma4":
        sizes |= _gemma4_sizes(config)
    if name in ("gemma3", "phi3", "olmo2", "gpt-oss") and config.get("sliding_window"):
        sizes["attention.sliding_window"] = config["sliding_window"]
    if name == "olmo2" and config.get("sliding_window"):
        pattern = [kind == "sliding_attention" for kind in config["layer_types"]]
        sizes["attention.sliding_window_pattern"] = pattern
    sizes |= _yarn(_rope(config))
    return {f"{name}.{key}": value for key, value in sizes.items()}


def _feed_forward(config: dict[str, Any]) -> int | None:
    """Of dense layers; of Granite 4 with experts that of an expert, as the converter has it."""
    shared = None if _num_experts(config) else config.get("shared_intermediate_size")
    return shared or config.get("intermediate_size")


def _expert_sizes(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """What the converter writes of mixtures of experts."""
    if not _num_experts(config):
        return {}
    sizes = {
        "expert_count": _num_experts(config),
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get(
            "intermediate_size" if name == "gpt-oss" else "moe_intermediate_size"
        ),
        "expert_shared_feed_forward_length": config.get(
            "shared_expert_intermediate_size", config.get("shared_intermediate_size")
        ),
    }
    if name == "lfm2moe":
        sizes["leading_dense_block_count"] = config["num_dense_layers"]
        sizes["expert_gating_func"] = _SIGMOID
    return sizes


def _recurrent_sizes(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """What the converter writes of recurrent layers."""
    kv_heads = config["num_key_value_heads"]
    heads = [0 if is_recurrent else kv_heads for is_recurrent in _recurrent_kinds(config)]
    if name in ("lfm2", "lfm2moe"):
        ffn = config["intermediate_size"]
        if name == "lfm2" and config.get("block_auto_adjust_ff_dim", True):
            multiple = config["block_multiple_of"]
            ffn = int(config["block_ffn_dim_multiplier"] * int(2 * ffn / 3))
            ffn = -(-ffn // multiple) * multiple
        return {
            "attention.head_count_kv": heads,
            "attention.layer_norm_rms_epsilon": config["norm_eps"],
            "feed_forward_length": ffn,
            "shortconv.l_cache": config["conv_L_cache"],
            "vocab_size": config["vocab_size"],
        }
    if name in ("qwen35", "qwen35moe"):
        inner = config["linear_value_head_dim"] * config["linear_num_value_heads"]
        every = next(i for i, it in enumerate(config["layer_types"], 1) if it == "full_attention")
        return {
            "full_attention_interval": every,
            "rope.dimension_sections": [*_rope(config)["mrope_section"], 0],
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.inner_size": inner,
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.time_step_rank": config["linear_num_value_heads"],
        }
    if name == "granitehybrid":
        return {
            "attention.head_count_kv": heads,
            "ssm.conv_kernel": config["mamba_d_conv"],
            "ssm.group_count": config["mamba_n_groups"],
            "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
            "ssm.state_size": config["mamba_d_state"],
            "ssm.time_step_rank": config["mamba_n_heads"],
        }
    return {}


def _without_window(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of layers without a window, which newer files of Gemma 4 tell layer by layer."""
    if "per_layer_config" in config:
        first = config["layer_types"].index("full_attention")
        found: dict[str, Any] = config["per_layer_config"][str(first)]
        return found
    found = {"head_dim": config["global_head_dim"]}
    if config["attention_k_eq_v"]:
        found["num_key_value_heads"] = config["num_global_key_value_heads"]
    return found


def _gemma4_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """What the converter writes of Gemma 4: sizes of layers, of which few have what all have."""
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    whole = _without_window(config)
    kv_heads = config["num_key_value_heads"]
    ffn: Any = config["intermediate_size"]
    if config.get("use_double_wide_mlp"):
        ffn = [ffn] * (layers - shared) + [2 * ffn] * shared
    found = {
        "attention.head_count_kv": [
            kv_heads if it else whole.get("num_key_value_heads", kv_heads) for it in windows
        ],
        "attention.key_length": whole["head_dim"],
        "attention.value_length": whole["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": windows,
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        "feed_forward_length": ffn,
        "rope.dimension_count": whole["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base_swa": float(config["rope_parameters"]["sliding_attention"]["rope_theta"]),
    }
    if config.get("final_logit_softcapping"):
        found["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    return found


def _yarn(rope: dict[str, Any]) -> dict[str, Any]:
    if rope.get("rope_type", rope.get("type")) != "yarn":
        return {}
    numbers = {
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.yarn_attn_factor": rope.get("attention_factor"),
        "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
        "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        "rope.scaling.yarn_log_multiplier": rope.get("mscale_all_dim"),
        "attention.temperature_scale": rope.get("llama_4_scaling_beta"),
    }
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        **{key: float(value) for key, value in numbers.items() if value is not None},
    }


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {**config, **nested.get("full_attention", nested)}


def _rope_tensors(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "longrope":
        return {
            f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32)
            for length in ("long", "short")
        }
    if kind == "proportional":
        pairs = _without_window(config)["head_dim"] // 2
        turning = int(pairs * rope["partial_rotary_factor"])
        factors = [1.0] * turning + [1e30] * (pairs - turning)
        return {"rope_freqs.weight": np.array(factors, np.float32)}
    return {}


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(
    writer: GGUFWriter, name: str, values: NDArray[np.float32], types: dict[str, str] | str
) -> None:
    kind = "F32"
    if values.ndim >= 2:
        found = types if isinstance(types, str) else None
        if isinstance(types, dict):
            found = next((type_ for part, type_ in types.items() if part in name), None)
        kind = found or "F32"
    number = GGMLQuantizationType[kind]
    writer.add_tensor(name, _stored(kind, name, values), raw_dtype=number)


def _stored(kind: str, name: str, values: NDArray[np.float32]) -> NDArray[Any]:
    """The values in a type; random ones of about their size where gguf cannot quantise to it."""
    try:
        return quants.quantize(values, GGMLQuantizationType[kind])
    except NotImplementedError:
        weights, _ = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        *rows, columns = values.shape
        size = float(values.std()) / STEPS[kind]
        seed = zlib.crc32(name.encode())
        blocks = random_blocks(kind, math.prod(rows), columns // weights, seed, size)
        return blocks.reshape(*rows, -1)
