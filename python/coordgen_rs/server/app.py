"""The routes: from a request to what answers it, or to an error in the form of its dialect.

In: the models, and what the server is to allow. Out: an ASGI application. Bodies are parsed in
`dialects/`, answers sent in `models/answering.py`. What the page does is in its scripts
(`page_parts/`): `chat.js` is the chat, `asking.js` asks the server, `messages.js` shows what is
said, and `answer/` how; `record.js` is a dialogue, `kept.js` and `shelf.js` keep and list them,
`files.js` attaches files, `settings.js` has the samplers.
"""

import asyncio
import base64
import hashlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coordgen_rs.errors import CoordgenError
from coordgen_rs.model import Model
from coordgen_rs.model.stream import Stream
from coordgen_rs.server import documents
from coordgen_rs.server.api_error import OF_ANTHROPIC, APIError, as_api_error, error_response
from coordgen_rs.server.clients import Client, ClientSlots, FairExecutor, client_of
from coordgen_rs.server.dialects import anthropic, ollama, openai, responses
from coordgen_rs.server.dialects.fields import MOST_BODY_BYTES, Fields, most_body_bytes, read
from coordgen_rs.server.dialects.request import Request as ParsedRequest
from coordgen_rs.server.dialects.writing import Dialect
from coordgen_rs.server.guard import Access, Guard, held
from coordgen_rs.server.metrics import CONTENT_TYPE
from coordgen_rs.server.models import catalog
from coordgen_rs.server.models.answering import AnswerResponse, PreparedRequest
from coordgen_rs.server.models.catalog import ModelStatus
from coordgen_rs.server.models.pool import ModelPool
from coordgen_rs.server.models.worker import Worker
from coordgen_rs.text.grammar.limits import GivenUpError, is_wanted

if TYPE_CHECKING:
    from coordgen_rs.model import Corpus

Endpoint = Callable[[Request], Awaitable[Response]]

_ANSWERS: dict[str, tuple[Callable[[Fields, Model], ParsedRequest], Dialect]] = {
    "/v1/chat/completions": (openai.parse_chat, openai.OPENAI),
    "/v1/completions": (openai.parse_completion, openai.OPENAI),
    "/v1/responses": (responses.parse_response, responses.RESPONSES),
    "/v1/messages": (anthropic.parse_message, anthropic.MESSAGES),
    "/api/chat": (ollama.parse_chat, ollama.CHAT),
    "/api/generate": (ollama.parse_generate, ollama.GENERATE),
}
"""Paths whose requests wait for the model's answer: what parses one, and how it is written."""

