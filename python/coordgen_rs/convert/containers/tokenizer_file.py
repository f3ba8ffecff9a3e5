"""The tokenizer of a Hugging Face checkpoint, as its bundle holds it.

In: tokenizer.json, and tokenizer_config.json where there is one. Out: the text of a tokenizer.json
that puts the begin token before a prompt where transformers does (`text/begin_token.py`).
"""

from pathlib import Path

from tokenizers import Tokenizer

from coordgen_rs.errors import CheckpointError
from coordgen_rs.files.json_text import file_errors_as, read_bytes
from coordgen_rs.text.begin_token import add_begin_token
from coordgen_rs.text.package_errors import package_errors_as

_MOST_BYTES = 512 << 20


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
        read = read_bytes(path, most_bytes=_MOST_BYTES)
    with package_errors_as(CheckpointError, f"{path} is not a readable tokenizer"):
        text = read.decode("utf-8-sig")
        tokenizer = Tokenizer.from_str(text)
    if add_begin_token(tokenizer, path.with_name("tokenizer_config.json"), CheckpointError):
        return str(tokenizer.to_str())
    return text
