"""What a request asks for: the bodies of the API's endpoints, checked.

In: a body as `Fields`. Out: an `Asked`, which a worker can begin, or a refusal that names the
field at fault. Every field is honoured, or refused by name, or says what happens anyway.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import GrammarError
from coordgen_rs.grammar.kinds import AfterThinking, Grammar, JsonSchema
from coordgen_rs.model import Model
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.model.stream import Stream
from coordgen_rs.server.asked import logprobs
from coordgen_rs.server.asked.content import prediction_of, stop_strings_of
from coordgen_rs.server.asked.dialogue import dialogue_of
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.formats import HeldTo, grammar_of
from coordgen_rs.server.asked.infill import infill_ends, infill_prompt
from coordgen_rs.server.asked.limits import alias_of, limit_of, num_choices_of
from coordgen_rs.server.asked.logit_bias import AskedBias, logit_bias_of
from coordgen_rs.server.asked.neutral import check_neutral
from coordgen_rs.server.asked.tokens import checked_ids, token_array
from coordgen_rs.server.refusal import TooLongError, UnfollowedError
from coordgen_rs.server.tools.constraint import constrained
from coordgen_rs.server.tools.formats import Calling
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.text.thinking import Thinking, num_thinking, thinking_of
from coordgen_rs.text.token_spelling import TokenSpelling

if TYPE_CHECKING:
    from coordgen_rs.grammar.matcher import Matcher

_LARGEST = 2**64 - 1
_ANY = -1
"""What other engines' clients send as `seed` for any, and as `top_k` for no bound."""
_REASONING_FORMATS = ("none", "auto", "deepseek")
"""Names of llama.cpp's: the last two are the same."""
_COMPLETION_TOKENS = 16
"""OpenAI's default for the older endpoint."""

_KINDS: dict[str, Literal["chat", "completion", "response"]] = {
    "messages": "chat",
    "prompt": "completion",
    "input": "response",
}

_ELSEWHERE = ("audio", "moderation", "web_search_options")
_ABOUT_CLIENT = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
"""Fields that are about the client or the bill, and not about the answer."""


