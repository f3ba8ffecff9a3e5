"""Which format a checkpoint has: the path that a user gives, opened.

In: a path, or a name of the Hugging Face Hub. Out: a `Checkpoint`; each format is its reader's.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from coordgen_rs.convert.containers.hub import fetch, hub_name
from coordgen_rs.convert.containers.llama2c import open_llama2c
from coordgen_rs.convert.containers.tokenizer_file import read_tokenizer_json
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.families.hugging_face import open_hugging_face, read_config
from coordgen_rs.errors import CheckpointError
from coordgen_rs.files.json_text import JsonTextError, open_regular


def open_checkpoint(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Opens a Hugging Face directory, a GGUF file, or a llama2.c `.bin` or a directory with one.

    Args:
        path: The checkpoint's path, or `hf:OWNER/NAME[/FILE.gguf][@REVISION]`.
        tokenizer: A tokenizer.json that takes the place of the checkpoint's own.

    Raises:
        CheckpointError: Something is missing or damaged.
        UnsupportedModelError: The exporter cannot do this model.
        OptionError: The path is of the form `hf:..`, and malformed, or huggingface_hub is absent.
    """
    source = _open(path)
    if tokenizer is None:
        return source
    return replace(source, read_tokenizer=partial(_given_tokenizer, tokenizer, source))


def fetched(
    path: Path, check: Callable[[Path], object] = read_config, *, needs_tokenizer: bool = True
) -> Path:
    """Where a checkpoint is on this machine: the path itself, or what a name of the hub gave.

    Args:
        path: The path, or the name.
        check: Is given a directory of the hub when nothing but the configuration is in it.
        needs_tokenizer: Whether a directory of the hub without a tokenizer is refused.

    Raises:
        CheckpointError: It cannot be fetched.
        OptionError: The path is of the form `hf:..`, and malformed, or huggingface_hub is absent.
    """
    name = hub_name(path)
    return path if name is None else fetch(name, check, needs_tokenizer=needs_tokenizer)


def _given_tokenizer(path: Path, source: Checkpoint) -> str:
    """The text of a tokenizer.json that the user gives.

    Raises:
        CheckpointError: It is damaged, or of another model.
    """
    text = read_tokenizer_json(path)
    ids = Tokenizer.from_str(text).get_vocab()
    largest, size = max(ids.values(), default=0), source.config.vocab_size
    if largest >= size:
        raise CheckpointError(
            f"{path} is another model's: it has the token id {largest}, the vocabulary {size} ids"
        )
    others = [number for number, token in enumerate(source.tokens) if ids.get(token) != number]
    if len(others) > len(source.tokens) // 2:  # some may be padding, or written in another way
        raise CheckpointError(
            f"{path} is another model's: {len(others)} of {len(source.tokens)} tokens differ, "
            f"first {source.tokens[others[0]]!r:.40}"
        )
    return text


def _open(path: Path) -> Checkpoint:
    """The checkpoint with its own tokenizer.

    Raises:
        CheckpointError: Something is missing or damaged.
    """
    path = fetched(path)
    if (path / "config.json").is_file():
        return open_hugging_face(path)
    if path.is_file() and _is_gguf(path):
        # The gguf package is large, and of no use for others.
        from coordgen_rs.convert.families.gguf.model_file import open_gguf

        return open_gguf(path)
    if path.is_file() and path.suffix == ".bin":
        return open_llama2c(path)
    if (path / "manifest.json").is_file():
        raise CheckpointError(f"{path} is a bundle: give the checkpoint that it was exported from")
    models = [file for file in path.glob("*.bin") if not file.name.startswith("tok")]
    if len(models) == 1:
        return open_llama2c(models[0])
    raise CheckpointError(f"{path} {_what_it_is(path)}")


def _is_gguf(path: Path) -> bool:
    """Whether a file is one of GGUF, by its name or, as in the store of Ollama, its first bytes."""
    if path.suffix == ".gguf":
        return True
    try:
        with open_regular(path) as stream:
            return stream.read(4) == b"GGUF"
    except (OSError, JsonTextError):
        return False


def _what_it_is(path: Path) -> str:
    """Why a path is no checkpoint."""
    if not path.exists():
        is_address = str(path).startswith(("http:/", "https:/"))
        why = "is an address" if is_address else "does not exist"
        return f"{why}; a model of the Hugging Face Hub is called hf:OWNER/NAME"
    files = sorted(path.glob("*.gguf"))
    if files:
        return f"is a directory with a GGUF file, not a checkpoint: give the file, {files[0]}"
    if path.is_file():
        return "is no GGUF file; give one, or a directory with a config.json"
    return "holds no config.json and no GGUF file, and no single llama2.c .bin file"
