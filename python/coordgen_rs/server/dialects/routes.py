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
from coordgen_rs.server.asked.completion import Asked
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.dialects.anthropic.answers import MESSAGES
from coordgen_rs.server.dialects.anthropic.asked import asked_count, asked_message
from coordgen_rs.server.dialects.ollama import listed
from coordgen_rs.server.dialects.ollama.answers import CHAT, GENERATE, loaded
from coordgen_rs.server.dialects.ollama.asked import asked_chat, asked_generate, asked_of_model
from coordgen_rs.server.dialects.refused import refused_routes
from coordgen_rs.server.models.models import Models

_T = TypeVar("_T")

ANSWERING = ("/v1/messages", "/api/chat", "/api/generate")
"""Paths whose requests wait for the model."""


class Answers(Protocol):
    """What the endpoints of the server do for a dialect."""

    async def read(self, request: Request, check: Callable[[Fields], _T]) -> tuple[str | None, _T]:
        """The name of the model that a body asks, and what `check` makes of the rest."""

    async def opened(self, request: Request, name: str | None) -> Model:
        """A model, once it is open."""

    def answered(
        self, request: Request, name: str | None, asked: Asked, dialect: Dialect
    ) -> Response:
        """The answer to what was asked."""

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
            "/api/chat": partial(self._ollama, asked_chat, CHAT),
            "/api/generate": partial(self._ollama, asked_generate, GENERATE),
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
        name, asked = await self._answers.read(request, asked_message)
        return self._answers.answered(request, name, asked, MESSAGES)

    async def _count(self, request: Request) -> Response:
        name, count = await self._answers.read(request, asked_count)
        model = await self._answers.opened(request, name)
        return JSONResponse(await self._answers.in_lane(request, partial(count, model)))

    async def _ollama(
        self, asked_by: Callable[[Fields], Asked], dialect: Dialect, request: Request
    ) -> Response:
        name, (what, asked) = await self._answers.read(
            request, lambda fields: (asked_of_model(fields), asked_by(fields))
        )
        if what is None:
            return self._answers.answered(request, name, asked, dialect)
        if what == "load":
            await self._answers.opened(request, name)
        return JSONResponse(loaded(dialect, self._models.found(name).name, what))

    async def _show(self, request: Request) -> Response:
        def check(fields: Fields) -> str | None:
            other = fields.text("name")  # as it was called before
            fields.ignore("verbose", "system", "template", "options")
            fields.end()
            self._models.found(other)
            return other

        name, other = await self._answers.read(request, check)
        return _told(listed.shown(self._models, self._models.found(name or other)))

    async def _version(self, request: Request) -> Response:
        return _told({"version": listed.VERSION})

    async def _tags(self, request: Request) -> Response:
        return _told(listed.tags(self._models))

    async def _running(self, request: Request) -> Response:
        return _told(listed.running(self._models))


def _told(value: dict[str, Any]) -> Response:
    return JSONResponse(value)
