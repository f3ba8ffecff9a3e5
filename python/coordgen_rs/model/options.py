"""What one request may ask for, as `Model`'s methods take it: keywords with types and meanings.

In: keywords, which type checkers check. Out: an `AskedOptions`, whose values are checked where it
is made. What each means to the loop is `generate`'s to say.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from coordgen_rs._core import Sampling
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.generation.logprobs import checked as checked_logprobs

if TYPE_CHECKING:
    from coordgen_rs.grammar.kinds import Grammar


_LARGEST = 2**64 - 1
"""The largest seed, and the largest number that the core counts in."""


class RequestOptions(TypedDict, total=False):
    """Keywords of `Model.generate`, `stream`, `chat`, `stream_chat`, and of those for asyncio."""

    max_new_tokens: int
    """Most tokens of the answer, 256 by default; the model's context is another limit."""
    stop: str | Sequence[str] | None
    """The answer ends before the first of these strings."""
    temperature: float
    """0, the default, always takes the most likely token; above 0, tokens are sampled."""
    top_k: int
    """Sample from this many of the most likely tokens; 0, the default, for all."""
    top_p: float
    """Sample from the fewest tokens whose probabilities add up to this; 1, the default, for all."""
    min_p: float
    """Sample only from tokens at least this many times as likely as the likeliest; 0 for all."""
    repetition_penalty: float
    """Above 1 makes the tokens of prompt and answer less likely, at temperature 0 too; 1 by
    default."""
    presence_penalty: float
    """Above 0 makes the tokens of the answer less likely, at temperature 0 too; -2 to 2, 0 by
    default."""
    frequency_penalty: float
    """The same, for each time that the answer has the token; -2 to 2, 0 by default."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of tokens, by id, at temperature 0 too: -100 to 100, or minus infinity,
    with which a token is never said."""
    logprobs: int | None
    """Tell of each token how likely the model held it, and of so many alternatives, 0 to 20, see
    `Answer.logprobs`; None, the default, tells nothing."""
    seed: int | None
    """The same seed gives the same answer. None, the default, draws one, which `Answer.seed` tells.
    At temperature 0 nothing is sampled: there this and `top_k`, `top_p` and `min_p` change
    nothing."""
    ignore_eos: bool
    """End tokens do not end the answer."""
    special_tokens: Sequence[str]
    """Special tokens that the text shows, such as `("<|python_tag|>",)`; by default none. What is
    no special token of the model changes nothing."""
    grammar: "Grammar | None"
    """What the answer must follow: a `JsonSchema`, `Regex`, `Lark` or `Gbnf`. The most likely
    token, or the one that is drawn, is then one of those that the grammar allows."""
    prediction: str | None
    """The answer as you expect it. Where the answer follows it, it drafts."""
    drafts: bool
    """False decodes without drafts, for comparison: the same answer, but later."""
    trees: bool
    """Whether each step of a stream also has its draft tree, see `Gain.step`."""
    on_read: Callable[[int], None] | None
    """Called behind each chunk of the prompt with how many tokens of it were computed, by who reads
    the answer. It may end the request by an exception, and may ask the model for other answers."""
    namespace: str | None
    """The request's namespace: nothing of it is drafted from, or reused, in others. None is
    the namespace that the model was opened with."""
    reuse_prefix: bool
    """False computes the whole prompt. By default what the model has read of it in the request
    before is reused: the same answer, but sooner."""


@dataclass(frozen=True)
class AskedOptions:
    """What one request asks for; fields are the same as in `RequestOptions`.

    Raises:
        OptionError: One is of a wrong type or out of range, also where it changes nothing.
    """

    max_new_tokens: int = 256
    stop: str | Sequence[str] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    seed: int | None = None
    ignore_eos: bool = False
    grammar: "Grammar | None" = None
    prediction: str | None = None
    drafts: bool = True
    trees: bool = False
    on_read: Callable[[int], None] | None = None
    namespace: str | None = None
    reuse_prefix: bool = True
    special_tokens: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.sampling(0 if self.seed is None else self.seed)
        arguments.count("max_new_tokens", self.max_new_tokens)
        checked_logprobs(self.logprobs)
        for name in ("ignore_eos", "drafts", "trees", "reuse_prefix"):
            arguments.flag(name, getattr(self, name))
        arguments.function("on_read", self.on_read)
        for token in arguments.names("special_tokens", self.special_tokens):
            arguments.text("a special token", token, may_be_empty=False)
        if self.namespace is not None:
            arguments.text("namespace", self.namespace, may_be_empty=False)
        if self.prediction is not None:
            arguments.text("the prediction", self.prediction)

    def chosen_seed(self) -> int | None:
        """The seed, drawn at random where none was given; None where nothing is sampled."""
        if not self.temperature:
            return None
        # Of as many bits as any reader of JSON keeps.
        return int.from_bytes(os.urandom(7)) >> 3 if self.seed is None else self.seed

    def sampling(self, seed: int) -> Sampling | None:
        """How tokens are chosen under a seed; None where each is simply the likeliest."""
        sampling = Sampling(
            arguments.number("temperature", self.temperature, least=0),
            top_k=arguments.count("top_k", self.top_k, least=0, most=_LARGEST),
            top_p=arguments.number("top_p", self.top_p),
            min_p=arguments.number("min_p", self.min_p),
            repetition_penalty=arguments.number("repetition_penalty", self.repetition_penalty),
            presence_penalty=arguments.number("presence_penalty", self.presence_penalty),
            frequency_penalty=arguments.number("frequency_penalty", self.frequency_penalty),
            logit_bias=biases(self.logit_bias),
            seed=arguments.count("seed", seed, least=0, most=_LARGEST),
        )
        return sampling if self.temperature or sampling.changes_scores else None


def biases(logit_bias: object) -> dict[int, float] | None:
    """Biases by token id; None for none. The core checks their range.

    Raises:
        OptionError: It is no mapping, or an id or a bias is no number.
    """
    if logit_bias is None:
        return None
    if not isinstance(logit_bias, Mapping):
        raise OptionError(
            f"logit_bias must map token ids to numbers, but is {arguments.shown(logit_bias)}"
        )
    return {
        arguments.count("a token id of logit_bias", token, least=0): -math.inf
        if bias == -math.inf
        else arguments.number(f"logit_bias of token {token}", bias)
        for token, bias in logit_bias.items()
    }


def check_names(function: str, options: Collection[str]) -> None:
    """Check that there are such options.

    Raises:
        OptionError: There is no such option of `function`, which the message names.
    """
    arguments.known(function, options, RequestOptions.__annotations__)
