"""What one request may ask for, as `Model`'s methods take it: keywords with types and meanings.

In: keywords, which type checkers check. Out: a record of all, checked where it is made. What each
means to the loop is `generate`'s to say. The command line and the server read the same table: its
ranges, its defaults, and what dialects call its options.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

from coordgen_rs._core import Sampling
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.arguments import Option, options_of, record
from coordgen_rs.generation.step import MAX_ALTERNATIVES

if TYPE_CHECKING:
    from coordgen_rs.text.grammar.kinds import Grammar

_LARGEST = 2**64 - 1
"""The largest seed, and the largest number that the core counts in."""

_Names = Mapping[str, Sequence[str]]
_OPENAI: _Names = {"openai": ()}
_OLLAMA: _Names = {"openai": (), "ollama": ()}
_ALL: _Names = {"openai": (), "ollama": (), "anthropic": ()}
_LIMIT: _Names = {
    "openai": ("max_completion_tokens", "max_tokens", "n_predict"),
    "responses": ("max_output_tokens",),
    "ollama": ("num_predict",),
    "anthropic": ("max_tokens",),
}
_REPETITION: _Names = {
    "openai": ("repetition_penalty", "repeat_penalty"),
    "ollama": ("repeat_penalty",),
}
"""What dialects call an option, own names left out; "openai" is also llama.cpp's and vLLM's."""


def _biases(name: str, logit_bias: object) -> dict[int, float]:
    """Biases by token id. The core checks their range.

    Raises:
        OptionError: It is no mapping, or an id or a bias is no number.
    """
    if not isinstance(logit_bias, Mapping):
        raise OptionError(
            f"{name} must map token ids to numbers, but is {arguments.shown(logit_bias)}"
        )
    return {
        arguments.count(f"a token id of {name}", token, least=0): -math.inf
        if bias == -math.inf
        else arguments.number(f"{name} of token {token}", bias)
        for token, bias in logit_bias.items()
    }


class RequestOptions(TypedDict, total=False):
    """Keywords of `Model.generate`, `stream`, `chat`, `stream_chat`, and of those for asyncio."""

    max_new_tokens: Annotated[
        int,
        Option(256, least=1, unset=-1, names=_LIMIT),
        "N: most tokens of an answer; default %(default)s",
    ]
    """Most tokens of the answer, 256 by default; the model's context is another limit."""
    stop: Annotated[
        str | Sequence[str] | None,
        Option(names=_OLLAMA | {"anthropic": ("stop_sequences",)}),
        "TEXT: end the answer before this text; can be given more than once",
    ]
    """The answer ends before the first of these strings."""
    ignore_eos: Annotated[
        bool, Option(default=False, names=_OPENAI), ": go on behind end tokens, to the limit"
    ]
    """End tokens do not end the answer."""
    temperature: Annotated[
        float,
        Option(0, least=0, names=_ALL),
        "T: sample at this temperature; 0 (default) always takes the most likely token",
    ]
    """0, the default, always takes the most likely token; above 0, tokens are sampled."""
    top_k: Annotated[
        int,
        Option(0, least=0, most=_LARGEST, unset=-1, names=_ALL),
        "K: sample from the K most likely tokens; default: all",
    ]
    """Sample from this many of the most likely tokens; 0, the default, for all."""
    top_p: Annotated[
        float,
        Option(1, above=0, most=1, names=_ALL),
        "P: sample from the fewest tokens whose probabilities add up to P; default: all",
    ]
    """Sample from the fewest tokens whose probabilities add up to this; 1, the default, for all."""
    min_p: Annotated[
        float,
        Option(0, least=0, most=1, names=_OLLAMA),
        "P: sample from tokens at least P times as likely as the likeliest; default: all",
    ]
    """Sample only from tokens at least this many times as likely as the likeliest; 0 for all."""
    repetition_penalty: Annotated[
        float,
        Option(1, least=0.01, most=100, names=_REPETITION),
        "X: above 1: make tokens of prompt and answer less likely, at temperature 0 too; "
        "default %(default)s",
    ]
    """Above 1 makes the tokens of prompt and answer less likely, at temperature 0 too; 1 by
    default."""
    presence_penalty: Annotated[
        float,
        Option(0, least=-2, most=2, names=_OLLAMA),
        "X: above 0: make tokens of the answer less likely, at temperature 0 too; "
        "default %(default)s",
    ]
    """Above 0 makes the tokens of the answer less likely, at temperature 0 too; -2 to 2, 0 by
    default."""
    frequency_penalty: Annotated[
        float,
        Option(0, least=-2, most=2, names=_OLLAMA),
        "X: the same, for each time that the answer has the token; default %(default)s",
    ]
    """The same, for each time that the answer has the token; -2 to 2, 0 by default."""
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Option(check=_biases, names=_OPENAI),
        "ID=BIAS: add BIAS, -100 to 100, to the logit of the token ID, at temperature 0 too; -inf "
        "never says it; can be given more than once",
    ]
    """Added to the logits of tokens, by id, at temperature 0 too: -100 to 100, or minus infinity,
    with which a token is never said."""
    seed: Annotated[
        int | None,
        Option(least=0, most=_LARGEST, unset=-1, names=_ALL),
        "N: the same seed gives the same tokens; default: one at random, which is told",
    ]
    """The same seed gives the same answer. None, the default, draws one, which `Answer.seed` tells.
    At temperature 0 nothing is sampled: there this and `top_k`, `top_p` and `min_p` change
    nothing."""
    logprobs: Annotated[int | None, Option(least=0, most=MAX_ALTERNATIVES)]
    """Tell of each token how likely the model held it, and of so many alternatives, 0 to 20, see
    `Answer.logprobs`; None, the default, tells nothing."""
    special_tokens: Annotated[Sequence[str], Option((), check=arguments.names)]
    """Special tokens that the text shows, such as `("<|python_tag|>",)`; by default none. What is
    no special token of the model changes nothing."""
    grammar: Annotated["Grammar | None", Option()]
    """What the answer must follow: a `JsonSchema`, `Regex`, `Lark` or `Gbnf`. The most likely
    token, or the one that is drawn, is then one of those that the grammar allows."""
    prediction: Annotated[str | None, Option()]
    """The answer as you expect it. Where the answer follows it, it drafts."""
    drafts: Annotated[bool, Option(default=True)]
    """False decodes without drafts, for comparison: the same answer, but later."""
    trees: Annotated[bool, Option(default=False)]
    """Whether each step of a stream also has its draft tree, see `StepDelta.step`."""
    on_read: Annotated[Callable[[int], None] | None, Option(check=arguments.function)]
    """Called behind each chunk of the prompt with how many tokens of it were computed, by who reads
    the answer. It may end the request by an exception, and may ask the model for other answers."""
    namespace: Annotated[str | None, Option(may_be_empty=False)]
    """The request's namespace: nothing of it is drafted from, or reused, in others. None is
    the namespace that the model was opened with."""
    reuse_prefix: Annotated[bool, Option(default=True, names={"openai": ("cache_prompt",)})]
    """False computes the whole prompt. By default what the model has read of it in the request
    before is reused: the same answer, but sooner."""


