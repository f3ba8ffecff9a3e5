"""How an answer is made: sampling, where it ends, biases of tokens, how many answers.

In: fields of a body, under all the names that clients send them by. Out: options as `Model` takes
them, or a refusal that names the field. Two names of one thing must agree.
"""

import math
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from coordgen_rs.errors import arguments
from coordgen_rs.errors.options import Option
from coordgen_rs.generation.logprobs import MAX_ALTERNATIVES
from coordgen_rs.model import Model
from coordgen_rs.model.options import REQUEST, RequestOptions
from coordgen_rs.server.requests.fields import Fields
from coordgen_rs.server.requests.messages import text_of
from coordgen_rs.server.requests.neutral import check_neutral
from coordgen_rs.server.requests.prompts import check_fits

MOST_CHOICES = 16
"""Most answers to a request."""

MOST_STOPS, MOST_STOP_LEN = 16, 256
"""Stop strings, and characters of each: every token is compared with all of them."""

ALL_THAT_FIT = -1
"""What llama.cpp's clients send for an answer as long as the context has room for."""

_READ_APART = ("max_new_tokens", "stop", "logit_bias")
"""Options whose fields have other forms than `Model` knows."""
_MOST = {"temperature": 100.0}
"""Bounds of the server's own."""

_MOST_BIASES, _MOST_BIAS_LEN = 1024, 256
"""Biases, which each step reads, and characters of a text in place of an id."""
_BIASES = (
    'must map token ids to numbers from -100 to 100, such as {"42": -100}, or be a list of pairs '
    "of a token id or a text with a number or false"
)


def options_of(fields: Fields, dialect: str) -> RequestOptions:
    """How the answer is made, as far as a dialect has fields for it; its length excepted.

    Raises:
        RefusalError: A field is out of range, or asks for what cannot be had.
    """
    found: dict[str, Any] = {}
    for name, option in REQUEST.items():
        names = () if name in _READ_APART else option.names.get(dialect, ())
        value = fields.alias(*names, read=partial(_value, fields, option))
        found[name] = option.checked(name, option.default if value is None else value)
    if found["seed"] is None:
        found["seed"] = secrets.randbits(53)  # any reader of JSON keeps so many
    if dialect != "anthropic":
        check_neutral(fields, has_penalty=found["repetition_penalty"] != 1)
    [name, *_] = REQUEST["stop"].names[dialect]
    return cast("RequestOptions", found | {"stop": _stops(fields, name)})


def _value(fields: Fields, option: Option, name: str) -> Any:
    """The value of an option in a field; None where that says nothing.

    Raises:
        RefusalError: It is of a wrong type or out of range.
    """
    if bool in option.types:
        return fields.flag(name) if fields.has(name) else None
    least = option.least if option.unset is None else min(option.least, option.unset)
    most = min(option.most, _MOST.get(name, math.inf))
    value = fields.checked(name, replace(option, least=least, most=most).checked)
    return None if value == option.unset else value


def _stops(fields: Fields, name: str) -> list[str]:
    """The strings at which the answer is to end.

    Raises:
        RefusalError: It is malformed.
    """
    given, forms = fields.take(name), "a list of strings"
    if name == "stop":  # elsewhere it is a list
        given, forms = [given] if isinstance(given, str) else given, f"a string or {forms}"
    strings = [] if given is None else given
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise fields.wrong(name, f"must be {forms}, none of them empty")
    if len(strings) > MOST_STOPS or any(len(string) > MOST_STOP_LEN for string in strings):
        raise fields.wrong(
            name, f"may hold {MOST_STOPS} strings of {MOST_STOP_LEN} characters each"
        )
    return strings


def limit_of(fields: Fields, *names: str, default: int | None = None) -> int | None:
    """The most tokens of the answer; None for as many as fit.

    Args:
        fields: The fields of the body.
        names: The names of the limit, the first one first in messages.
        default: Where none is given.

    Raises:
        RefusalError: It is out of range, or the names disagree.
    """

    def read(name: str) -> int | None:
        limit = fields.count(name, least=ALL_THAT_FIT)
        if limit == 0:
            raise fields.wrong(name, "must be at least 1, or -1 for as many tokens as fit")
        return limit

    limit = fields.alias(*names, read=read)
    if limit == ALL_THAT_FIT:
        return None
    return default if limit is None else limit