@dataclass(frozen=True)
class Asked:
    """A request for an answer.

    Attributes:
        prompt: Makes the prompt's tokens, `(tokens,) u32`, of what was asked; from any thread.
        prompt_field: The field that holds the prompt, for messages.
        options: How the answer is made.
        limit: Most tokens of the answer; None for as many as fit.
        kind: The endpoint that it came by.
        is_streamed: Whether the answer is sent as it is made.
        with_usage: Whether a stream ends with a chunk of usage.
        with_spans: Whether to tell the source of each part of the answer.
        with_trees: Whether to show the draft tree of each step.
        with_token_ids: Whether to give the answer's tokens, too.
        seed: The seed of sampling; None where nothing is sampled.
        tools: What the model may call.
        logit_bias: What is added to the logits of tokens.
        num_choices: How many answers to give.
        suffix: What is to follow the answer; None where nothing has to.
        echo: Gives the text that the answer begins with; None for none.
        echoed: That text; known once the model is (`ready`).
        splits_thinking: Whether thinking is told apart from the answer.
        thinking: How the answer may think; known once the model is.
        num_thinking: Counts thinking among tokens; known once the model is.
        calling: How its calls are told; known once the model is.
        grammar_field: The field that holds the answer to a grammar; None where none does.
        matcher: Keeps the grammar compiled until the answer begins; known once the model is.
    """

    prompt: Callable[[Model], NDArray[np.uint32]]
    prompt_field: str
    options: RequestOptions
    limit: int | None
    kind: Literal["chat", "completion", "response"]
    is_streamed: bool
    with_usage: bool
    with_spans: bool
    with_trees: bool
    with_token_ids: bool
    seed: int | None
    tools: Tools | None
    logit_bias: AskedBias | None = None
    num_choices: int = 1
    suffix: str | None = None
    echo: Callable[[Model], str] | None = None
    echoed: str = ""
    splits_thinking: bool = False
    thinking: Thinking | None = None
    num_thinking: Callable[[Sequence[int]], int] = lambda _: 0
    calling: Calling | None = None
    grammar_field: str | None = None
    matcher: "Matcher | None" = None

    @property
    def has_grammar(self) -> bool:
        """Whether a grammar has to be compiled, which may take seconds."""
        return self.tools is not None or self.options["grammar"] is not None

    def ready(self, model: Model) -> "tuple[Asked, NDArray[np.uint32]]":
        """The same with what depends on the model, and the prompt's tokens, `(tokens,) u32`.

        Raises:
            RefusalError: The prompt, or the answer that the client expects, does not fit, a
                function cannot be held to, or the model cannot do this.
        """
        ids, options = self.prompt_ids(model), self.options.copy()
        thinking, tokenizer, calling = None, model.tokenizer, None
        if self.tools is not None:
            calling, options["grammar"] = constrained(
                self.tools, model, options["grammar"], self.grammar_field
            )
            options["special_tokens"] = calling.format.marks
        if self.splits_thinking and model.has_chat_template:
            marks = model.template_facts.thinking
            thinking = thinking_of(marks, tokenizer, ids.tolist())
        if thinking is not None:
            options["special_tokens"] = (*options.get("special_tokens", ()), *thinking.marks.tokens)
            grammar = options["grammar"]
            # Where functions may be called, the channels of thinking are among the grammar's.
            if grammar is not None and not (self.tools is not None and thinking.marks.header):
                options["grammar"] = AfterThinking(grammar, thinking)
        if self.suffix is not None:
            ends = infill_ends(tokenizer)
            options["special_tokens"] = ends
            options["stop"] = [*(options["stop"] or ()), *ends]
        return replace(
            self,
            options=options,
            matcher=self._compiled(options["grammar"], model),
            echoed="" if self.echo is None else self.echo(model),
            thinking=thinking,
            num_thinking=partial(num_thinking, thinking, tokenizer),
            calling=calling,
        ), ids

    def _compiled(self, grammar: Grammar | None, model: Model) -> "Matcher | None":
        """What follows a grammar: compiled here, for who answers waits for nothing else.

        Raises:
            UnfollowedError: It cannot be followed.
        """
        try:
            return None if grammar is None else model.check_grammar(grammar)  # type: ignore[arg-type]
        except GrammarError as error:
            raise UnfollowedError(error, self.grammar_field) from error

    def choice(self, number: int) -> "Asked":
        """The request for one of the answers alone: the one whose seed is greater by its number."""
        if not number or self.seed is None:
            return self
        seed = (self.seed + number) & _LARGEST
        options = self.options.copy()
        options["seed"] = seed
        return replace(self, options=options, seed=seed)

    def prompt_ids(self, model: Model) -> NDArray[np.uint32]:
        """The prompt's tokens, `(tokens,) u32`.

        Raises:
            TooLongError: The prompt, or the answer that the client expects, does not fit.
            BiasError: A bias is on a token that the model does not have.
        """
        if self.logit_bias is not None:
            self.logit_bias.by_id(model)
        if (expected := self.options["prediction"]) is not None:
            check_fits(model, expected, "prediction")
        return self.prompt(model)

    def spelling(self, model: Model) -> TokenSpelling | None:
        """How tokens are spelt, where the answer tells how likely they were."""
        return None if self.options["logprobs"] is None else model.tokenizer.spelling

    @property
    def wants_steps(self) -> bool:
        """Whether the steps are told, too, and not the whole answer alone."""
        return self.is_streamed or self.with_trees

    def begin(
        self,
        model: Model,
        prompt_ids: NDArray[np.uint32],
        *,
        namespace: str | None = None,
        on_read: Callable[[int], None] | None = None,
    ) -> Stream:
        """Begin the answer; the arguments are those of `RequestOptions`."""
        options = self.options.copy()
        options["max_new_tokens"] = self.limit or model.context
        options["namespace"], options["on_read"] = namespace, on_read
        options["logit_bias"] = None if self.logit_bias is None else self.logit_bias.by_id(model)
        return model.stream_tokens(prompt_ids, **options)


