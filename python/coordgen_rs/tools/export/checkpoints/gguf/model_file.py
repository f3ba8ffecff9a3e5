"""A GGUF file as a checkpoint.

In: a path. Out: configuration, tensors, tokenizer and chat template. Only the header is read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from coordgen_rs.errors import UnsupportedModelError
from coordgen_rs.text.chat_files import ChatTemplates
from coordgen_rs.tools.export.checkpoints.config import ModelConfig, parse_config
from coordgen_rs.tools.export.checkpoints.gguf.architectures import (
    architecture_named,
    hugging_face_names,
)
from coordgen_rs.tools.export.checkpoints.gguf.chat import chat_templates
from coordgen_rs.tools.export.checkpoints.gguf.header import GgufHeader, read_header
from coordgen_rs.tools.export.checkpoints.gguf.metadata import (
    ROPE_TENSORS,
    GgufMetadata,
    config_document,
    generation_document,
    num_layers,
)
from coordgen_rs.tools.export.checkpoints.gguf.tensors import open_tensors
from coordgen_rs.tools.export.checkpoints.gguf.tokenizer import tokenizer_json
from coordgen_rs.tools.export.checkpoints.tensor import Tensor

_ADDED = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")

Opened = tuple[
    ModelConfig, dict[str, Tensor], Callable[[], str], Callable[[], ChatTemplates], Sequence[str]
]
"""What a `Checkpoint` holds; the texts of the tokens, by id, come last."""


def open_gguf(path: Path) -> Opened:
    """Opens a GGUF file.

    Raises:
        CheckpointError: It is damaged, or lacks something.
        UnsupportedModelError: The exporter cannot do this model.
    """
    header = read_header(path)
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedModelError(
            f"{path} is one of several parts: join them with `llama-gguf-split --merge`"
        )
    metadata = GgufMetadata(header)
    architecture = architecture_named(metadata.architecture)
    config = parse_config(config_document(metadata, architecture), generation_document(metadata))
    # llama.cpp's converter has added Gemma's offset to the weights.
    config = replace(config, norm_offset=0.0)
    names = hugging_face_names(architecture, num_layers(metadata))
    weights = {name: it for name, it in header.tensors.items() if name not in ROPE_TENSORS}
    head_dim = config.head_dim if architecture.rotates_neighbours else None
    tensors = open_tensors(GgufHeader(path, header.metadata, weights), names, head_dim)
    _refuse_biases(path, tensors, config)
    read_chat = partial(chat_templates, header)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    known = tokens if isinstance(tokens, list) else []
    return config, tensors, partial(tokenizer_json, header), read_chat, known


def _refuse_biases(path: Path, tensors: Iterable[str], config: ModelConfig) -> None:
    """Refuse biases that the graphs do not add; no metadata tells of them.

    Raises:
        UnsupportedModelError: There is one; the message names it.
    """
    added = _ADDED if config.qkv_bias else ()
    for name in tensors:
        if name.endswith(".bias") and not name.endswith(added):
            raise UnsupportedModelError(f"{path}: {name} is a bias, which is not supported")
