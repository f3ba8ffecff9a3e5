"""How an answer is made: sampling, where it ends, biases of tokens, and what it is held to.

In: fields of a body, under all the names that clients of other servers send them by. Out: options
as `Model` takes them and one grammar, or an error that names the field. Two names of one thing
must agree; two grammars exclude each other, and whether one can be followed is found out where it
meets the model. What cannot be had may say what happens anyway: clients send their own settings at
neutral values.
"""

import math
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.arguments import Option
from coordgen_rs.model import Model
from coordgen_rs.model.options import REQUEST, RequestOptions
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.prompts import check_fits, text_of
from coordgen_rs.text.grammar.kinds import Gbnf, Grammar, JsonSchema, Lark, Regex

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
_FORMS = (
    'must map token ids to numbers from -100 to 100, such as {"42": -100}, or be a list of pairs '
    "of a token id or a text with a number or false"
)

_LAST_N = 64
"""How far back llama.cpp and Ollama look for the penalty, where nothing else is said."""

_SAMPLERS = (
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc"),
    "temperature",
)
"""llama.cpp's samplers, in the order in which it applies them where none is given."""
_OURS = {"top_k", "top_p", "min_p", "temperature"}

_NO_SUCH_SAMPLER = "take top_p or min_p"
_NO_FUNCTIONS = "give tools"
_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "add_generation_prompt": ((True,), "an answer is the assistant's"),
    "backend_sampling": ((False,), "tokens are sampled in one way only"),
    "bad_words": (([],), "take logit_bias"),
    "continue_final_message": ((False,), "an answer begins a message of its own"),
    "dry_multiplier": ((0,), _NO_SUCH_SAMPLER),
    "dynatemp_range": ((0,), _NO_SUCH_SAMPLER),
    "function_call": (("auto", "none"), _NO_FUNCTIONS),
    "functions": (([],), _NO_FUNCTIONS),
    "id_slot": ((-1,), "a request takes the first place that is free"),
    "include_stop_str_in_output": ((False,), "an answer ends before a stop string"),
    "length_penalty": ((1,), "no beams are searched"),
    "min_keep": ((0,), "the samplers keep one token, and no more for their own sake"),
    "min_tokens": ((0,), "take ignore_eos"),
    "mirostat": ((0,), _NO_SUCH_SAMPLER),
    "n_probs": ((0,), "take logprobs"),
    "post_sampling_probs": ((False,), "logprobs are those of the model"),
    "priority": ((0,), "requests take turns"),
    "return_progress": ((False,), "a stream has no progress of its prompt"),
    "skip_special_tokens": ((True,), "special tokens are no text"),
    "spaces_between_special_tokens": ((True,), "special tokens are no text"),
    "stop_token_ids": (([],), "take stop"),
    "tfs_z": ((1,), _NO_SUCH_SAMPLER),
    "top_n_sigma": ((-1, 0), _NO_SUCH_SAMPLER),
    "typ_p": ((1,), _NO_SUCH_SAMPLER),
    "typical_p": ((1,), _NO_SUCH_SAMPLER),
    "use_beam_search": ((False,), "no beams are searched"),
    "verbosity": (("medium",), "the model has no such setting"),
    "xtc_probability": ((0,), _NO_SUCH_SAMPLER),
}
"""Values that change nothing, and what is said about others."""

_NEUTRAL_SETTINGS = (
    *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("dynatemp_exponent", "mirostat_eta", "mirostat_tau", "xtc_threshold"),
    "timings_per_token",
)
"""Settings of samplers that are off; and when figures are told, which is at the end here."""

_MOST_TEXTS = 1024
"""Texts among which an answer may have to choose."""

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")
_FORMATS = ("text", "json_object", "json_schema")
_KINDS = ("json", "regex", "choice", "grammar")
"""What vLLM's fields may hold."""
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class Constraint(NamedTuple):
    """What an answer is held to.

    Attributes:
        field: The field that asks for it.
        grammar: The grammar.
    """

    field: str
    grammar: Grammar