class ChatOptions(RequestOptions, total=False):
    """Keywords of `Model.chat`, `stream_chat`, `achat` and `astream_chat`: a request's, and two."""

    tools: Annotated[Sequence[Mapping[str, Any]] | None, Option()]
    """Functions that the model may call, as JSON schemas, for the template."""
    template_variables: Annotated[Mapping[str, Any] | None, Option()]
    """What else the template reads, such as `{"enable_thinking": False}`."""


_SAMPLED = (
    *("temperature", "top_k", "top_p", "min_p", "logit_bias"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Options that say how tokens are chosen, but for the seed."""

REQUEST = options_of(RequestOptions)
"""The options of a request, by name."""

_Options = TypeVar("_Options", bound=RequestOptions)


def request_options(function: str, kind: type[_Options], options: Mapping[str, Any]) -> _Options:
    """The record of what one request asks for: all options, checked.

    Args:
        function: What was called, for messages.
        kind: Its options.
        options: Those that were given.

    Raises:
        OptionError: One is of a wrong type or out of range, also where it changes nothing; or
            there is no such option.
    """
    checked: _Options = record(function, kind, options)
    sampling(checked, 0)
    return checked


def chosen_seed(options: RequestOptions) -> int | None:
    """The seed, drawn at random where none was given; None where nothing is sampled."""
    if not options["temperature"]:
        return None
    # Of as many bits as any reader of JSON keeps.
    return int.from_bytes(os.urandom(7)) >> 3 if options["seed"] is None else options["seed"]


def sampling(options: RequestOptions, seed: int) -> Sampling | None:
    """How tokens are chosen under a seed; None where each is simply the likeliest."""
    given: Any = options
    found = Sampling(**{name: given[name] for name in _SAMPLED}, seed=seed)
    return found if options["temperature"] or found.changes_scores else None
