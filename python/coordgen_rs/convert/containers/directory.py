"""A Hugging Face directory: JSON files, safetensors and a tokenizer.

In: the directory. Out: the object of a JSON file, tensors by name, of which only headers are read,
and the text of a tokenizer.json that puts the begin token before a prompt where transformers does
(`text/tokenizer.py`).
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from coordgen_rs.bundle.file_names import is_plain_name
from coordgen_rs.bundle.json_text import file_errors_as, read_bytes, read_object
from coordgen_rs.convert.containers.safetensors import open_safetensors
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.errors import CheckpointError
from coordgen_rs.text.tokenizer import add_begin_token, package_errors_as

_MOST_JSON_BYTES, _MOST_TOKENIZER_BYTES = 64 << 20, 512 << 20


def read_json_file(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a directory.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    with file_errors_as(CheckpointError, path):
        return read_object(path, most_bytes=_MOST_JSON_BYTES)


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


def read_tokenizer(directory: Path) -> str:
    """The text of a tokenizer.json; the checkpoint's own where nothing is to be added.

    Raises:
        CheckpointError: A file is missing or damaged, or the begin token is unknown.
    """
    return read_tokenizer_json(directory / "tokenizer.json")


def read_tokenizer_json(path: Path) -> str:
    """The same for a tokenizer.json's path; a tokenizer_config.json beside it counts, too.

    Raises:
        CheckpointError: As `read_tokenizer`.
    """
    with file_errors_as(CheckpointError, path):
        read = read_bytes(path, most_bytes=_MOST_TOKENIZER_BYTES)
    with package_errors_as(CheckpointError, f"{path} is not a readable tokenizer"):
        text = read.decode("utf-8-sig")
        tokenizer = Tokenizer.from_str(text)
    if add_begin_token(tokenizer, path.with_name("tokenizer_config.json"), CheckpointError):
        return str(tokenizer.to_str())
    return text
