"""What is answered from a tokenizer and a template alone, as llama.cpp's server does.

In: a body as `Fields`, and a model. Out: an object for JSON, or a refusal that names the field.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError, arguments
from coordgen_rs.model import Model
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.fields import Fields


def tokenize(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/tokenize`: the tokens of a text.

    Raises:
        RefusalError: The body is malformed.
    """
    content = fields.text("content")
    if content is None:
        raise fields.wrong("content", "must be the text")
    special_tokens, with_pieces = fields.flag("add_special"), fields.flag("with_pieces")
    fields.end()
    ids = model.tokenizer.encode(content, special_tokens=special_tokens).tolist()
    if not with_pieces:
        return {"tokens": ids}
    bytes_of = model.tokenizer.spelling.bytes_of
    return {"tokens": [{"id": token, "piece": _piece(bytes_of(token))} for token in ids]}


def detokenize(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/detokenize`: the text of tokens.

    Raises:
        RefusalError: The body is malformed, or has what is no token of the model.
    """
    given = fields.take("tokens")
    fields.end()
    if not isinstance(given, list):
        raise fields.wrong("tokens", "must be a list of token ids")
    return {"content": model.tokenizer.decode(token_array(given, "tokens", model).tolist())}


def token_array(given: list[Any], field: str, model: Model) -> NDArray[np.uint32]:
    """Token ids of a model, `(tokens,) u32`.

    Raises:
        RefusalError: One is no integer, or not in the model's vocabulary.
    """
    for index, token in enumerate(given):
        if not isinstance(token, int) or isinstance(token, bool):
            raise RefusalError(
                f"{field} must be a list of token ids, but {field}[{index}] is "
                f"{arguments.shown(token)}",
                param=field,
                code="invalid_value",
            )
    try:
        return arguments.token_ids(field, given, model.vocab_size)
    except CoordgenError as error:
        raise RefusalError(str(error), param=field, code="invalid_value") from error


def _piece(spelt: bytes) -> str | list[int]:
    """A token's text; its bytes where they are none alone, as llama.cpp's server tells it."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)
