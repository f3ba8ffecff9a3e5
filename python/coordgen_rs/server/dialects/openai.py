"""OpenAI's chats and completions, and llama.cpp's endpoints for tokens: what is asked and answered.

In: a body as `Fields`, `model` excepted, and the model; later what it says. Out: a `Request`, or
an error that names the field; later one object, or the chunks of a stream. Where a request has
several answers, each choice has its metrics beside its text, and the prompt counts once.
"""

import secrets
import time
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError, arguments
from coordgen_rs.errors.extras import package_version
from coordgen_rs.model import Model
from coordgen_rs.model.answer import Answer, TokenLogprob
from coordgen_rs.model.options import REQUEST
from coordgen_rs.server.api_error import APIError
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.options import (
    Constraint,
    biases_of,
    constraint_of,
    limit_of,
    num_alternatives_of,
    options_of,
    prediction_of,
)
from coordgen_rs.server.dialects.prompts import (
    Dialogue,
    chat_ids,
    chat_text,
    effort_of,
    encode,
    fitting,
    infilled,
    messages_of,
)
from coordgen_rs.server.dialects.reader import Delta, Ended
from coordgen_rs.server.dialects.request import Request, Settings, complete
from coordgen_rs.server.dialects.writing import (
    LEAST_LOGPROB,
    Dialect,
    Event,
    StepMetrics,
    Writing,
    answer_metrics,
    logprob_entries,
    usage,
)
from coordgen_rs.server.tools.calls import AnswerEvent, Call, Content, Thought, calls_of, text_of
from coordgen_rs.server.tools.functions import Tools, tools_of
from coordgen_rs.text.grammar.kinds import JsonSchema
from coordgen_rs.text.tokenizer import Tokenizer

_GIVEN_OTHERWISE = ("messages", "tools", "add_generation_prompt")
"""What is no variable of the client's."""
_REASONING_FORMATS = ("none", "auto", "deepseek")
"""Names of llama.cpp's: the last two are the same."""
_COMPLETION_TOKENS = 16
"""OpenAI's default for the older endpoint."""

MOST_CHOICES = 16
"""Most answers to a request."""

