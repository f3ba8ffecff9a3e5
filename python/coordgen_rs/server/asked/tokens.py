"""What `/tokenize` and `/detokenize` are asked: their bodies, checked.

In: a body as `Fields`. Out: a text or token ids, or a refusal that names the field.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError, arguments
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.refusal import RefusalError


def asked_tokens(fields: Fields) -> tuple[str, bool, bool]:
    """The body of `/tokenize`: text, whether to add special tokens, and whether to give texts.

    Raises:
        RefusalError: It is malformed.
    """
    content = fields.text("content")
    if content is None:
        raise fields.wrong("content", "must be the text")
    special, with_pieces = fields.flag("add_special"), fields.flag("with_pieces")
    fields.end()
    return content, special, with_pieces


def asked_text(fields: Fields) -> Callable[[int], list[int]]:
    """The body of `/detokenize`: token ids, for a vocabulary of a size.

    Raises:
        RefusalError: It is malformed; what is returned raises it where they are not tokens of the
            model.
    """
    given = fields.take("tokens")
    fields.end()
    if not isinstance(given, list):
        raise fields.wrong("tokens", "must be a list of token ids")
    ids = checked_ids(given, "tokens")

    def ids_for(vocab_size: int) -> list[int]:
        token_array(ids, "tokens", vocab_size)
        return ids

    return ids_for


def checked_ids(given: Sequence[object], field: str) -> list[int]:
    """Token ids, which are integers.

    Raises:
        RefusalError: One is something else.
    """
    for index, token in enumerate(given):
        if not isinstance(token, int) or isinstance(token, bool):
            raise RefusalError(
                f"{field} must be a list of token ids, but {field}[{index}] is "
                f"{arguments.shown(token)}",
                param=field,
                code="invalid_value",
            )
    return [token for token in given if isinstance(token, int)]


def token_array(ids: Sequence[int], field: str, vocab_size: int) -> NDArray[np.uint32]:
    """Token ids of a model, `(tokens,) u32`.

    Raises:
        RefusalError: One is not in its vocabulary.
    """
    try:
        return arguments.token_ids(field, ids, vocab_size)
    except CoordgenError as error:
        raise RefusalError(str(error), param=field, code="invalid_value") from error