def asked_chat(fields: Fields) -> Asked:
    """The body of `/v1/chat/completions`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    dialogue = dialogue_of(fields)
    limit = limit_of(fields, "max_completion_tokens", "max_tokens", "n_predict")
    num_alternatives = logprobs.of_chat(fields)
    fields.only("modalities", ["text"], why="the server answers with text only")
    fields.only("store", False, why="the server stores no answers for later retrieval")
    reasoning_format = fields.text("reasoning_format") or "auto"
    if reasoning_format not in _REASONING_FORMATS:
        raise fields.wrong("reasoning_format", f"must be one of {', '.join(_REASONING_FORMATS)}")

    def prompt(model: Model) -> NDArray[np.uint32]:
        return encoded(model, dialogue.text(model), "messages", special_tokens=False)

    asked = asked_rest(
        fields, prompt, "messages", limit, dialogue.tools, num_alternatives=num_alternatives
    )
    return replace(asked, splits_thinking=reasoning_format != "none")


def asked_completion(fields: Fields) -> Asked:
    """The body of `/v1/completions`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    given = fields.take("prompt")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, list) and any(isinstance(item, str | list) for item in given):
        raise fields.wrong("prompt", "must be one prompt: several need several requests")
    if not isinstance(given, str | list):
        raise fields.wrong("prompt", "must be a string or a list of token ids")
    ids = checked_ids(given, "prompt") if isinstance(given, list) else []
    is_echoed, suffix = fields.flag("echo"), fields.text("suffix") or None
    num_alternatives = logprobs.of_completion(fields)
    if is_echoed and num_alternatives is not None:
        raise fields.wrong("echo", "and logprobs exclude each other: those of a prompt are unknown")
    limit = limit_of(fields, "max_tokens", "n_predict", default=_COMPLETION_TOKENS)

    def own_ids(model: Model, *, special_tokens: bool) -> NDArray[np.uint32]:
        if isinstance(given, str):
            return encoded(model, given, "prompt", special_tokens=special_tokens)
        if len(ids) > model.context:
            raise TooLongError("the prompt", str(len(ids)), model.context, "prompt")
        return token_array(ids, "prompt", model.vocab_size)

    def prompt(model: Model) -> NDArray[np.uint32]:
        if suffix is None:
            return own_ids(model, special_tokens=True)
        return filled_in(model, own_ids(model, special_tokens=False), suffix)

    def echo(model: Model) -> str:
        return given if isinstance(given, str) else model.tokenizer.decode(ids)

    asked = asked_rest(fields, prompt, "prompt", limit, None, num_alternatives=num_alternatives)
    return replace(asked, suffix=suffix, echo=echo if is_echoed else None)


def filled_in(model: Model, before: NDArray[np.uint32], suffix: str) -> NDArray[np.uint32]:
    """The prompt `(tokens,) u32` of a text whose middle is wanted.

    Args:
        model: The model.
        before: The text that comes first, without tokens around it.
        suffix: The text that comes last.

    Raises:
        RefusalError: The model has no tokens for that.
        TooLongError: It does not fit into the context.
    """
    behind = encoded(model, suffix, "suffix", special_tokens=False)
    ids = infill_prompt(model.tokenizer, before.tolist(), behind.tolist())
    if len(ids) > model.context:
        raise TooLongError("the prompt", str(len(ids)), model.context, "suffix")
    return ids


def asked_prompt(fields: Fields) -> Callable[[Model], str]:
    """The body of `/apply-template`: a function that renders it.

    Raises:
        RefusalError: It cannot be rendered.
    """
    dialogue = dialogue_of(fields)
    fields.ignore("model")
    fields.end()
    return dialogue.text


def encoded(
    model: Model, text: str, field: str, *, special_tokens: bool = True
) -> NDArray[np.uint32]:
    """The tokens `(tokens,) u32` of a prompt. A text that cannot fit is not tokenized.

    Args:
        model: The model.
        text: What it reads.
        field: Where the text comes from, for messages.
        special_tokens: Same as in `Tokenizer.encode`.

    Raises:
        TooLongError: It does not fit into the context.
    """
    check_fits(model, text, field)
    ids = model.tokenizer.encode(text, special_tokens=special_tokens)
    if len(ids) > model.context:
        raise TooLongError("the prompt", str(len(ids)), model.context, field)
    return ids


def check_fits(model: Model, text: str, field: str) -> None:
    """Refuse a text that cannot fit into the context, however it is tokenized.

    Raises:
        TooLongError: It cannot.
    """
    least = model.tokenizer.least_tokens(text)
    if least > model.context:
        what = f"the text of {field}, {len(text):,} characters long,"
        raise TooLongError(what, f"at least {least}", model.context, field)


