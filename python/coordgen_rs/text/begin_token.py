"""The begin token of a prompt, where tokenizer.json alone does not say it.

In: a tokenizer, and the path of the tokenizer_config.json beside it. Out: the tokenizer, which puts
the begin token before a text where transformers does.

The `bos_token_id` of config.json decides nothing: Qwen2 has one, and no prompt begins with it. What
counts is the file's own post-processor, and `add_bos_token` of tokenizer_config.json, on which
transformers builds one where the file has none.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from coordgen_rs.bundle.json_text import JsonTextError, read_json
from coordgen_rs.errors import CoordgenError

_MOST_CONFIG_BYTES = 64 << 20


def add_begin_token(tokenizer: Tokenizer, config: Path, error: type[CoordgenError]) -> bool:
    """Put the begin token before texts, where only tokenizer_config.json asks for it.

    Args:
        tokenizer: Left as it is where it has a post-processor, or no begin token is asked for.
        config: A tokenizer_config.json; it may be missing.
        error: What to raise.

    Returns:
        Whether the tokenizer was changed.

    Raises:
        CoordgenError: `error`: the file is damaged, or the begin token is unknown.
    """
    if tokenizer.post_processor is not None:
        return False
    token = _begin_token(config, error)
    if token is None:
        return False
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise error(f"{config.with_name('tokenizer.json')} lacks the begin token {token!r:.60}")
    tokenizer.post_processor = TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, token_id)]
    )
    return True


def _begin_token(path: Path, error: type[CoordgenError]) -> str | None:
    """The token that tokenizer_config.json puts before a text, if any.

    Raises:
        CoordgenError: `error`: the file is damaged, or does not say which token.
    """
    if not path.exists():
        return None
    try:
        config: Any = read_json(path, most_bytes=_MOST_CONFIG_BYTES, long_integers=True)
    except (JsonTextError, OSError) as cause:
        raise error(f"{path} cannot be read: {cause}") from cause
    if not isinstance(config, dict) or config.get("add_bos_token") is not True:
        return None
    token = config.get("bos_token")
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str):
        raise error(f"{path}: add_bos_token is true, but bos_token is {name!r:.60}")
    return name
