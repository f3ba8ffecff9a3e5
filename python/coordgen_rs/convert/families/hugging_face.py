"""A Hugging Face directory: config.json, tokenizer.json and safetensors files.

In: the directory. Out: configuration, tensors by name, tokenizer and chat templates. Of the weights
only headers are read. Of a model that also sees pictures, what a checkpoint of its language model
alone would hold: pictures cannot be read.
"""

from functools import partial
from pathlib import Path
from typing import Any

from coordgen_rs.convert.containers.safetensors import open_safetensors
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.containers.tokenizer_file import read_tokenizer
from coordgen_rs.convert.families.checkpoint import Checkpoint, read_tensors
from coordgen_rs.convert.families.config.model import ModelConfig, parse_config
from coordgen_rs.convert.families.gpt_oss import GPT_OSS, gpt_oss_tensors
from coordgen_rs.convert.families.usual_names import usual_names
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from coordgen_rs.files.file_names import is_plain_name
from coordgen_rs.files.json_text import file_errors_as, read_object
from coordgen_rs.text.chat_files import read_templates

_MOST_JSON_BYTES = 64 << 20
_TEXT_PARTS = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Gemma4ForConditionalGeneration": {"gemma4_text": "Gemma4ForCausalLM"},
    "Gemma4UnifiedForConditionalGeneration": {"gemma4_unified_text": "Gemma4UnifiedForCausalLM"},
    "Mistral3ForConditionalGeneration": {
        "mistral": "MistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
    },
    "Qwen3_5ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
    "Qwen3_5MoeForConditionalGeneration": {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    "Lfm2VlForConditionalGeneration": {"lfm2": "Lfm2ForCausalLM"},
}
"""The architecture of the language model, by that of the whole and `model_type` of the part, the
first of which is meant where there is none."""
ASSISTANTS = {
    "Gemma4AssistantForCausalLM": "Gemma4ForCausalLM",
    "Gemma4UnifiedAssistantForCausalLM": "Gemma4UnifiedForCausalLM",
}
"""Drafters, which are exported beside their target, and the architecture of their layers."""
_OUTSIDE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
"""Fields that the whole may have instead of its part."""
_OTHER_EMBEDDING = "mtp_use_dedicated_embeddings"
_PREFIXES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "model.mtp.": "mtp.",
    "language_model.lm_head.": "lm_head.",
}
"""What names of tensors begin with, before and since transformers 5, and without the rest."""
_ALONE = ("lm_head.", "mtp.")
"""What names begin with that are the same without the rest."""


def open_hugging_face(path: Path) -> Checkpoint:
    """Opens a directory.

    Raises:
        CheckpointError: Something is missing or damaged.
        UnsupportedModelError: The exporter cannot do this model.
    """
    tensors = open_weights(path)
    whole = read_json_file(path / "config.json")
    config = text_config(whole)
    if config is not whole:
        tensors = text_tensors(tensors)
        # Where neither part says it, a head of its own tells.
        config = {"tie_word_embeddings": "lm_head.weight" not in tensors, **config}
    if config.get(_OTHER_EMBEDDING):  # a head for further tokens that the graphs cannot do
        tensors = {name: it for name, it in tensors.items() if not name.startswith("mtp.")}
    if config.get("architectures") == [GPT_OSS]:
        tensors = gpt_oss_tensors(tensors)
    tensors = usual_names(tensors)
    read_chat, parsed = partial(read_templates, path), _parsed(path, config)
    read = read_tensors(tensors, parsed)
    return Checkpoint(parsed, read, partial(read_tokenizer, path), read_chat)


def read_config(path: Path) -> ModelConfig:
    """What config.json and generation_config.json in a directory say.

    Raises:
        CheckpointError: One is missing or damaged.
        UnsupportedModelError: The exporter cannot do this model.
    """
    return _parsed(path, text_config(read_json_file(path / "config.json")))


def read_weight_map(path: Path) -> dict[str, str]:
    """The file of each tensor, as a model.safetensors.index.json says.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    weight_map = read_json_file(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise CheckpointError(f"{path} has no weight_map of file names")
    for shard in weight_map.values():
        if not is_plain_name(shard):
            raise CheckpointError(f"{path} names {shard!r}, which is not a plain file name")
    return weight_map


def _parsed(path: Path, config: dict[str, Any]) -> ModelConfig:
    generation_path = path / "generation_config.json"
    generation = read_json_file(generation_path) if generation_path.exists() else {}
    return parse_config(config, generation)


def open_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of all shards that the index names.

    Raises:
        CheckpointError: A file or the index is missing or damaged.
    """
    index_path = path / "model.safetensors.index.json"
    names, weight_map = {"model.safetensors"}, None
    if index_path.exists():
        weight_map = read_weight_map(index_path)
        names = set(weight_map.values())
    shards = {name: open_safetensors(path / name) for name in sorted(names)}
    if weight_map is None:
        return shards["model.safetensors"]
    tensors = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CheckpointError(f"{path / shard} lacks {name}, which the index promises")
        tensors[name] = shards[shard][name]
    return tensors


def read_json_file(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a directory.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    with file_errors_as(CheckpointError, path):
        return read_object(path, most_bytes=_MOST_JSON_BYTES)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the language model inside, or the same if that is all there is.

    Raises:
        CheckpointError: There is none inside.
        UnsupportedModelError: It is of a kind that is not supported, or a drafter.
    """
    architectures = config.get("architectures")
    drafter = next((it for it in ASSISTANTS if architectures == [it]), None)
    if drafter is not None:
        raise UnsupportedModelError(
            f"config.json: {drafter} drafts for another model: export that one, with this "
            "one as --assistant"
        )
    parts = next((part for whole, part in _TEXT_PARTS.items() if architectures == [whole]), None)
    if parts is None:
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise CheckpointError(f"config.json: text_config is {text!r:.60}, expected an object")
    kind = text.get("model_type", next(iter(parts)))
    if not isinstance(kind, str) or kind not in parts:
        raise UnsupportedModelError(
            f"config.json: text_config has the model_type {kind!r:.60}, which is not supported, "
            f"only {', '.join(parts)}"
        )
    outside = {name: config[name] for name in _OUTSIDE if name in config}
    return {**outside, **text, "architectures": [parts[kind]]}


def text_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the language model inside, under the names that they have alone."""
    found = {}
    for name, tensor in tensors.items():
        for prefix, alone in _PREFIXES.items():
            if name.startswith(prefix):
                found[alone + name.removeprefix(prefix)] = tensor
        if name.startswith(_ALONE):
            found[name] = tensor
    return found
