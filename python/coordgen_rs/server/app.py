"""The routes: from a request to what answers it, or to a refusal in OpenAI's form.

In: a worker, and what the server is to allow. Out: an ASGI application. Bodies are checked in
`asked/completion.py`, answers sent in `answers/answering.py`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coordgen_rs.errors import CoordgenError, arguments
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.files.version import package_version
from coordgen_rs.history.corpus.corpus import Corpus
from coordgen_rs.server import documents
from coordgen_rs.server.answers.answering import Answering, refused
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.answers.response_form import ResponseForm
from coordgen_rs.server.asked.bodies import most_body_bytes, read
from coordgen_rs.server.asked.completion import Asked, asked_chat, asked_completion, asked_prompt
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.response import asked_response
from coordgen_rs.server.asked.tokens import asked_text, asked_tokens
from coordgen_rs.server.figures import CONTENT_TYPE
from coordgen_rs.server.job import Job
from coordgen_rs.server.network.client import Client, client_of
from coordgen_rs.server.network.guard import Guard
from coordgen_rs.server.network.keys import ApiKey
from coordgen_rs.server.network.lanes import Lanes
from coordgen_rs.server.network.places import Places
from coordgen_rs.server.page import page
from coordgen_rs.server.refusal import RefusalError, refusal
from coordgen_rs.server.worker import Worker

ANSWERING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Paths whose requests wait for the model."""