def asked_rest(
    fields: Fields,
    prompt: Callable[[Model], NDArray[np.uint32]],
    prompt_field: str,
    limit: int | None,
    tools: Tools | None,
    given: HeldTo | None = None,
    *,
    num_alternatives: int | None = None,
) -> Asked:
    """The rest of a body.

    Args:
        fields: The fields of the body, except those of one endpoint alone.
        prompt: Same as in `Asked`.
        prompt_field: Same as in `Asked`.
        limit: Same as in `Asked`.
        tools: Same as in `Asked`.
        given: What a field of the endpoint holds the answer to.
        num_alternatives: How many alternatives are told of each token; None tells nothing of any.

    Raises:
        RefusalError: It cannot be answered, or a field is left over.
    """
    options, logit_bias = _options(fields), logit_bias_of(fields)
    options["logprobs"] = num_alternatives
    num_choices = 1
    if prompt_field == "input":
        fields.only("n", 1, why="a response is one answer")
    else:
        num_choices = num_choices_of(fields)
    is_streamed = fields.flag("stream")
    if fields.has("stream_options") and not is_streamed:
        raise fields.wrong("stream_options", "needs stream: true")
    stream_options = fields.nested("stream_options")
    with_usage = stream_options.flag("include_usage")
    stream_options.only("include_obfuscation", False, why="the server does not pad its events")
    stream_options.end()
    own = fields.nested("coordgen")
    with_spans, with_trees = own.flag("spans"), own.flag("trees")
    options["drafts"] = own.flag("drafts", default=True)
    options["trees"] = with_trees
    held_to = grammar_of(fields, own, given)
    if tools is not None and tools.is_required and held_to is not None:
        if not isinstance(held_to.grammar, JsonSchema):
            raise fields.wrong("tool_choice", "asks for a call: then nothing else can be, too")
        held_to = None  # the format of an answer that is not given
    options["grammar"] = None if held_to is None else held_to.grammar
    own.end()
    with_token_ids = fields.flag("return_token_ids")
    fields.ignore(*_ABOUT_CLIENT)
    fields.end(_ELSEWHERE)
    return Asked(
        prompt=prompt,
        prompt_field=prompt_field,
        options=options,
        limit=limit,
        kind=_KINDS[prompt_field],
        is_streamed=is_streamed,
        with_usage=with_usage,
        with_spans=with_spans,
        with_trees=with_trees,
        with_token_ids=with_token_ids,
        seed=options["seed"] if options["temperature"] else None,
        tools=tools,
        logit_bias=logit_bias,
        num_choices=num_choices,
        grammar_field=None if held_to is None else held_to.field,
    )


def _options(fields: Fields) -> RequestOptions:
    """How the answer is made, its length excepted.

    Raises:
        RefusalError: A field is out of range, or asks for what cannot be had.
    """
    temperature = fields.number("temperature", least=0, most=100) or 0.0
    top_p = fields.number("top_p", least=0, most=1)
    penalty = alias_of(
        fields,
        "repetition_penalty",
        "repeat_penalty",
        read=lambda name: fields.number(name, least=0.01, most=100),
    )
    check_neutral(fields, penalty)
    seed = fields.count("seed", least=_ANY, most=_LARGEST)
    seed = None if seed == _ANY else seed
    if top_p is not None and not np.float32(top_p):
        raise fields.wrong("top_p", f"is {top_p:g}, but must be above 0 and at most 1")
    return {
        "stop": stop_strings_of(fields),
        "temperature": temperature,
        "top_k": max(fields.count("top_k", least=_ANY, most=_LARGEST) or 0, 0),
        "top_p": 1.0 if top_p is None else top_p,
        "min_p": fields.number("min_p", least=0, most=1) or 0.0,
        "repetition_penalty": 1.0 if penalty is None else penalty,
        "presence_penalty": fields.number("presence_penalty", least=-2, most=2) or 0.0,
        "frequency_penalty": fields.number("frequency_penalty", least=-2, most=2) or 0.0,
        "seed": secrets.randbits(53) if seed is None else seed,  # any reader of JSON keeps 53 bits
        "ignore_eos": fields.flag("ignore_eos"),
        "prediction": prediction_of(fields),
        "reuse_prefix": fields.flag("cache_prompt", default=True),
    }
