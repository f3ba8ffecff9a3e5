"""What `/tokenize` and `/detokenize` are asked: their bodies, checked.

In: a body as `Fields`. Out: a text or token ids, or a refusal that names the field.
"""

from collections.abc import Callable

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

    def ids_for(vocab_size: int) -> list[int]:
        try:
            ids: list[int] = arguments.token_ids("tokens", given, vocab_size).tolist()
        except CoordgenError as error:
            raise RefusalError(str(error), param="tokens", code="invalid_value") from error
        return ids

    return ids_for
