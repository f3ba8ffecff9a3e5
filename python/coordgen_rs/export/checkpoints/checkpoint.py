"""A checkpoint: a model's configuration, its weights by name, and its tokenizer.

In: a path. Out: a `Checkpoint`, the same for every format. Weights carry their Hugging Face names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coordgen_rs.errors import CheckpointError
from coordgen_rs.export.checkpoints.config import ModelConfig, parse_config
from coordgen_rs.export.checkpoints.llama2c import open_llama2c
from coordgen_rs.export.checkpoints.safetensors_file import open_safetensors
from coordgen_rs.export.checkpoints.tensor import Tensor
from coordgen_rs.export.checkpoints.text_part import text_config, text_tensors
from coordgen_rs.export.checkpoints.tokenizer_file import read_tokenizer
from coordgen_rs.files.file_names import is_plain_name
from coordgen_rs.files.json_text import JsonTextError, read_json
from coordgen_rs.text.chat_files import ChatTemplates, read_templates

_MOST_JSON_BYTES = 64 << 20


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; nothing but headers has been read."""

    config: ModelConfig
    tensors: dict[str, Tensor]
    read_tokenizer: Callable[[], str]
    """The text of a tokenizer.json; may raise CheckpointError."""
    is_gguf: bool = False
    """Whether it is a GGUF file, whose weights may be kept as they are."""
    read_chat: Callable[[], ChatTemplates] = ChatTemplates
    """The chat templates in files of their own; none by default. May raise ChatTemplateError."""
    chat_template: str | None = None
    """The chat template of a format that has one among its metadata."""

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor of that name.

        Raises:
            CheckpointError: It is missing, or of another shape.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        if tensor.shape != shape:
            raise CheckpointError(f"{name} has the shape {tensor.shape}, expected {shape}")
        return tensor


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a Hugging Face directory, a GGUF file, or a llama2.c `.bin` or a directory with one.

    Raises:
        CheckpointError: Something is missing or damaged.
        UnsupportedModelError: The exporter cannot do this model.
    """
    if (path / "config.json").is_file():
        return _open_hugging_face(path)
    if path.is_file() and path.suffix == ".gguf":
        # The gguf package is large, and of no use for others.
        from coordgen_rs.export.checkpoints.gguf.model_file import open_gguf

        return Checkpoint(*open_gguf(path), is_gguf=True)
    if path.is_file() and path.suffix == ".bin":
        return Checkpoint(*open_llama2c(path))
    models = [file for file in path.glob("*.bin") if not file.name.startswith("tok")]
    if len(models) == 1:
        return Checkpoint(*open_llama2c(models[0]))
    raise CheckpointError(
        f"{path} is no GGUF file, and holds no config.json and no single llama2.c .bin file"
    )


def _open_hugging_face(path: Path) -> Checkpoint:
    generation_path = path / "generation_config.json"
    generation = _read_object(generation_path) if generation_path.exists() else {}
    document = _read_object(path / "config.json")
    return Checkpoint(
        parse_config(text_config(document), generation),
        text_tensors(document, _open_weights(path)),
        partial(read_tokenizer, path),
        read_chat=partial(read_templates, path),
    )


def _open_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of all shards that the index names.

    Raises:
        CheckpointError: A file or the index is missing or damaged.
    """
    index_path = path / "model.safetensors.index.json"
    if not index_path.exists():
        return open_safetensors(path / "model.safetensors")
    weight_map = _read_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise CheckpointError(f"{index_path} has no weight_map of file names")
    for shard in weight_map.values():
        if not is_plain_name(shard):
            raise CheckpointError(f"{index_path} names {shard!r}, which is not a plain file name")
    shards = {name: open_safetensors(path / name) for name in sorted(set(weight_map.values()))}
    tensors = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CheckpointError(f"{path / shard} lacks {name}, which the index promises")
        tensors[name] = shards[shard][name]
    return tensors


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path, most_bytes=_MOST_JSON_BYTES)
    except JsonTextError as error:
        raise CheckpointError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} does not hold an object")
    return document
