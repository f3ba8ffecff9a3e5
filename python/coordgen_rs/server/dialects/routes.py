"""The routes of the other dialects: what their requests are, and what answers them.

In: the endpoints of the server. Out: routes. Answers come the same way as in OpenAI's form.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coordgen_rs.model import Model
from coordgen_rs.server.answers.dialect import Dialect
from coordgen_rs.server.dialects.anthropic.answers import MESSAGES
from coordgen_rs.server.dialects.ollama import listed
from coordgen_rs.server.dialects.ollama.answers import CHAT, GENERATE, loaded
from coordgen_rs.server.dialects.refused import refused_routes
from coordgen_rs.server.models.models import Models
from coordgen_rs.server.requests.anthropic import count_tokens, parse_message
from coordgen_rs.server.requests.fields import Fields
from coordgen_rs.server.requests.ollama import asked_of_model, parse_chat, parse_generate
from coordgen_rs.server.requests.record import Request as ParsedRequest

_T = TypeVar("_T")

ANSWERING = ("/v1/messages", "/api/chat", "/api/generate")
"""Paths whose requests wait for the model."""


class Answers(Protocol):
    """What the endpoints of the server do for a dialect."""

    async def read(self, request: Request) -> tuple[str | None, Fields]:
        """The name of the model that a body asks, and its other fields."""

    async def opened(self, request: Request, name: str | None) -> Model:
        """A model, once it is open."""

    def answered(
        self,
        request: Request,
        name: str | None,
        fields: Fields,
        parse: Callable[[Fields, Model], ParsedRequest],
        dialect: Dialect,
    ) -> Response:
        """The answer to a request, which is parsed once its model is open."""

    def in_lane(self, request: Request, function: Callable[[], _T]) -> Awaitable[_T]:
        """Run what takes long in a thread."""


class Dialects:
    """What the paths of the other dialects answer.

    Args:
        answers: The endpoints of the server.
        models: What is told of.
    """

    def __init__(self, answers: Answers, models: Models) -> None:
        self._answers, self._models = answers, models

    def routes(self) -> list[Route]:
        """All paths."""
        post: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/v1/messages": self._message,
            "/v1/messages/count_tokens": self._count,
            "/api/chat": partial(self._ollama, parse_chat, CHAT),
            "/api/generate": partial(self._ollama, parse_generate, GENERATE),
            "/api/show": self._show,
        }
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()),
            Route("/api/version", self._version),
            Route("/api/tags", self._tags),
            Route("/api/ps", self._running),
            *refused_routes(),
        ]

    async def _message(self, request: Request) -> Response:
        name, fields = await self._answers.read(request)
        return self._answers.answered(request, name, fields, parse_message, MESSAGES)

    async def _count(self, request: Request) -> Response:
        name, fields = await self._answers.read(request)
        model = await self._answers.opened(request, name)
        count = partial(count_tokens, fields, model)
        return JSONResponse(await self._answers.in_lane(request, count))

    async def _ollama(
        self,
        parse: Callable[[Fields, Model], ParsedRequest],
        dialect: Dialect,
        request: Request,
    ) -> Response:
        name, fields = await self._answers.read(request)
        what = asked_of_model(fields)
        if what is None:
            return self._answers.answered(request, name, fields, parse, dialect)
        if what == "load":
            await self._answers.opened(request, name)
        return JSONResponse(loaded(dialect, self._models.found(name).name, what))

    async def _show(self, request: Request) -> Response:
        name, fields = await self._answers.read(request)
        other = fields.text("name")  # as it was called before
        fields.ignore("verbose", "system", "template", "options")
        fields.end()
        self._models.found(other)
        return _told(listed.shown(self._models, self._models.found(name or other)))

    async def _version(self, request: Request) -> Response:
        return _told({"version": listed.VERSION})

    async def _tags(self, request: Request) -> Response:
        return _told(listed.tags(self._models))

    async def _running(self, request: Request) -> Response:
        return _told(listed.running(self._models))


def _told(value: dict[str, Any]) -> Response:
    return JSONResponse(value)
