"""A server that is asked: what it is, how its drafts are switched off, and its answers.

In: an address, questions, and how to ask. Out: replies, or an `AnswerError`.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from coordgen_rs.lab.verify.connection import (
    Address,
    AnswerError,
    Incoming,
    RefusedError,
    asked,
)
from coordgen_rs.lab.verify.questions import Question
from coordgen_rs.lab.verify.replies import Reply, object_of, streamed, whole

Form = Literal["whole", "streamed"]

WITHOUT_DRAFTS: Mapping[str, dict[str, Any]] = {
    "coordgen": {"coordgen": {"drafts": False}},
    "llama.cpp": {"speculative.n_max": 0},
}
"""The fields of a request that switch drafts off, by the kind of a server. vLLM has none. Builds of
llama.cpp from 2026 on ignore theirs; then its answers go on counting drafts, which is told."""

_ALONE: Mapping[str, dict[str, Any]] = {"llama.cpp": {"cache_prompt": False}}
"""What keeps answers from depending on earlier ones, by the kind of a server. llama.cpp's bits are
others where a prompt, or most of it, is in its cache: it is read in other batches then."""

_OWNERS = {"coordgen": "coordgen", "llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
_SHOWN = 400
"""Most characters shown of what a server says about a failure."""

_NOT_THE_REQUEST = (401, 403, 408, 429)
_UNAVAILABLE = 503
_PAUSE_S = 0.2
"""Between two looks at a server that is loading its model."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: `seed` None takes the most likely one."""

    seed: int | None = None
    temperature: float = 0.8

    @property
    def name(self) -> str:
        """As reports show it."""
        return "greedy" if self.seed is None else f"seed {self.seed}"

    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        if self.seed is None:
            return {"temperature": 0}
        return {"temperature": self.temperature, "top_p": 0.95, "seed": self.seed}


@dataclass(frozen=True)
class Server:
    """A server, and the fields that each request to it has besides.

    Attributes:
        address: Where it is.
        model: The model's name; None sends none.
        kind: "coordgen", "llama.cpp", "vLLM", ..; "unknown" if it does not say.
        version: As it tells it; None if it does not.
        header: What it calls itself in each answer's head; "" if nothing.
        fields: Such as those of `WITHOUT_DRAFTS`, besides what makes requests independent.
    """

    address: Address
    model: str | None
    kind: str
    version: str | None
    header: str
    fields: Mapping[str, Any]

    def ask(self, question: Question, sampling: Sampling, form: Form) -> Reply:
        """Ask once.

        Raises:
            AnswerError: There is no answer.
        """
        body = dict(question.body) | sampling.fields() | dict(self.fields)
        if self.model is not None:
            body["model"] = self.model
        if form == "streamed":
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        begun = time.monotonic()
        with asked(self.address, f"{self.address.base}/{question.path}", _json(body)) as incoming:
            _check(incoming)
            return (streamed if form == "streamed" else whole)(incoming.pieces, begun)

    def gap_at(self, question: Question, at: int) -> float | None:
        """How much likelier the most likely token is than the next one, in nats, at a character.

        Args:
            question: Asked greedily.
            at: A character of the content, from 0.

        Returns:
            None where the server tells no probabilities.
        """
        is_chat = question.path.startswith("chat")
        wanted = {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
        body = dict(question.body) | Sampling().fields() | dict(self.fields) | wanted
        if self.model is not None:
            body["model"] = self.model
        with suppress(
            AnswerError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError
        ):
            told = _told(self.address, f"{self.address.base}/{question.path}", _json(body))
            end = 0
            for token, likely in _likelihoods(told["choices"][0]["logprobs"]):
                end += len(token)
                if end > at:
                    first, second, *_ = sorted(likely, reverse=True)
                    return float(first - second)
        return None


def _likelihoods(told: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """Each token, and the logarithms of the likeliest ones; raises anything if it is malformed."""
    if "content" in told:
        for item in told["content"]:
            yield item["token"], [other["logprob"] for other in item["top_logprobs"]]
    else:
        for token, likely in zip(told["tokens"], told["top_logprobs"], strict=False):
            yield token, list(likely.values())


def find_server(address: Address, model: str | None) -> Server:
    """Ask a server what it is; one that is loading its model is waited for, within its timeout.

    Args:
        address: Where it is.
        model: The model to be asked; None for the first that it lists.

    Raises:
        AnswerError: It cannot be reached, or does not answer.
    """
    kind, end = "unknown", time.monotonic() + address.timeout_s
    try:
        while isinstance(found := _listed(address), str):
            if time.monotonic() > end:
                raise AnswerError(f"after {address.timeout_s:g} s it still says: {found}")
            time.sleep(_PAUSE_S)
        listed, header = found
    except AnswerError as error:
        raise AnswerError(f"{address.shown}: {error}") from error
    for one in listed[:1]:
        kind = _OWNERS.get(str(one.get("owned_by")), "unknown")
        if model is None and isinstance(one.get("id"), str):
            model = one["id"]
    version = _version(address, kind, listed)
    return Server(address, model, kind, version, header, _ALONE.get(kind, {}))


def _listed(address: Address) -> tuple[list[dict[str, Any]], str] | str:
    """The models that a server lists and its name for itself; or why it is not ready yet.

    Raises:
        AnswerError: It cannot be reached, or does not answer.
    """
    with asked(address, f"{address.base}/models", None) as incoming:
        content = b"".join(incoming.pieces)
    if incoming.status == _UNAVAILABLE:
        return _status(incoming, content)
    if incoming.status in _NOT_THE_REQUEST or incoming.status >= 500:
        raise AnswerError(_status(incoming, content))
    if incoming.status != 200:
        return [], incoming.server
    data = object_of(content, "the list of models").get("data")
    listed = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    if any(one.get("state") == "loading" for one in listed[:1]):
        return "the model is being loaded"
    return listed, incoming.server


def _version(address: Address, kind: str, listed: list[dict[str, Any]]) -> str | None:
    places = {"llama.cpp": ("/props", "build_info"), "vLLM": ("/version", "version")}
    found: object = listed[0].get("version") if listed else None
    if kind in places:
        path, name = places[kind]
        with suppress(AnswerError):
            found = _told(address, address.base.removesuffix("/v1") + path, None).get(name)
    return found if isinstance(found, str) else None


def _told(address: Address, path: str, body: bytes | None) -> dict[str, Any]:
    """The object that a path answers with.

    Raises:
        AnswerError: It does not.
    """
    with asked(address, path, body) as incoming:
        content = b"".join(incoming.pieces)
        if incoming.status != 200:
            raise AnswerError(_status(incoming, content))
        return object_of(content, "the answer")


def _check(incoming: Incoming) -> None:
    """Refuse a status that says that there is no answer.

    Raises:
        AnswerError: It is not 200; a `RefusedError` where the request is at fault.
    """
    status = incoming.status
    if status == 200:
        return
    is_refusal = 400 <= status < 500 and status not in _NOT_THE_REQUEST
    error = RefusedError if is_refusal else AnswerError
    raise error(_status(incoming, b"".join(incoming.pieces)))


def _status(incoming: Incoming, content: bytes) -> str:
    if incoming.location is not None:
        to = incoming.location[:_SHOWN]
        return f"status {incoming.status}: it redirects to {to}, which is not followed"
    said: object = content.decode(errors="replace")
    with suppress(AnswerError):
        error = object_of(content, "it").get("error")
        said = error.get("message") if isinstance(error, dict) else error
    return f"status {incoming.status}: {str(said)[:_SHOWN]}"


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()
