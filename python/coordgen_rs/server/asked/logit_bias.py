"""`logit_bias` of a request: what is added to the logits of tokens, by their ids or as texts.

In: a body as `Fields`. Out: an `AskedBias`, to be made into ids once the model is known, or a
refusal that names the field. OpenAI's form is a map from ids; llama.cpp's server also has a list of
pairs, texts in place of ids, of which each token gets the bias, and false for "never".
"""

import math
from collections.abc import Iterable, Sequence

from coordgen_rs.errors import arguments
from coordgen_rs.model import Model
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.refusal import RefusalError

_FIELD = "logit_bias"
_MOST, _MOST_LEN = 1024, 256
"""Biases, which each step reads, and characters of a text in place of an id."""

_FORMS = (
    'must map token ids to numbers from -100 to 100, such as {"42": -100}, or be a list of pairs '
    "of a token id or a text with a number or false"
)


class BiasError(RefusalError):
    """Biases cannot be had.

    Args:
        how: What is wrong with them.
    """

    def __init__(self, how: str) -> None:
        super().__init__(f"{_FIELD} {how}", param=_FIELD, code="invalid_value")


class AskedBias:
    """What is added to which tokens; where one is named more than once, the last counts.

    Args:
        pairs: Token ids, or texts, with their numbers; minus infinity for false.
    """

    def __init__(self, pairs: Sequence[tuple[int | str, float]]) -> None:
        self._pairs, self._found = pairs, dict[int, float]()

    def by_id(self, model: Model) -> dict[int, float]:
        """The biases by token id; texts are tokenized when it is first called.

        Raises:
            BiasError: A token is not in the model's vocabulary, or there are too many.
        """
        if not self._found:
            self._found = self._by_id(model)
        return self._found

    def _by_id(self, model: Model) -> dict[int, float]:
        found = dict[int, float]()
        for token, bias in self._pairs:
            if isinstance(token, str):
                ids = model.tokenizer.encode(token, special_tokens=False).tolist()
            else:
                ids = [token]
            found |= dict.fromkeys(ids, bias)
        unknown = next((token for token in found if token >= model.vocab_size), None)
        if unknown is not None:
            raise BiasError(f"names token {unknown}, but the model has {model.vocab_size} tokens")
        if len(found) > _MOST:
            raise BiasError(f"is on {len(found)} tokens, but may be on {_MOST}")
        return found


def logit_bias_of(fields: Fields) -> AskedBias | None:
    """The biases; None where there are none.

    Raises:
        BiasError: The field is malformed.
    """
    given = fields.take(_FIELD)
    if not given and isinstance(given, dict | list | None):
        return None
    if not isinstance(given, dict | list):
        raise BiasError(f"{_FORMS}, but is {arguments.shown(given)}")
    if len(given) > _MOST:
        raise BiasError(f"has {len(given)} entries, but may have {_MOST}")
    items: Iterable[object] = given.items() if isinstance(given, dict) else given
    return AskedBias([_pair(item) for item in items])


def _pair(item: object) -> tuple[int | str, float]:
    """A token, or a text, and what is added.

    Raises:
        BiasError: It is malformed.
    """
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise BiasError(f"{_FORMS}, but holds {arguments.shown(item)}")
    token, bias = item
    if isinstance(token, str) and token.isascii() and token.isdigit():
        token = int(token) if len(token) < 10 else 2**32
    is_text = isinstance(token, str) and 0 < len(token) <= _MOST_LEN
    is_id = isinstance(token, int) and not isinstance(token, bool) and token >= 0
    if not is_text and not is_id:
        raise BiasError(f"{_FORMS}, but names the token {arguments.shown(token)}")
    if bias is False:
        return token, -math.inf
    is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
    if not is_number or not -100 <= bias <= 100:
        shown = arguments.shown(bias)
        raise BiasError(f"of token {arguments.shown(token)} must be -100 to 100, but is {shown}")
    return token, float(bias)
