"""The tokenizer of a Hugging Face checkpoint, as its bundle holds it.

In: tokenizer.json, and tokenizer_config.json where there is one. Out: the text of a tokenizer.json
that puts the begin token before a prompt where transformers does.

The `bos_token_id` of config.json decides nothing: Qwen2 has one, and no prompt begins with it. What
counts is the file's own post-processor, and `add_bos_token` of tokenizer_config.json, on which
transformers builds one where the file has none.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from coordgen_rs.errors import CheckpointError
from coordgen_rs.files.json_text import JsonTextError, read_bytes, read_json
from coordgen_rs.text.package_errors import package_errors_as

_MOST_BYTES = 512 << 20
_MOST_CONFIG_BYTES = 64 << 20


def read_tokenizer(directory: Path) -> str:
    """The text of a tokenizer.json; the checkpoint's own where nothing is to be added.

    Raises:
        CheckpointError: A file is missing or damaged, or the begin token is unknown.
    """
    path = directory / "tokenizer.json"
    with package_errors_as(CheckpointError, f"{path} cannot be read"):
        text = read_bytes(path, most_bytes=_MOST_BYTES).decode("utf-8-sig")
        tokenizer = Tokenizer.from_str(text)
    if tokenizer.post_processor is not None:
        return text
    token = _begin_token(directory / "tokenizer_config.json")
    if token is None:
        return text
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise CheckpointError(f"{path} lacks the begin token {token!r:.60}")
    tokenizer.post_processor = TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, token_id)]
    )
    return str(tokenizer.to_str())


def _begin_token(path: Path) -> str | None:
    """The token that tokenizer_config.json puts before a text, if any.

    Raises:
        CheckpointError: The file is damaged, or does not say which token.
    """
    if not path.exists():
        return None
    try:
        config: Any = read_json(path, most_bytes=_MOST_CONFIG_BYTES)
    except (JsonTextError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("add_bos_token") is not True:
        return None
    token = config.get("bos_token")
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: add_bos_token is true, but bos_token is {name!r:.60}")
    return name
