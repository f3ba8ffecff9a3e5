"""The routes: from a request to what answers it, or to a refusal in the form of its dialect.

In: the models, and what the server is to allow. Out: an ASGI application. Bodies are checked in
`requests/`, answers sent in `answers/answering.py`.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
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

from coordgen_rs.errors import CoordgenError
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.grammar.limits import GivenUpError, is_wanted
from coordgen_rs.model import Model
from coordgen_rs.model.stream import Stream
from coordgen_rs.server import documents
from coordgen_rs.server.answers.answering import Answering, Prepared
from coordgen_rs.server.answers.anthropic import MESSAGES
from coordgen_rs.server.answers.dialect import Answered, Dialect
from coordgen_rs.server.answers.ollama import CHAT, GENERATE, loaded
from coordgen_rs.server.answers.openai import OPENAI
from coordgen_rs.server.answers.responses import RESPONSES
from coordgen_rs.server.clients import Client, Lanes, Places, client_of
from coordgen_rs.server.figures import CONTENT_TYPE
from coordgen_rs.server.models import listed
from coordgen_rs.server.models.models import Models
from coordgen_rs.server.network.guard import Guard, held
from coordgen_rs.server.network.keys import ApiKey
from coordgen_rs.server.page import page
from coordgen_rs.server.refusal import OF_ANTHROPIC, RefusalError, refusal, refused
from coordgen_rs.server.requests import anthropic, ollama, openai
from coordgen_rs.server.requests.body import MOST_BODY_BYTES, Fields, most_body_bytes, read
from coordgen_rs.server.requests.record import Request as ParsedRequest
from coordgen_rs.server.requests.responses import parse_response
from coordgen_rs.server.worker import Worker
from coordgen_rs.store.history.corpus import Corpus

Endpoint = Callable[[Request], Awaitable[Response]]

_ANSWERED: dict[str, tuple[Callable[[Fields, Model], ParsedRequest], Dialect]] = {
    "/v1/chat/completions": (openai.parse_chat, OPENAI),
    "/v1/completions": (openai.parse_completion, OPENAI),
    "/v1/responses": (parse_response, RESPONSES),
    "/v1/messages": (anthropic.parse_message, MESSAGES),
    "/api/chat": (ollama.parse_chat, CHAT),
    "/api/generate": (ollama.parse_generate, GENERATE),
}
"""Paths whose requests wait for the model's answer: what parses one, and how it is written."""

_TOLD = {
    "/tokenize": openai.tokenize,
    "/detokenize": openai.detokenize,
    "/apply-template": openai.apply_template,
    "/v1/messages/count_tokens": anthropic.count_tokens,
}
"""Paths that are told what a model's tokenizer or template makes of a body."""

_NO_EMBEDDINGS = "the server gives no embeddings: its models answer with text"
_NO_FILES = "the server does not change its models: give others on its command line"
_UNSUPPORTED = {
    **dict.fromkeys(("/v1/embeddings", "/api/embed", "/api/embeddings"), _NO_EMBEDDINGS),
    **dict.fromkeys(("/api/pull", "/api/push", "/api/create", "/api/copy"), _NO_FILES),
    **dict.fromkeys(("/api/delete", "/api/blobs/{digest}"), _NO_FILES),
    "/v1/messages/batches": "the server takes requests one by one, not in batches",
}
"""Paths of other servers that this one does not have, and why."""