def num_choices_of(fields: Fields) -> int:
    """How many answers to give.

    Raises:
        RefusalError: It is out of range, or more are to be made than given.
    """
    num_choices = fields.count("n", least=1, most=MOST_CHOICES) or 1
    best_of = fields.count("best_of", least=1)
    if best_of is not None and best_of != num_choices:
        raise fields.wrong(
            "best_of",
            f"is {best_of}, but n is {num_choices}: all answers that are made are given, so leave "
            "best_of out",
        )
    return num_choices


def num_alternatives_of(fields: Fields, is_asked: bool, asked_by: str) -> int | None:
    """How many alternatives are told of each token; None where nothing is told.

    Args:
        fields: The fields of the body.
        is_asked: Whether it asks how likely tokens were.
        asked_by: What asks for that.

    Raises:
        RefusalError: `top_logprobs` is malformed, or asks for some of what is not told.
    """
    num = fields.count("top_logprobs", most=MAX_ALTERNATIVES)
    if num and not is_asked:
        raise fields.wrong("top_logprobs", f"is {num}, but needs {asked_by}")
    return (num or 0) if is_asked else None


def prediction_of(fields: Fields, model: Model) -> str | None:
    """The answer as the client expects it; None if it does not say.

    Raises:
        RefusalError: It is malformed, or does not fit.
    """
    if not fields.has("prediction"):
        return None
    prediction = fields.nested("prediction")
    prediction.only("type", "content", why='its type must be "content"')
    content = text_of(prediction, "content")
    prediction.end()
    check_fits(model, content, "prediction")
    return content


def biases_of(fields: Fields, model: Model) -> dict[int, float] | None:
    """`logit_bias`: what is added to the logits of tokens; None where there are none.

    OpenAI's form is a map from ids; llama.cpp's server also has a list of pairs, texts in place of
    ids, of which each token gets the bias, and false for "never". Of several on one token the last
    counts.

    Raises:
        RefusalError: The field is malformed, has too many, or names a token that there is not.
    """
    given = fields.take("logit_bias")
    if not given and isinstance(given, dict | list | None):
        return None
    if not isinstance(given, dict | list):
        raise fields.wrong("logit_bias", f"{_BIASES}, but is {arguments.shown(given)}")
    if len(given) > _MOST_BIASES:
        raise fields.wrong("logit_bias", f"has {len(given)} entries, but may have {_MOST_BIASES}")
    items: Iterable[object] = given.items() if isinstance(given, dict) else given
    found = dict[int, float]()
    for item in items:
        token, bias = _bias(fields, item)
        if isinstance(token, str):
            ids = model.tokenizer.encode(token, special_tokens=False).tolist()
            found |= dict.fromkeys(ids, bias)
        else:
            found[token] = bias
    num_tokens = model.vocab_size
    unknown = next((token for token in found if token >= num_tokens), None)
    if unknown is not None:
        how = f"names token {unknown}, but the model has {num_tokens} tokens"
        raise fields.wrong("logit_bias", how)
    if len(found) > _MOST_BIASES:
        raise fields.wrong("logit_bias", f"is on {len(found)} tokens, but may be on {_MOST_BIASES}")
    return found


def _bias(fields: Fields, item: object) -> tuple[int | str, float]:
    """A token, or a text, and what is added.

    Raises:
        RefusalError: It is malformed.
    """
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise fields.wrong("logit_bias", f"{_BIASES}, but holds {arguments.shown(item)}")
    token, bias = item
    if isinstance(token, str) and token.isascii() and token.isdigit():
        token = int(token) if len(token) < 10 else 2**32
    is_text = isinstance(token, str) and 0 < len(token) <= _MOST_BIAS_LEN
    is_id = isinstance(token, int) and not isinstance(token, bool) and token >= 0
    if not is_text and not is_id:
        raise fields.wrong("logit_bias", f"{_BIASES}, but names the token {arguments.shown(token)}")
    if bias is False:
        return token, -math.inf
    is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
    if not is_number or not -100 <= bias <= 100:
        how = f"must be -100 to 100, but is {arguments.shown(bias)}"
        raise fields.wrong("logit_bias", f"of token {arguments.shown(token)} {how}")
    return token, float(bias)
