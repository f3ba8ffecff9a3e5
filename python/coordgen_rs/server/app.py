"""The routes: from a request to what answers it, or to a refusal in OpenAI's form.

In: a worker, and what the server is to allow. Out: an ASGI application. Bodies are checked in
`asked.py`, answers sent in `answering.py`.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coordgen_rs import arguments
from coordgen_rs.errors import CoordgenError
from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.answering import Answering, read_body, refused
from coordgen_rs.server.asked import Asked, asked_chat, asked_completion, asked_prompt
from coordgen_rs.server.fields import Fields
from coordgen_rs.server.figures import CONTENT_TYPE
from coordgen_rs.server.guard import Guard
from coordgen_rs.server.job import Job
from coordgen_rs.server.page import page
from coordgen_rs.server.refusal import RefusalError, refusal
from coordgen_rs.server.worker import Worker

MOST_BODY_BYTES = 8 << 20
"""Of a request: far more text than any context holds."""


@dataclass(frozen=True)
class Access:
    """Who may ask, and for what.

    Attributes:
        model: The model's name.
        key: The API key; None asks for none.
        hosts: Names of this server, beside localhost and IP addresses.
        origins: Origins of other web pages that may ask.
        with_metrics: Whether there is `/metrics`.
    """

    model: str
    key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    with_metrics: bool = False


def make_app(worker: Worker, access: Access) -> ASGIApp:
    """The application.

    Args:
        worker: Answers; started and ended by the caller.
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
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/apply-template", endpoints.apply_template, methods=["POST"]),
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
            app, allow_origins=access.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return Guard(app, key=access.key, hosts=access.hosts, origins=access.origins)


class Endpoints:
    """What each path answers.

    Args:
        worker: Answers.
        access: The model's name.
    """

    def __init__(self, worker: Worker, access: Access) -> None:
        self._worker, self._name = worker, access.model
        self._created = int(time.time())
        self._page = page()

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
        """Answer a prompt."""
        fields = await _fields(request)
        name = fields.text("model")
        if name is not None:
            self._check_name(name)
        asked = asked_by(fields)
        job = Job(asked, request.client.host if request.client else "")
        self._worker.submit(job)
        return Answering(job, self._worker, self._name)

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text, as llama.cpp's server gives them."""
        fields = await _fields(request)
        content = fields.text("content")
        if content is None:
            raise fields.wrong("content", "must be the text")
        special, with_pieces = fields.flag("add_special"), fields.flag("with_pieces")
        fields.end()
        tokenizer = self._worker.model.tokenizer
        ids = (await asyncio.to_thread(tokenizer.encode, content, special_tokens=special)).tolist()
        if not with_pieces:
            return JSONResponse({"tokens": ids})
        return JSONResponse(
            {"tokens": [{"id": token, "piece": tokenizer.token(token)} for token in ids]}
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens.

        Raises:
            RefusalError: They are not tokens of the model.
        """
        fields = await _fields(request)
        given = fields.take("tokens")
        fields.end()
        model = self._worker.model
        if not isinstance(given, list):
            raise fields.wrong("tokens", "must be a list of token ids")
        try:
            ids = arguments.token_ids("tokens", given, model.vocab_size).tolist()
        except CoordgenError as error:
            raise RefusalError(str(error), param="tokens", code="invalid_value") from error
        return JSONResponse({"content": await asyncio.to_thread(model.tokenizer.decode, ids)})

    async def apply_template(self, request: Request) -> Response:
        """The text that the model reads for a dialogue."""
        render = asked_prompt(await _fields(request))
        model = self._worker.model
        return JSONResponse({"prompt": await asyncio.to_thread(render, model)})

    async def metrics(self, request: Request) -> Response:
        """Counts for Prometheus."""
        worker = self._worker
        text = worker.figures.text(num_running=worker.num_running, num_waiting=worker.num_waiting)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

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
            "state": self._worker.state,
        }
        if self._worker.state == "ready":
            model = self._worker.model
            described |= {"context_length": model.context, "provider": model.provider}
        return described


async def _fields(request: Request) -> Fields:
    """The fields of a body.

    Raises:
        RefusalError: It is too long, cut short, or no JSON object.
    """
    try:
        body = await read_body(request.stream(), MOST_BODY_BYTES)
    except ClientDisconnect as error:
        raise RefusalError("the client went away while it sent the body") from error
    try:
        return Fields(parse_json(body, "the body"))
    except JsonTextError as error:
        raise RefusalError(str(error), code="invalid_json") from error


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