def options_of(fields: Fields, dialect: str) -> RequestOptions:
    """How the answer is made, as far as `Option.names` has fields of a dialect for it.

    The length, and what depends on the model, are read apart.

    Raises:
        APIError: A field is out of range, or asks for what cannot be had.
    """
    found: dict[str, Any] = {}
    for name, option in REQUEST.items():
        names = () if name in _READ_APART else option.names.get(dialect, ())
        value = fields.alias(*names, read=partial(_value, fields, option))
        found[name] = option.checked(name, option.default if value is None else value)
    if not np.float32(found["top_p"]):  # which is what the core counts in
        raise fields.wrong("top_p", f"is {found['top_p']:g}, but must be above 0 and at most 1")
    if found["seed"] is None:
        found["seed"] = secrets.randbits(53)  # any reader of JSON keeps so many
    if dialect != "anthropic":
        _check_neutral(fields, has_penalty=found["repetition_penalty"] != 1)
    [name, *_] = REQUEST["stop"].names[dialect]
    return cast("RequestOptions", found | {"stop": _stops(fields, name)})


def _value(fields: Fields, option: Option, name: str) -> Any:
    """The value of an option in a field; None where that says nothing.

    Raises:
        APIError: It is of a wrong type or out of range.
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
        APIError: It is malformed.
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
        APIError: It is out of range, or the names disagree.
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


def num_alternatives_of(fields: Fields, is_asked: bool, asked_by: str) -> int | None:
    """How many alternatives are told of each token; None where nothing is told.

    Args:
        fields: The fields of the body.
        is_asked: Whether it asks how likely tokens were.
        asked_by: What asks for that.

    Raises:
        APIError: `top_logprobs` is malformed, or asks for some of what is not told.
    """
    num = fields.count("top_logprobs", most=REQUEST["logprobs"].most)
    if num and not is_asked:
        raise fields.wrong("top_logprobs", f"is {num}, but needs {asked_by}")
    return (num or 0) if is_asked else None


def prediction_of(fields: Fields, model: Model) -> str | None:
    """The answer as the client expects it; None if it does not say.

    Raises:
        APIError: It is malformed, or does not fit.
    """
    if not fields.has("prediction"):
        return None
    prediction = fields.nested("prediction")
    prediction.only("type", "content", why='its type must be "content"')
    prediction.end(but="content")
    content = text_of(prediction, "content")
    check_fits(model, content, "prediction")
    return content


def biases_of(fields: Fields, model: Model) -> dict[int, float] | None:
    """`logit_bias`: what is added to the logits of tokens; None where there are none.

    OpenAI's form is a map from ids; llama.cpp's server also has a list of pairs, texts in place of
    ids, of which each token gets the bias, and false for "never". Of several on one token the last
    counts.

    Raises:
        APIError: The field is malformed, has too many, or names a token that there is not.
    """
    given = fields.take("logit_bias")
    if not given and isinstance(given, dict | list | None):
        return None
    if not isinstance(given, dict | list):
        raise fields.wrong("logit_bias", f"{_FORMS}, but is {arguments.shown(given)}")
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
        APIError: It is malformed.
    """
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise fields.wrong("logit_bias", f"{_FORMS}, but holds {arguments.shown(item)}")
    token, bias = item
    if isinstance(token, str) and token.isascii() and token.isdigit():
        token = int(token) if len(token) < 10 else 2**32
    is_text = isinstance(token, str) and 0 < len(token) <= _MOST_BIAS_LEN
    is_id = isinstance(token, int) and not isinstance(token, bool) and token >= 0
    if not is_text and not is_id:
        raise fields.wrong("logit_bias", f"{_FORMS}, but names the token {arguments.shown(token)}")
    if bias is False:
        return token, -math.inf
    is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
    if not is_number or not -100 <= bias <= 100:
        how = f"must be -100 to 100, but is {arguments.shown(bias)}"
        raise fields.wrong("logit_bias", f"of token {arguments.shown(token)} {how}")
    return token, float(bias)


def _check_neutral(fields: Fields, *, has_penalty: bool) -> None:
    """Check that fields which cannot be had change nothing.

    Args:
        fields: The fields of the body, or of Ollama's options.
        has_penalty: Whether repetitions are made less likely.

    Raises:
        APIError: One would.
    """
    for name, (values, why) in _NEUTRAL.items():
        fields.only(name, *values, why=why)
    fields.ignore(*_NEUTRAL_SETTINGS)
    if not has_penalty:
        fields.ignore("repeat_last_n")
    fields.only("repeat_last_n", -1, _LAST_N, why="the penalty looks at the whole text")
    given = fields.take("samplers")
    if given is None:
        return
    named = given if isinstance(given, list) else []
    if [name for name in _SAMPLERS if name in named] != named or not {*named} >= _OURS:
        raise fields.wrong("samplers", f"must be in the usual order: {', '.join(_SAMPLERS)}")


