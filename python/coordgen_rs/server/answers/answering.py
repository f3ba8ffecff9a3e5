"""An answer on the wire: one JSON object, or server-sent events as OpenAI's clients read them.

In: the news of a job. Out: what ASGI sends. A client that goes away ends its job, whether that is
queued or running. An error before the first event has its own status; after it, it is an event.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.dialects.errors import error_json
from coordgen_rs.server.job import Job, News
from coordgen_rs.server.refusal import RefusalError, refusal
from coordgen_rs.server.worker import Worker


class OfJob(NamedTuple):
    """News of one of several jobs.

    Attributes:
        number: The job's number.
        news: A step, or the end.
    """

    number: int
    news: Gain | Answer


Told = News | OfJob


PING_S = 15.0
"""A stream on which nothing comes for so long gets a comment, which clients leave out."""

_LONG_ANSWER = 200
"""Tokens from which on a whole answer is written in a thread: with trees, a megabyte or more."""

_UNHELD = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Answering(Response):
    """The response to a request for an answer.

    Args:
        job: Submitted to the worker.
        worker: Told when the client has gone.
        form: Makes the objects of the answer.
        made: Makes a form once there is news: where the model was not open yet, `form` lacks what
            depends on it.
        held: Closed when all has been sent.

    Attributes:
        is_begun: Whether its head has been sent already.
    """

    def __init__(
        self,
        job: Job,
        worker: Worker,
        form: Form,
        held: ExitStack | None = None,
        made: Callable[[], Form] | None = None,
    ) -> None:
        self.background, self._made, self.is_begun = None, made, False
        self._job, self._worker, self._form = job, worker, form
        self._held = ExitStack() if held is None else held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; see ASGI."""
        watch = asyncio.create_task(self._until_gone(receive))
        try:
            if self._job.asked.is_streamed:
                await self._stream(scope, receive, send)
            else:
                await self._whole(scope, receive, send)
        except OSError:  # how some servers say that the client has gone
            pass
        finally:
            watch.cancel()
            self._withdraw()
            self._held.close()

    def _withdraw(self) -> None:
        """End what is still being answered."""
        self._worker.withdraw(self._job)

    async def _until_gone(self, receive: Receive) -> None:
        message: Message = {"type": ""}
        while message["type"] != "http.disconnect":
            message = await receive()
        self._withdraw()

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        gains: list[Gain] = []
        while isinstance(news := await self._next(), Gain):
            gains.append(news)
        if isinstance(news, Exception):
            await self._refuse(news, scope, receive, send)
        elif isinstance(news, Answer):
            made = partial(self._whole_response, news, gains)
            response = await written(made, len(news.token_ids))
            await response(scope, receive, send)

    def _whole_response(self, answer: Answer, gains: list[Gain]) -> Response:
        return JSONResponse(self._form.whole(answer, self._job.queued_s, gains))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            news = await (self._news(send) if self.is_begun else self._next(PING_S))
        except TimeoutError:  # a proxy would cut a connection on which nothing comes
            await begin(send, self._form)
            await put(send, self._form.ping())
            news = await self._news(send)
        else:
            if news is None:
                return
            if not self.is_begun:
                if isinstance(news, Exception):
                    await self._refuse(news, scope, receive, send)
                    return
                await begin(send, self._form)
        self._form.num_prompt_tokens = self._job.num_prompt_tokens
        for opening in self._opening():
            await self._event(send, opening)
        while True:
            if isinstance(news, Exception):
                await self._event(send, self._form.failure(refusal(news)))
                break
            if news is None:
                return
            for chunk in self._events(news):
                await self._event(send, chunk)
            if self._is_over(news):
                if self._form.ends_with_done:
                    await put(send, "data: [DONE]\n\n")
                break
            news = await self._news(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _news(self, send: Send) -> Told:
        """The next news, and comments as long as there is none."""
        while True:
            try:
                return await self._next(PING_S)
            except TimeoutError:
                await put(send, self._form.ping())

    async def _next(self, within_s: float | None = None) -> Told:
        """The next news; raises TimeoutError as `Job.news` does."""
        news = await self._job.news(within_s)
        if self._made is not None:
            self._form, self._made = self._made(), None
        return news

    def _opening(self) -> list[dict[str, Any]]:
        return self._form.opening()

    def _events(self, news: Told) -> list[dict[str, Any]]:
        """The events that tell a step, or the end."""
        if isinstance(news, Answer):
            return self._form.closing(news, self._job.queued_s)
        return self._form.step(news) if isinstance(news, Gain) else []

    def _is_over(self, news: Told) -> bool:
        return isinstance(news, Answer)

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        await refused(refusal(error), scope)(scope, receive, send)

    async def _event(self, send: Send, event: dict[str, Any]) -> None:
        await put(send, self._form.written(event))


async def written(made: Callable[[], Response], num_tokens: int) -> Response:
    """A whole answer of so many tokens; a long one is written in a thread."""
    return await asyncio.to_thread(made) if num_tokens > _LONG_ANSWER else made()


def refused(error: RefusalError, scope: Mapping[str, Any]) -> JSONResponse:
    """The response that tells an error to who has sent a request of this scope."""
    return JSONResponse(error_json(error, scope), status_code=error.status, headers=error.headers)


async def begin(send: Send, form: Form) -> None:
    """Send the head of a stream."""
    headers = [(b"content-type", form.content_type.encode()), *_UNHELD]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def put(send: Send, text: str) -> None:
    """Send a piece of a stream."""
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
