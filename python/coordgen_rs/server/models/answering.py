"""An answer on the wire: one JSON object, or a stream of events.

In: what prepares a request, and the dialect of its client. Out: what ASGI sends. A client that goes
away ends its request, wherever that is. An error before the first event has its own status; after
it, it is an event.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from coordgen_rs.model.answer import StepDelta
from coordgen_rs.model.stream import Stream
from coordgen_rs.server.api_error import error_response, logged_error
from coordgen_rs.server.clients import Client
from coordgen_rs.server.dialects.reader import LONG_ANSWER, AnswerReader, Delta, Ended
from coordgen_rs.server.dialects.request import Request
from coordgen_rs.server.dialects.writing import Dialect, Event
from coordgen_rs.server.models.worker import Admission, Update, Worker

PING_S = 15.0
"""A stream on which nothing comes for so long gets a ping, which clients leave out."""

_T = TypeVar("_T")

_UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class PreparedRequest(NamedTuple):
    """A request that only waits for its turn.

    Attributes:
        worker: Answers it.
        admission: What the worker has given for it.
        client: Whose turn it takes.
        choices: The request for each choice.
        streams: The answers, none of them begun; one alone where all choices are the same.
    """

    worker: Worker
    admission: Admission
    client: Client
    choices: Sequence[Request]
    streams: Sequence[Stream]


class AnswerResponse(Response):
    """The response to a request for an answer.

    Args:
        dialect: Writes the answer.
        model: The model's name.
        prepare: Makes the request ready.
        is_streamed: Whether the answer is sent as it is made.
    """

    def __init__(
        self,
        dialect: Dialect,
        model: str,
        prepare: Callable[[], Awaitable[PreparedRequest]],
        *,
        is_streamed: bool,
    ) -> None:
        self.background = None
        self._dialect, self._model, self._prepare = dialect, model, prepare
        self._is_streamed, self._is_begun, self._num_events = is_streamed, False, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; see ASGI."""
        answering = asyncio.create_task(self._answer(scope, receive, send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            answering.cancel()
            with suppress(asyncio.CancelledError, OSError):  # as some servers say that it has gone
                await answering

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        try:
            if self._is_streamed:
                await self._stream()
            else:
                await (await self._whole())(scope, receive, send)
        except Exception as error:
            told = logged_error(error)
            if self._is_begun:
                await self._put([self._dialect.failure(told, self._num_events)])
                await self._write("", is_last=True)
            else:
                await error_response(told, scope)(scope, receive, send)

    async def _stream(self) -> None:
        prepared = await self._awaited(self._prepare())
        readers = [AnswerReader(one, at) for at, one in enumerate(prepared.choices)]
        writing = self._dialect.stream(prepared.choices)
        opening = next(writing)
        try:
            async with aclosing(self._updates(prepared)) as updates:
                async for choices, update in updates:
                    await self._put(opening)
                    opening = []
                    for at in choices:
                        if isinstance(update, StepDelta):
                            event: Delta | Ended = readers[at].read(update)
                        else:
                            event = readers[at].end(*update)
                        await self._put(writing.send(event))
        except Exception:
            if self._is_begun:  # by a ping: what comes first comes before the error
                await self._put(opening)
            raise
        if self._dialect.last:
            await self._write(self._dialect.last)
        await self._write("", is_last=True)

    async def _whole(self) -> Response:
        prepared = await self._prepare()
        gains = [list[StepDelta]() for _ in prepared.choices]
        answers = {}
        async with aclosing(self._updates(prepared)) as updates:
            async for choices, update in updates:
                for at in choices:
                    if isinstance(update, StepDelta):
                        gains[at].append(update)
                    else:
                        answers[at] = update

        def written() -> Response:
            ends = [
                AnswerReader(one, at).whole(*answers[at], gains[at])
                for at, one in enumerate(prepared.choices)
            ]
            return JSONResponse(self._dialect.whole(prepared.choices, ends))

        num_tokens = sum(len(answer.token_ids) for answer, _ in answers.values())
        return await asyncio.to_thread(written) if num_tokens > LONG_ANSWER else written()

    async def _updates(
        self, prepared: PreparedRequest
    ) -> AsyncGenerator[tuple[Sequence[int], Update]]:
        """What comes of each answer, with the choices that it is; see `Worker.answer`.

        Each answer waits for a turn of its own, so that other clients come in between; and each is
        read by a task, so that a client which reads slowly has its turn no longer than the answer
        takes.
        """
        everyone, is_each = range(len(prepared.choices)), len(prepared.streams) > 1
        found = asyncio.Queue[tuple[Sequence[int], Update | Exception]]()

        async def read(at: int, stream: Stream) -> None:
            worker, _, client, requests, _ = prepared
            choices = [at] if is_each else everyone
            try:
                await worker.answer(
                    requests[at],
                    stream,
                    client,
                    prepared.admission,
                    lambda update: found.put_nowait((choices, update)),
                )
            except Exception as error:
                found.put_nowait((choices, error))

        tasks = [asyncio.create_task(read(*one)) for one in enumerate(prepared.streams)]
        try:
            num_left = len(tasks)
            while num_left:
                waits = found.empty()
                choices, one = await self._awaited(found.get()) if waits else found.get_nowait()
                if isinstance(one, Exception):
                    raise one
                num_left -= not isinstance(one, StepDelta)
                yield choices, one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _awaited(self, awaitable: Awaitable[_T]) -> _T:
        """What something returns, or raises; a stream gets a ping from time to time."""
        task = asyncio.ensure_future(awaitable)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=PING_S if self._is_streamed else None)
                if not task.done():
                    await self._write(self._dialect.ping(self._model))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)  # it holds things until then

    async def _put(self, events: Sequence[Event]) -> None:
        for event in events:
            self._num_events += 1
            await self._write(self._dialect.encoded(event))

    async def _write(self, text: str, *, is_last: bool = False) -> None:
        if not self._is_begun:
            self._is_begun = True
            headers = [(b"content-type", self._dialect.content_type.encode()), *_UNBUFFERED]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        message = {"type": "http.response.body", "body": text.encode(), "more_body": not is_last}
        await self._send(message)


async def _gone(receive: Receive) -> None:
    """Return when the client has gone; all of the request was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