_MOST_TEXTS = 16
"""Most simultaneous requests of a client for tokens and templates."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Access:
    """Who may ask, and for what.

    Attributes:
        model: The model's name.
        keys: The API keys; none asks for none.
        namespace_by_key: Whether each name of a key has a namespace of its own.
        namespace: The prefix of those namespaces.
        hosts: Names of this server, besides localhost and IP addresses.
        origins: Origins of other web pages that may ask.
        with_metrics: Whether there is `/metrics`.
    """

    model: str
    keys: tuple[ApiKey, ...] = ()
    namespace_by_key: bool = False
    namespace: str = DEFAULT_NAMESPACE
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    with_metrics: bool = False


def make_app(worker: Worker, access: Access) -> ASGIApp:
    """The application.

    Args:
        worker: Answers requests; started and ended by the caller.
        access: Who may ask, and for what.
    """
    endpoints = Endpoints(worker, access)
    routes = [
        Route("/", endpoints.page),
        Route("/health", endpoints.health),
        Route("/v1/health", endpoints.health),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.model),
        Route("/v1/chat/completions", partial(endpoints.answer, asked_chat), methods=["POST"]),
        Route("/v1/completions", partial(endpoints.answer, asked_completion), methods=["POST"]),
        Route("/v1/responses", partial(endpoints.answer, asked_response), methods=["POST"]),
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/apply-template", endpoints.apply_template, methods=["POST"]),
        Route(documents.PATH, endpoints.documents.list),
        Route(documents.PATH, endpoints.documents.add, methods=["POST"]),
        Route(documents.PATH + "/{name:path}", endpoints.documents.remove, methods=["DELETE"]),
    ]
    if access.with_metrics:
        routes.append(Route("/metrics", endpoints.metrics))
    app: ASGIApp = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            RefusalError: _refused,
            CoordgenError: _refused,
            Exception: _refused,
        },
    )
    if access.origins:
        app = CORSMiddleware(
            app,
            allow_origins=access.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return Guard(
        app,
        keys=access.keys,
        hosts=access.hosts,
        origins=access.origins,
        place=endpoints.place,
    )


class Endpoints:
    """What each path answers.

    Args:
        worker: Answers requests.
        access: Gives the model's name.

    Attributes:
        documents: What is asked about documents to draft from.
    """

    def __init__(self, worker: Worker, access: Access) -> None:
        self._worker, self._access, self._name = worker, access, access.model
        self._created = int(time.time())
        self._page, self._lanes = page(), Lanes()
        self._places = Places(_MOST_TEXTS, lambda num: 1)
        self._adding = Places(1, lambda num: 1)
        self.documents = documents.Documents(self._corpus, self._lanes, self._adding.one)

    async def page(self, request: Request) -> Response:
        """The chat page."""
        return self._page

    async def health(self, request: Request) -> Response:
        """Whether requests can be answered; 503 if not."""
        _ = self._worker.model
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """The one model."""
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        """The model by its name."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._described())

    async def answer(self, asked_by: Callable[[Fields], Asked], request: Request) -> Response:
        """Answer a prompt.

        Raises:
            RefusalError: It does not fit, or the queue is full.
        """

        def check(fields: Fields) -> Asked:
            name = fields.text("model")
            if name is not None:
                self._check_name(name)
            return asked_by(fields)

        client = client_of(request.scope)
        asked = await self._read(request, check)
        model = self._worker.model
        prompt_ids = await self._lanes.run(client, partial(asked.prompt_ids, model))
        job = Job(asked, prompt_ids, client, self._namespace(client))
        tokenizer = model.tokenizer
        kind = ResponseForm if asked.kind == "response" else Form
        form = kind(
            asked,
            self._name,
            lambda token: tokenizer.decode([token]) or tokenizer.token(token) or "",
        )
        self._worker.submit(job)
        return Answering(job, self._worker, form)

    async def tokenize(self, request: Request) -> Response:
        """Answer with the tokens of a text, as llama.cpp's server does."""
        content, special, with_pieces = await self._read(request, asked_tokens)
        tokenizer = self._worker.model.tokenizer

        def told() -> Response:
            ids = tokenizer.encode(content, special_tokens=special).tolist()
            if not with_pieces:
                return JSONResponse({"tokens": ids})
            return JSONResponse(
                {"tokens": [{"id": token, "piece": tokenizer.token(token)} for token in ids]}
            )

        return await self._lanes.run(client_of(request.scope), told)

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens."""
        model = self._worker.model
        ids = await self._read(request, partial(asked_text, model.vocab_size))
        return await self._lanes.run(
            client_of(request.scope),
            lambda: JSONResponse({"content": model.tokenizer.decode(ids)}),
        )

    async def apply_template(self, request: Request) -> Response:
        """The text that the model reads for a dialogue."""
        render = await self._read(request, asked_prompt)
        model = self._worker.model
        return await self._lanes.run(
            client_of(request.scope), lambda: JSONResponse({"prompt": render(model)})
        )

    async def metrics(self, request: Request) -> Response:
        """Answer with counts for Prometheus."""
        worker = self._worker
        text = worker.figures.text(
            num_running=worker.num_running,
            num_waiting=worker.num_waiting,
            num_places=worker.num_places,
            runs=worker.runs,
            store=worker.store,
        )
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    def place(self, client: Client, path: str) -> AbstractContextManager[None]:
        """A place for a request to a path; see `Guard`."""
        if path == documents.PATH:
            return self._adding.one(client)
        return (self._worker.places if path in ANSWERING else self._places).one(client)

    def _namespace(self, client: Client) -> str | None:
        """The namespace of a client's requests; None for that of the model."""
        if self._access.namespace_by_key and client.key:
            return f"{self._access.namespace}/{client.key}"
        return None

    def _corpus(self, client: Client) -> Corpus:
        """The documents that a client's requests draft from.

        Raises:
            OptionError: There is no history to keep documents in.
        """
        return self._worker.model.corpus(self._namespace(client))

    async def _read(self, request: Request, check: Callable[[Fields], _T]) -> _T:
        """What `check` makes of a request's body.

        Raises:
            RefusalError: The body cannot be used, or the model cannot be used now.
        """
        model, client = self._worker.model, client_of(request.scope)
        most_bytes = most_body_bytes(model.tokenizer, model.context)
        return await read(request, check, most_bytes, partial(self._lanes.run, client))

    def _check_name(self, name: str) -> None:
        if name != self._name:
            raise RefusalError(
                f"the model {arguments.shown(name)} is not here: this server has {self._name}",
                status=404,
                kind="not_found_error",
                param="model",
                code="model_not_found",
            )

    def _described(self) -> dict[str, Any]:
        described: dict[str, Any] = {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "coordgen",
            "version": package_version(),
            "state": self._worker.state,
        }
        if self._worker.state == "ready":
            model = self._worker.model
            described |= {"context_length": model.context, "provider": model.provider}
            described["parallel"] = model.parallel
            if model.why_alone is not None:
                described["why_alone"] = model.why_alone
            if (costs := model.step_costs) is not None:
                described["step_us"] = {
                    rows: {"base": cost.base, "per_token": cost.per_token}
                    for rows, cost in costs.items()
                }
        return described


async def _refused(request: Request, error: Exception) -> Response:
    return refused(refusal(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """What Starlette refuses by itself: an unknown path, or another method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        told = RefusalError("there is no such path", status=404, kind="not_found_error")
    elif status == 405:
        told = RefusalError("the path does not take this method", status=405)
    else:
        told = RefusalError("the request cannot be read", status=status)
    if isinstance(error, HTTPException):
        told.headers |= error.headers or {}
    return refused(told)