_MOST_TEXTS = 16
"""Most simultaneous requests of a client for tokens and templates."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Access:
    """Who may ask, and for what.

    Attributes:
        keys: The API keys; none asks for none.
        namespace_by_key: Whether each name of a key has a namespace of its own.
        namespace: The prefix of those namespaces.
        hosts: Names of this server, besides localhost and IP addresses.
        origins: Origins of other web pages that may ask.
        with_metrics: Whether there is `/metrics`.
    """

    keys: tuple[ApiKey, ...] = ()
    namespace_by_key: bool = False
    namespace: str = DEFAULT_NAMESPACE
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    with_metrics: bool = False


def make_app(models: Models, access: Access) -> ASGIApp:
    """The application.

    Args:
        models: Answer requests; started and ended by the caller.
        access: Who may ask, and for what.
    """
    endpoints = Endpoints(models, access)
    own = endpoints.documents
    got: dict[str, Endpoint] = {
        "/": endpoints.page,
        "/health": endpoints.health,
        "/v1/health": endpoints.health,
        "/v1/models": endpoints.models,
        "/v1/models/{name:path}": endpoints.model,
        documents.PATH: own.list,
        "/api/version": endpoints.told_of(lambda _: {"version": listed.VERSION}),
        "/api/tags": endpoints.told_of(listed.tags),
        "/api/ps": endpoints.told_of(listed.running),
    }
    posted: dict[str, Endpoint] = {
        **{path: partial(endpoints.answer, *how) for path, how in _ANSWERED.items()},
        **{path: partial(endpoints.tell, told) for path, told in _TOLD.items()},
        "/api/show": endpoints.show,
        documents.PATH: own.add,
    }
    paths = [
        *(Route(path, endpoint) for path, endpoint in got.items()),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posted.items()),
        Route(documents.PATH + "/{name:path}", own.remove, methods=["DELETE"]),
        *(Route(path, _unsupported, methods=["GET", "POST", "DELETE"]) for path in _UNSUPPORTED),
    ]
    if access.with_metrics:
        paths.append(Route("/metrics", endpoints.metrics))
    app: ASGIApp = Starlette(
        routes=paths,
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
            allow_private_network=True,
            expose_headers=["Retry-After"],
        )
    keys, hosts, origins = access.keys, access.hosts, access.origins
    return Guard(app, keys=keys, hosts=hosts, origins=origins, place=endpoints.place)


class Endpoints:
    """What each path answers.

    Args:
        models: Answer requests.
        access: Who may ask.

    Attributes:
        documents: What is asked about documents to draft from.
    """

    def __init__(self, models: Models, access: Access) -> None:
        self._models, self._access = models, access
        self._created = int(time.time())
        self._page, self._lanes = page(), Lanes()
        self._places = Places(_MOST_TEXTS, lambda num: 1)
        self._adding = Places(1, lambda num: 1)
        self.documents = documents.Documents(self._corpus, self._lanes, self._adding.hold)

    async def page(self, request: Request) -> Response:
        """The chat page."""
        return self._page

    async def health(self, request: Request) -> Response:
        """Whether requests can be answered; 503 if not."""
        self._models.check_health()
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """All models."""
        if OF_ANTHROPIC in request.headers:
            return JSONResponse(listed.listed_to_anthropic(self._models, self._created))
        each = self._models.offered
        found = [listed.described(self._models, one, self._created) for one in each]
        return JSONResponse({"object": "list", "data": found})

    async def model(self, request: Request) -> Response:
        """A model by its name."""
        found = self._models.found(request.path_params["name"])
        if OF_ANTHROPIC in request.headers:
            return JSONResponse(listed.described_to_anthropic(found.name, self._created))
        return JSONResponse(listed.described(self._models, found, self._created))

    async def show(self, request: Request) -> Response:
        """What a model is and can do, for Ollama's clients."""
        name, fields = await self.read(request)
        other = fields.text("name")  # as it was called before
        fields.end("verbose", "system", "template", "options")
        self._models.found(other)
        return JSONResponse(listed.shown(self._models, self._models.found(name or other)))

    def told_of(self, told: Callable[[Models], dict[str, Any]]) -> Endpoint:
        """An endpoint that tells of the models."""

        async def tell(request: Request) -> Response:
            return JSONResponse(told(self._models))

        return tell

    async def answer(
        self,
        parse: Callable[[Fields, Model], ParsedRequest],
        dialect: Dialect,
        request: Request,
    ) -> Response:
        """Answer a prompt, or only open a model where Ollama's clients ask for no more.

        Args:
            parse: Parses the body, for the open model.
            dialect: Writes the answer.
            request: Its body has not been read.

        Raises:
            RefusalError: The body cannot be used.
        """
        name, fields = await self.read(request)
        shown = self._models.found(name).name
        is_of_ollama = dialect in (CHAT, GENERATE)
        if is_of_ollama and (what := ollama.asked_of_model(fields)) is not None:
            check = partial(ollama.check_of_model, fields, is_chat=dialect is CHAT)
            await self._lanes.run(client_of(request.scope), check)
            if what == "load":
                await self.opened(request, name)
            return JSONResponse(loaded(dialect, shown, what))
        given = fields.peek("stream")
        is_streamed = dialect.streams_by_default if given is None else given is True
        prepare = partial(self._prepared, request, shown, partial(parse, fields))
        return Answering(dialect, shown, prepare, is_streamed=is_streamed)

    async def _prepared(
        self, request: Request, name: str, parse: Callable[[Model], ParsedRequest]
    ) -> Prepared:
        """A request that only waits for its turn.

        Raises:
            RefusalError: It does not fit, there are too few places, or the model cannot be opened.
            CancelledError: Its client has left.
        """
        client, worker = client_of(request.scope), self._held(request, name)
        admission = held(request.scope).enter_context(worker.admitted())

        def ready(model: Model) -> tuple[list[Answered], list[Stream]]:
            parsed, namespace = parse(model), self._namespace(client)
            each = [parsed.choice(number) for number in range(parsed.num_choices)]
            begun = each[: 1 if parsed.seed is None else None]
            answered = [Answered(one, name, worker.text_of) for one in each]
            return answered, [one.begin(model, namespace=namespace) for one in begun]

        try:
            model = await worker.opened(admission)
            answered, streams = await self._while_wanted(client, worker, partial(ready, model))
        except asyncio.CancelledError:  # its client has left
            worker.figures.ended("given_up")
            raise
        places, num = self._models.places, len(streams)
        if num > places.most:
            raise RefusalError(
                f"n is {num}, but a client may have {places.most} answers at a time here: "
                "ask for fewer, or start the server with a greater --max-queue",
                param="n",
                code="invalid_value",
            )
        held(request.scope).enter_context(places.hold(client, num - 1))  # one it has already
        return Prepared(worker, admission, client, answered, streams)

    async def _while_wanted(self, client: Client, worker: Worker, function: Callable[[], _T]) -> _T:
        """Run what may compile a grammar in a lane, until the client leaves or the server ends.

        Raises:
            RefusalError: The function says so, or the server is going down.
        """
        left = threading.Event()

        def in_lane() -> _T:
            if left.is_set():
                raise GivenUpError
            return function()

        compiling = is_wanted.set(lambda: worker.is_wanted and not left.is_set())
        running = asyncio.ensure_future(self._lanes.run(client, in_lane))
        try:
            return await asyncio.shield(running)
        except GivenUpError as error:
            await worker.opened()  # if nothing is answered any more, that is why
            raise RefusalError("the client has left", status=400) from error
        finally:
            left.set()
            is_wanted.reset(compiling)
            await asyncio.gather(running, return_exceptions=True)  # it has its lane until then

    async def tell(
        self, told: Callable[[Fields, Model], dict[str, Any]], request: Request
    ) -> Response:
        """Answer with what a model's tokenizer or template makes of a body."""
        name, fields = await self.read(request)
        model, client = await self.opened(request, name), client_of(request.scope)
        return JSONResponse(await self._lanes.run(client, partial(told, fields, model)))

    async def metrics(self, request: Request) -> Response:
        """Answer with counts for Prometheus."""
        return PlainTextResponse(self._models.metrics(), media_type=CONTENT_TYPE)

    def place(self, client: Client, path: str) -> AbstractContextManager[None]:
        """A place for a request to a path; see `Guard`."""
        if path == documents.PATH:
            return self._adding.hold(client)
        return (self._models.places if path in _ANSWERED else self._places).hold(client)

    def _namespace(self, client: Client) -> str | None:
        """The namespace of a client's requests; None for that of the model."""
        is_own = self._access.namespace_by_key and client.key
        return f"{self._access.namespace}/{client.key}" if is_own else None

    async def _corpus(self, request: Request) -> Callable[[], Corpus]:
        """Opens the documents that a client's requests draft from.

        Raises:
            RefusalError: There is no such model, or it cannot be opened.
        """
        model = await self.opened(request, request.query_params.get("model"))
        return lambda: model.corpus(self._namespace(client_of(request.scope)))

    async def read(self, request: Request) -> tuple[str | None, Fields]:
        """The name of the model that a body asks, and its other fields.

        Raises:
            RefusalError: The body cannot be used, or there is no such model.
        """
        in_thread = partial(self._lanes.run, client_of(request.scope))
        open_ones = self._models.open_ones()
        bounds = [most_body_bytes(model.tokenizer, model.context) for model in open_ones]
        is_known = len(bounds) == len(self._models.offered)
        fields = await read(request, max(bounds) if is_known else MOST_BODY_BYTES, in_thread)
        name = fields.text("model")
        self._models.found(name)
        return name, fields

    def _held(self, request: Request, name: str | None) -> Worker:
        """The worker of a model, which stays until the request has ended.

        Raises:
            RefusalError: There is no model of that name.
        """
        return held(request.scope).enter_context(self._models.hold(name))

    async def opened(self, request: Request, name: str | None) -> Model:
        """A model, once it is open; it stays until the request has ended.

        Raises:
            RefusalError: There is no model of that name, or it cannot be opened.
        """
        worker = self._held(request, name)
        await worker.opened()
        return worker.model


async def _unsupported(request: Request) -> Response:
    path = request.scope["path"]
    why = _UNSUPPORTED.get(path, _NO_FILES)
    raise RefusalError(f"{path} is not supported: {why}", status=501, code="unsupported_path")


async def _refused(request: Request, error: Exception) -> Response:
    return refused(refusal(error), request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """What Starlette refuses by itself: an unknown path, or another method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = {404: "there is no such path", 405: "the path does not take this method"}
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    told = RefusalError(said.get(status, "the request cannot be read"), status=status, kind=kind)
    if isinstance(error, HTTPException):
        told.headers |= error.headers or {}
    return refused(told, request.scope)
