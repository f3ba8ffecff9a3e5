"""A GGUF file as a checkpoint.

In: a path, of the first part where there are several. Out: configuration, tensors, tokenizer and
chat template. Only headers are read.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from coordgen_rs.convert.containers.gguf.chat import chat_templates
from coordgen_rs.convert.containers.gguf.header import GgufHeader
from coordgen_rs.convert.containers.gguf.parts import read_parts
from coordgen_rs.convert.containers.gguf.tensors import open_tensors
from coordgen_rs.convert.containers.gguf.tokenizer import tokenizer_json
from coordgen_rs.convert.containers.gguf.values import GgufMetadata, num_blocks, num_layers
from coordgen_rs.convert.families.checkpoint import Checkpoint, read_tensors
from coordgen_rs.convert.families.config.experts import PARTS, ROUTER
from coordgen_rs.convert.families.config.model import parse_config
from coordgen_rs.convert.families.config.recurrent import DeltaNet, SelectiveState
from coordgen_rs.convert.families.gguf.architectures import (
    Architecture,
    architecture_named,
    hugging_face_names,
    next_token_names,
)
from coordgen_rs.convert.families.gguf.messages import named_by_file
from coordgen_rs.convert.families.gguf.metadata import (
    ROPE_TENSORS,
    config_document,
    generation_document,
)
from coordgen_rs.convert.families.gguf.value_heads import grouped

_BIASES = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
_OUT_BIASES = ("self_attn.o_proj.bias",)
_EXPERTS_BIASES = (f"{ROUTER}.bias", *(f".experts.{part}.bias" for part in PARTS))
_CONVOLUTION_BIASES = ("mamba.conv1d.bias",)


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file, which may be in parts.

    Raises:
        CheckpointError: It is damaged, or lacks something; or it is not the first part.
        UnsupportedModelError: The exporter cannot do this model.
    """
    header = read_parts(path)
    metadata = GgufMetadata(header)
    architecture = architecture_named(metadata.architecture)
    document, generation = config_document(metadata, architecture), generation_document(metadata)
    with named_by_file(metadata):
        config = parse_config(document, generation)
    # llama.cpp's converter has added the offset of Gemma and Qwen3.5 to the weights.
    config = replace(config, norm_offset=0.0)
    layers, blocks = num_layers(metadata), num_blocks(metadata)
    names = hugging_face_names(architecture, layers)
    left_out = (*ROPE_TENSORS, *(f"blk.{number}." for number in range(layers, blocks)))
    if blocks == layers + 1:
        names |= _next_names(architecture, header, layers)
    weights = {
        name: it
        for name, it in header.tensors.items()
        if name in names or not name.startswith(left_out)
    }
    head_dim = config.head_dim if architecture.rotates_neighbours else None
    biases: tuple[str, ...] = _BIASES if config.qkv_bias else ()
    if config.out_bias:
        biases += _OUT_BIASES
    if config.experts is not None and config.experts.has_biases:
        biases += _EXPERTS_BIASES
    if isinstance(config.recurrent, SelectiveState):
        biases += _CONVOLUTION_BIASES
    tensors = open_tensors(GgufHeader(path, header.metadata, weights), names, head_dim, biases)
    if isinstance(config.recurrent, DeltaNet):
        tensors, recurrent = grouped(tensors, config.recurrent)
        config = replace(config, recurrent=recurrent)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return Checkpoint(
        config,
        read_tensors(tensors, config),
        partial(tokenizer_json, header),
        partial(chat_templates, header),
        tokens=tokens if isinstance(tokens, list) else [],
        is_gguf=True,
    )


def _next_names(architecture: Architecture, header: GgufHeader, block: int) -> dict[str, str]:
    """The names of a head for further tokens; none where it is not like that of Qwen3.5.

    That reads the model's own embedding, and is scored by its own output layer.
    """
    names = next_token_names(architecture, block)
    beside = {name for name in header.tensors if name.startswith(f"blk.{block}.nextn.")}
    return names if beside == {name for name in names if ".nextn." in name} else {}