_ELSEWHERE = ("audio", "moderation", "web_search_options")
_ABOUT_CLIENT = (
    *("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    *("service_tier", "user"),
)
"""Fields that are about the client or the bill, and not about the answer."""


def parse_chat(fields: Fields, model: Model) -> Request:
    """The body of `/v1/chat/completions`.

    Raises:
        APIError: It cannot be answered.
    """
    dialogue = _dialogue(fields)
    limit = limit_of(fields, "max_completion_tokens", "max_tokens", "n_predict")
    num_alternatives = num_alternatives_of(fields, fields.flag("logprobs"), "logprobs: true")
    fields.only("modalities", ["text"], why="the server answers with text only")
    fields.only("store", False, why="the server stores no answers for later retrieval")
    reasoning_format = fields.one_of("reasoning_format", _REASONING_FORMATS, "auto")
    settings = settings_of(fields, model, limit, num_alternatives, tools=dialogue.tools)
    splits_thinking = reasoning_format != "none"
    prompt_ids = chat_ids(model, dialogue)
    return complete(model, "chat", prompt_ids, settings, splits_thinking=splits_thinking)


def apply_template(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/apply-template`: the text that the model reads for a dialogue.

    Raises:
        APIError: It cannot be rendered.
    """
    dialogue = _dialogue(fields)
    fields.end()
    return {"prompt": chat_text(model, dialogue)}


def _dialogue(fields: Fields) -> Dialogue:
    """The dialogue of a body.

    Raises:
        APIError: It is malformed.
    """
    messages, tools = messages_of(fields), tools_of(fields)
    variables = fields.take("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        raise fields.wrong("chat_template_kwargs", "must be an object")
    for name in _GIVEN_OTHERWISE:
        if variables is not None and name in variables:
            raise fields.wrong("chat_template_kwargs", f"cannot hold {name}, which is given apart")
    effort = effort_of(fields, "reasoning_effort")
    return Dialogue(messages, tools, effort, variables=variables)


def parse_completion(fields: Fields, model: Model) -> Request:
    """The body of `/v1/completions`.

    Raises:
        APIError: It cannot be answered.
    """
    given = fields.take("prompt")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, list) and any(isinstance(item, str | list) for item in given):
        raise fields.wrong("prompt", "must be one prompt: several need several requests")
    if not isinstance(given, str | list):
        raise fields.wrong("prompt", "must be a string or a list of token ids")
    is_echoed, suffix, ends = fields.flag("echo"), fields.text("suffix"), list[str]()
    fields.only("top_logprobs", 0, why="here logprobs is how many alternatives are told")
    num_alternatives = fields.count("logprobs", most=REQUEST["logprobs"].most)
    if is_echoed and num_alternatives is not None:
        raise fields.wrong("echo", "and logprobs exclude each other: those of a prompt are unknown")
    limit = limit_of(fields, "max_tokens", "n_predict", default=_COMPLETION_TOKENS)
    settings = settings_of(fields, model, limit, num_alternatives)
    if isinstance(given, str):
        prompt_ids = encode(model, given, "prompt", special_tokens=not suffix)
    else:
        prompt_ids = fitting(model, _token_ids(fields, "prompt", given, model), "prompt")
    if is_echoed:
        echoed = given if isinstance(given, str) else model.tokenizer.decode(prompt_ids.tolist())
        settings = replace(settings, echoed=echoed)
    if suffix:
        prompt_ids, ends = infilled(model, prompt_ids, suffix)
    return complete(model, "completion", prompt_ids, settings, splits_thinking=False, ends=ends)


def settings_of(
    fields: Fields,
    model: Model,
    limit: int | None,
    num_alternatives: int | None,
    *,
    constraint: Constraint | None = None,
    tools: Tools | None = None,
) -> Settings:
    """What the fields that all of OpenAI's endpoints have ask for.

    Args:
        fields: The fields that are left of the body.
        model: Who is to answer.
        limit: Same as in `Settings`.
        num_alternatives: How many alternatives are told of each token; None tells nothing of any.
        constraint: What a field of the endpoint holds the answer to.
        tools: Same as in `Settings`.

    Raises:
        APIError: One of them asks for what cannot be had, or a field is left over.
    """
    options, num_choices = options_of(fields, "openai"), _num_choices(fields)
    options["prediction"], options["logprobs"] = prediction_of(fields, model), num_alternatives
    options["logit_bias"], is_streamed = biases_of(fields, model), fields.flag("stream")
    if fields.has("stream_options") and not is_streamed:
        raise fields.wrong("stream_options", "needs stream: true")
    of_stream, own = fields.nested("stream_options"), fields.nested("coordgen")
    with_usage = of_stream.flag("include_usage")
    of_stream.only("include_obfuscation", False, why="the server does not pad its events")
    of_stream.end()
    with_spans, options["trees"] = own.flag("spans"), own.flag("trees")
    options["drafts"] = own.flag("drafts", default=True)
    constraint = constraint_of(fields, own, constraint)
    own.end()
    if tools is not None and tools.is_required and constraint is not None:
        if not isinstance(constraint.grammar, JsonSchema):
            raise fields.wrong("tool_choice", "asks for a call: then nothing else can be, too")
        constraint = None  # the format of an answer that is not given
    with_token_ids = fields.flag("return_token_ids")
    fields.end(*_ABOUT_CLIENT, known=_ELSEWHERE)
    return Settings(
        options=options,
        limit=limit,
        tools=tools,
        constraint=constraint,
        num_choices=num_choices,
        is_streamed=is_streamed,
        with_usage=with_usage,
        with_spans=with_spans,
        with_token_ids=with_token_ids,
    )


def _num_choices(fields: Fields) -> int:
    """How many answers to give.

    Raises:
        APIError: It is out of range, or more are to be made than given.
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


def tokenize(fields: Fields, model: Model) -> dict[str, Any]:
    """The answer of `/tokenize`: the tokens of a text.

    Raises:
        APIError: The body is malformed.
    """
    content = fields.needed("content", "must be the text")
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
        APIError: The body is malformed, or has what is no token of the model.
    """
    given = fields.take("tokens")
    fields.end()
    if not isinstance(given, list):
        raise fields.wrong("tokens", "must be a list of token ids")
    ids = _token_ids(fields, "tokens", given, model).tolist()
    return {"content": model.tokenizer.decode(ids)}


def _token_ids(fields: Fields, name: str, given: list[Any], model: Model) -> NDArray[np.uint32]:
    """The token ids of a field, `(tokens,) u32`.

    Raises:
        APIError: One is no integer, or not in the model's vocabulary.
    """
    for index, token in enumerate(given):
        if not isinstance(token, int) or isinstance(token, bool):
            how = f"must be a list of token ids, but {name}[{index}] is {arguments.shown(token)}"
            raise fields.wrong(name, how)
    try:
        return arguments.token_ids(name, given, model.vocab_size)
    except CoordgenError as error:
        raise APIError(str(error), param=name, code="invalid_value") from error


def _piece(spelt: bytes) -> str | list[int]:
    """A token's text; its bytes where they are none alone, as llama.cpp's server tells it."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)


_FINGERPRINT = f"coordgen-{package_version()}"


class _Choice:
    """One choice, whole or streamed.

    Args:
        requests: What was asked for, for each choice.
        index: The number of this one.
        head: What all objects of the answer have in common.
    """

    def __init__(self, requests: Sequence[Request], index: int, head: Event) -> None:
        request = self._request = requests[index]
        self._index, self._head, self._is_alone = index, head, len(requests) == 1
        self._is_chat, self._steps = request.kind == "chat", StepMetrics(request)
        self._lists = CompletionLogprobs(request.tokenizer)

    def opening(self) -> list[Event]:
        """The chunks before the first text."""
        if self._is_chat:
            return [self._chunk({"delta": {"role": "assistant", "content": ""}})]
        echoed = self._request.echoed
        return [self._chunk({"text": echoed})] if echoed else []

    def chunks(self, told: Delta) -> list[Event]:
        """The chunks of what is new with a step."""
        said, gain = self._delta(told.events), told.gain
        is_told = gain.token_ids and (self._steps.is_wanted or told.logprobs)
        if said is None and not is_told:
            return []
        chunk = self._chunk(said or self._nothing, told.logprobs)
        if self._request.with_token_ids:
            chunk["choices"][0]["token_ids"] = gain.token_ids
        if own := self._steps.of(gain):
            self._add(chunk, {"coordgen": own})
        return [chunk]

    def last(self, told: Ended) -> list[Event]:
        """The chunks of the end, usage excepted."""
        said = self._delta(told.events)
        last = self._chunk(self._nothing, (), told.reason)
        self._add(last, answer_metrics(self._request, told, is_whole=False))
        if said is None and not told.logprobs:
            return [last]
        return [self._chunk(said or self._nothing, told.logprobs), last]

    def whole(self, told: Ended) -> Event:
        """The answer as one object, without its usage."""
        text = self._request.echoed + told.answer.text
        said = {"message": _message(told.events)} if self._is_chat else {"text": text}
        choice = self._choice(said, told.logprobs, told.reason)
        if self._request.with_token_ids:
            choice["token_ids"] = told.answer.token_ids
        kind = "chat.completion" if self._is_chat else "text_completion"
        whole = {"object": kind} | self._head | {"choices": [choice], "usage": None}
        self._add(whole, answer_metrics(self._request, told, is_whole=True))
        return whole

    def _add(self, like: Event, told: Event) -> None:
        """Add metrics to an object: beside the text where there are several choices."""
        (like if self._is_alone else like["choices"][0]).update(told)

    def _chunk(
        self, said: Event, likely: Sequence[TokenLogprob] = (), reason: str | None = None
    ) -> Event:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = {"object": kind} | self._head | {"choices": [self._choice(said, likely, reason)]}
        return chunk | {"usage": None} if self._request.with_usage else chunk

    def _choice(self, said: Event, likely: Sequence[TokenLogprob], reason: str | None) -> Event:
        told = {"logprobs": self._likely(likely), "finish_reason": reason}
        return {"index": self._index} | said | told

    def _likely(self, likely: Sequence[TokenLogprob]) -> Event | None:
        if not likely:
            return None
        if not self._is_chat:
            return self._lists.told(likely)
        return {"content": logprob_entries(self._request, likely), "refusal": None}

    @property
    def _nothing(self) -> Event:
        """The part of a choice that holds no text."""
        return {"delta": {}} if self._is_chat else {"text": ""}

    def _delta(self, found: Sequence[AnswerEvent]) -> Event | None:
        """The part of a choice that holds what is new; None where nothing is."""
        text = text_of(found, Content)
        if not self._is_chat:
            return {"text": text} if text else None
        delta = _thinking(found) | ({"content": text} if text else {})
        if calls := calls_of(found):
            delta["tool_calls"] = [_call(one) | {"index": one.number} for one in calls]
        return {"delta": delta} if delta else None


def _stream(requests: Sequence[Request]) -> Writing:
    head, answers = _head(requests[0]), dict[int, Answer]()
    choices = [_Choice(requests, index, head) for index in range(len(requests))]
    chunks = [chunk for choice in choices for chunk in choice.opening()]
    while True:
        told = yield chunks
        if isinstance(told, Delta):
            chunks = choices[told.choice].chunks(told)
            continue
        chunks, request = choices[told.choice].last(told), requests[told.choice]
        answers[told.choice] = told.answer
        if request.with_usage and len(answers) == len(requests):
            used = usage(request, *(answers[at] for at in sorted(answers)))
            kind = chunks[0]["object"]
            chunks.append({"object": kind} | head | {"choices": [], "usage": used})


def _whole(requests: Sequence[Request], ends: Sequence[Ended]) -> Event:
    head = _head(requests[0])
    wholes = [_Choice(requests, end.choice, head).whole(end) for end in ends]
    choices = [choice for whole in wholes for choice in whole["choices"]]
    used = usage(requests[0], *(end.answer for end in ends))
    return wholes[0] | {"choices": choices, "usage": used}


OPENAI = Dialect(_stream, _whole, last="data: [DONE]\n\n")


def _head(request: Request) -> Event:
    """What all objects of an answer have in common."""
    prefix = "chatcmpl" if request.kind == "chat" else "cmpl"
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": _FINGERPRINT,
    }


def _message(found: Sequence[AnswerEvent]) -> Event:
    """What a model said, with the parts of each call put together."""
    text, calls = text_of(found, Content), [_call(one) for one in calls_of(found)]
    message: Event = {"role": "assistant", "content": text, "refusal": None} | _thinking(found)
    return message | {"content": text or None, "tool_calls": calls} if calls else message


def _thinking(found: Sequence[AnswerEvent]) -> Event:
    """What a model thinks, as clients of llama.cpp and of vLLM read it; nothing if it does not."""
    thought = text_of(found, Thought)
    return {"reasoning_content": thought, "reasoning": thought} if thought else {}


def _call(call: Call) -> Event:
    """A call as OpenAI writes it; of one that goes on, what is new."""
    if call.name is None:
        return {"function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class CompletionLogprobs:
    """The lists of a completion: of a stream, those of what is new in each chunk.

    Args:
        tokenizer: Tells how tokens are spelt.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._offset = tokenizer, 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def told(self, told: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The lists for the next tokens; the token itself is always among the alternatives."""
        return {
            "tokens": [self._text(one.token_id) for one in told],
            "token_logprobs": [max(one.logprob, LEAST_LOGPROB) for one in told],
            "top_logprobs": [self._top(one) for one in told],
            "text_offset": [self._start(one.token_id) for one in told],
        }

    def _start(self, token_id: int) -> int:
        """Where a token's text starts: behind the characters that are whole before it."""
        start = self._offset
        spelling = self._tokenizer.spelling
        if not spelling.is_special(token_id):
            self._offset += len(self._decoder.decode(spelling.bytes_of(token_id)))
        return start

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        top = dict[str, float]()
        for token_id, logprob in one.top:
            # Two tokens may share a text, as a byte and its character: the likelier one stays.
            top.setdefault(self._text(token_id), max(logprob, LEAST_LOGPROB))
        return top | {self._text(one.token_id): max(one.logprob, LEAST_LOGPROB)}

    def _text(self, token_id: int) -> str:
        """A token's text; one of no whole characters by its bytes, as OpenAI writes them."""
        spelt = self._tokenizer.spelling.bytes_of(token_id)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return "bytes:" + spelt.decode("ascii", "backslashreplace")