def constraint_of(
    fields: Fields, own: Fields, given: Constraint | None = None
) -> Constraint | None:
    """What the answer is held to; None for anything.

    Args:
        fields: The fields of the body: `response_format` is OpenAI's, `json_schema` and `grammar`
            are llama.cpp's, `structured_outputs` and `guided_*` vLLM's.
        own: Those of `coordgen`.
        given: What another field holds it to.

    Raises:
        APIError: It is malformed, or there are several.
    """
    outputs = fields.nested("structured_outputs")
    asked = [
        *((fields, "json_schema", "json"), (fields, "grammar", "grammar")),
        *((fields, f"guided_{kind}", kind) for kind in _KINDS),
        *((outputs, kind, kind) for kind in ("json_object", *_KINDS)),
        *((own, kind, kind) for kind in ("regex", "lark")),
    ]
    each = [given, format_of(fields, "response_format"), *(_grammar(*one) for one in asked)]
    outputs.end()
    found = [one for one in each if one is not None]
    for other in found[1:]:
        how = "exclude each other: an answer is held to one of them"
        raise fields.wrong(other.field, f"and {found[0].field} {how}")
    return found[0] if found else None


def _grammar(fields: Fields, name: str, kind: str) -> Constraint | None:
    """The grammar in a field; None where that is absent, or an empty `grammar`.

    Args:
        fields: The fields.
        name: The field's name.
        kind: What it holds.

    Raises:
        APIError: It is malformed.
    """
    if not fields.has(name):
        return None
    grammar: Grammar
    if kind == "json":
        grammar = schema_of(fields, name, may_be_text=True)
    elif kind == "json_object":
        if not fields.flag(name):
            return None
        grammar = JsonSchema(_ANY_OBJECT)
    elif kind == "choice":
        texts = fields.take(name)
        are_texts = isinstance(texts, list) and all(isinstance(t, str) and t for t in texts)
        if not are_texts or not 0 < len(texts) <= _MOST_TEXTS:
            how = f"must be a list of 1 to {_MOST_TEXTS} texts, none of them empty"
            raise fields.wrong(name, how)
        grammar = Regex("|".join(_META.sub(r"\\\g<0>", text) for text in texts))
    else:
        text = fields.text(name) or ""
        if kind == "grammar" and not text:
            return None
        is_gbnf = kind == "grammar" and "::=" in text  # which is how it writes rules
        grammar = Regex(text) if kind == "regex" else Gbnf(text) if is_gbnf else Lark(text)
    return Constraint(fields.name(name), grammar)


def schema_of(fields: Fields, name: str, *, may_be_text: bool = False) -> JsonSchema:
    """The JSON schema in a field.

    Raises:
        APIError: It is none.
    """
    schema = fields.take(name)
    if not isinstance(schema, dict | str if may_be_text else dict):
        raise fields.wrong(name, "must be a JSON schema, an object")
    try:
        return JsonSchema(schema)
    except OptionError as error:
        raise fields.wrong(name, f"cannot be used: {error}") from error


def format_of(
    fields: Fields, name: str, kinds: Sequence[str] = _FORMATS, *, is_flat: bool = False
) -> Constraint | None:
    """What a field such as `response_format` holds the answer to; None for text.

    Args:
        fields: Whose field it is.
        name: The field.
        kinds: What its type may be.
        is_flat: Whether the schema stands in it, and not in its `json_schema`.

    Raises:
        APIError: It is malformed.
    """
    asked = fields.nested(name)
    kind, schema = asked.text("type"), JsonSchema(_ANY_OBJECT)
    if kind not in kinds and (kind is not None or asked.has("schema")):
        *others, last = (f'"{one}"' for one in kinds)
        raise asked.wrong("type", f"must be {', '.join(others)}{' or ' if others else ''}{last}")
    if kind == "json_object" and asked.has("schema"):
        schema = schema_of(asked, "schema")
    elif kind == "json_schema":
        is_flat = is_flat or (asked.has("schema") and not asked.has("json_schema"))
        named = asked if is_flat else asked.nested("json_schema")
        named.end("name", "description", "strict", but="schema")  # it is always held to
        schema = schema_of(named, "schema")
    asked.end()
    return None if kind in (None, "text") else Constraint(fields.name(name), schema)