_COMPUTED = {
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


def make_app(pool: ModelPool, access: Access) -> ASGIApp:
    """The application.

    Args:
        pool: Answers requests; started and ended by the caller.
        access: Who may ask, and for what.
    """
    endpoints = Endpoints(pool, access)
    own = endpoints.documents
    got: dict[str, Endpoint] = {
        "/": endpoints.page,
        "/health": endpoints.health,
        "/v1/health": endpoints.health,
        "/v1/models": endpoints.models,
        "/v1/models/{name:path}": endpoints.model,
        documents.PATH: own.list,
        "/api/version": partial(endpoints.list, lambda _: {"version": catalog.VERSION}),
        "/api/tags": partial(endpoints.list, catalog.ollama_tags),
        "/api/ps": partial(endpoints.list, catalog.ollama_running),
    }
    posted: dict[str, Endpoint] = {
        **{path: partial(endpoints.answer, *how) for path, how in _ANSWERS.items()},
        **{path: partial(endpoints.compute, how) for path, how in _COMPUTED.items()},
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
            APIError: _api_error,
            CoordgenError: _api_error,
            Exception: _api_error,
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
    return Guard(app, access, endpoints.slot)


class Endpoints:
    """What each path answers.

    Args:
        pool: Answers requests.
        access: Who may ask.

    Attributes:
        documents: What is asked about documents to draft from.
    """

    def __init__(self, pool: ModelPool, access: Access) -> None:
        self._pool, self._access = pool, access
        self._created = int(time.time())
        self._page, self._executor = page(), FairExecutor()
        self._slots = ClientSlots(_MOST_TEXTS, lambda num: 1)
        self._adding = ClientSlots(1, lambda num: 1)
        self.documents = documents.Documents(self._corpus, self._executor, self._adding.hold)

    async def page(self, request: Request) -> Response:
        """The chat page."""
        return self._page

    async def health(self, request: Request) -> Response:
        """Whether requests can be answered; 503 if not."""
        self._pool.check_health()
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """All models."""
        statuses = self._pool.statuses()
        if OF_ANTHROPIC in request.headers:
            return JSONResponse(catalog.anthropic_models(statuses, self._created))
        found = [catalog.openai_model(one, self._created) for one in statuses]
        return JSONResponse({"object": "list", "data": found})

    async def model(self, request: Request) -> Response:
        """A model by its name."""
        status = self._pool.status(request.path_params["name"])
        is_of_anthropic = OF_ANTHROPIC in request.headers
        describe = catalog.anthropic_model if is_of_anthropic else catalog.openai_model
        return JSONResponse(describe(status, self._created))

    async def show(self, request: Request) -> Response:
        """What a model is and can do, for Ollama's clients."""
        name, fields = await self.read(request)
        other = fields.text("name")  # as it was called before
        fields.end("verbose", "system", "template", "options")
        self._pool.find(other)
        return JSONResponse(catalog.ollama_model(self._pool.status(name or other)))

    async def list(
        self, listed: Callable[[Sequence[ModelStatus]], dict[str, Any]], request: Request
    ) -> Response:
        """What Ollama's clients list of the models."""
        return JSONResponse(listed(self._pool.statuses()))

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
            APIError: The body cannot be used.
        """
        name, fields = await self.read(request)
        shown = self._pool.find(name).name
        is_of_ollama = dialect in (ollama.CHAT, ollama.GENERATE)
        if is_of_ollama and (what := ollama.asked_of_model(fields)) is not None:
            check = partial(ollama.check_of_model, fields, is_chat=dialect is ollama.CHAT)
            await self._executor.run(client_of(request.scope), check)
            if what == "load":
                await self.opened(request, name)
            return JSONResponse(ollama.loaded(dialect, shown, what))
        given = fields.peek("stream")
        is_streamed = dialect.streams_by_default if given is None else given is True
        prepare = partial(self._prepared, request, shown, partial(parse, fields))
        return AnswerResponse(dialect, shown, prepare, is_streamed=is_streamed)

    async def _prepared(
        self, request: Request, name: str, parse: Callable[[Model], ParsedRequest]
    ) -> PreparedRequest:
        """A request that only waits for its turn.

        Raises:
            APIError: It does not fit, there are too few places, or the model cannot be opened.
            CancelledError: Its client has left.
        """
        client, worker = client_of(request.scope), self._held(request, name)
        admission = held(request.scope).enter_context(worker.admitted())

        def ready(model: Model) -> tuple[list[ParsedRequest], list[Stream]]:
            parsed, namespace = replace(parse(model), model=name), self._namespace(client)
            choices = [parsed.choice(number) for number in range(parsed.num_choices)]
            begun = choices[: 1 if parsed.seed is None else None]
            return choices, [one.begin(model, namespace=namespace) for one in begun]

        try:
            model = await worker.opened(admission)
            choices, streams = await self._while_wanted(client, worker, partial(ready, model))
        except asyncio.CancelledError:  # its client has left
            worker.metrics.count("given_up")
            raise
        slots, num = self._pool.slots, len(streams)
        if num > slots.most:
            raise APIError(
                f"n is {num}, but a client may have {slots.most} answers at a time here: "
                "ask for fewer, or start the server with a greater --max-queue",
                param="n",
                code="invalid_value",
            )
        held(request.scope).enter_context(slots.hold(client, num - 1))  # one it has already
        return PreparedRequest(worker, admission, client, choices, streams)

    async def _while_wanted(self, client: Client, worker: Worker, function: Callable[[], _T]) -> _T:
        """Run what may compile a grammar in a thread, until the client leaves or the server ends.

        Raises:
            APIError: The function says so, or the server is going down.
        """
        left = threading.Event()

        def unless_left() -> _T:
            if left.is_set():
                raise GivenUpError
            return function()

        compiling = is_wanted.set(lambda: worker.is_wanted and not left.is_set())
        running = asyncio.ensure_future(self._executor.run(client, unless_left))
        try:
            return await asyncio.shield(running)
        except GivenUpError as error:
            await worker.opened()  # if nothing is answered any more, that is why
            raise APIError("the client has left", status=400) from error
        finally:
            left.set()
            is_wanted.reset(compiling)
            await asyncio.gather(running, return_exceptions=True)  # it has its thread until then

    async def compute(
        self, compute: Callable[[Fields, Model], dict[str, Any]], request: Request
    ) -> Response:
        """Answer with what a model's tokenizer or template makes of a body."""
        name, fields = await self.read(request)
        model, client = await self.opened(request, name), client_of(request.scope)
        return JSONResponse(await self._executor.run(client, partial(compute, fields, model)))

    async def metrics(self, request: Request) -> Response:
        """Answer with counts for Prometheus."""
        return PlainTextResponse(self._pool.metrics(), media_type=CONTENT_TYPE)

    def slot(self, client: Client, path: str) -> AbstractContextManager[None]:
        """A slot for a request to a path; see `Guard`."""
        if path == documents.PATH:
            return self._adding.hold(client)
        return (self._pool.slots if path in _ANSWERS else self._slots).hold(client)

    def _namespace(self, client: Client) -> str | None:
        """The namespace of a client's requests; None for that of the model."""
        is_own = self._access.namespace_by_key and client.key
        return f"{self._access.namespace}/{client.key}" if is_own else None

    async def _corpus(self, request: Request) -> Callable[[], "Corpus"]:
        """Opens the documents that a client's requests draft from.

        Raises:
            APIError: There is no such model, or it cannot be opened.
        """
        model = await self.opened(request, request.query_params.get("model"))
        return lambda: model.corpus(self._namespace(client_of(request.scope)))

    async def read(self, request: Request) -> tuple[str | None, Fields]:
        """The name of the model that a body asks, and its other fields.

        Raises:
            APIError: The body cannot be used, or there is no such model.
        """
        in_thread = partial(self._executor.run, client_of(request.scope))
        each = [status.model for status in self._pool.statuses()]
        bounds = [most_body_bytes(one.tokenizer, one.context) for one in each if one is not None]
        is_known = len(bounds) == len(each)
        fields = await read(request, max(bounds) if is_known else MOST_BODY_BYTES, in_thread)
        name = fields.text("model")
        self._pool.find(name)
        return name, fields

    def _held(self, request: Request, name: str | None) -> Worker:
        """The worker of a model, which stays until the request has ended.

        Raises:
            APIError: There is no model of that name.
        """
        return held(request.scope).enter_context(self._pool.hold(name))

    async def opened(self, request: Request, name: str | None) -> Model:
        """A model, once it is open; it stays until the request has ended.

        Raises:
            APIError: There is no model of that name, or it cannot be opened.
        """
        worker = self._held(request, name)
        await worker.opened()
        return worker.model


async def _unsupported(request: Request) -> Response:
    path = request.scope["path"]
    why = _UNSUPPORTED.get(path, _NO_FILES)
    raise APIError(f"{path} is not supported: {why}", status=501, code="unsupported_path")


async def _api_error(request: Request, error: Exception) -> Response:
    return error_response(as_api_error(error), request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """What Starlette refuses by itself: an unknown path, or another method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = {404: "there is no such path", 405: "the path does not take this method"}
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    told = APIError(said.get(status, "the request cannot be read"), status=status, kind=kind)
    if isinstance(error, HTTPException):
        told.headers |= error.headers or {}
    return error_response(told, request.scope)


_SCRIPTS = (
    *("elements.js", "vendor/marked.min.js", "answer/runs.js", "answer/markdown.js"),
    *("answer/rendered.js", "record.js", "kept.js", "answer/figures.js", "answer/tree.js"),
    *("answer/steps.js", "messages.js", "settings.js", "asking.js", "files.js"),
    *("shelf.js", "chat.js"),
)
"""In this order: each stands behind what it needs when it is read."""


def page() -> HTMLResponse:
    """The page. Only its own script and style run: the policy names them by their hashes."""
    style = _part("style.css")
    script = "\n".join(map(_part, _SCRIPTS))
    document = _part("page.html")
    document = document.replace("<style></style>", f"<style>{style}</style>")
    document = document.replace("<script></script>", f"<script>{script}</script>")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(
        document,
        headers={
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


def _part(name: str) -> str:
    return files("coordgen_rs.server").joinpath("page_parts", name).read_text("utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
