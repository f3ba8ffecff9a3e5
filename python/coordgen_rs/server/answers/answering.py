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

from coordgen_rs.model.answer import Answer, StepDelta
from coordgen_rs.model.stream import Stream
from coordgen_rs.server.answers.dialect import Answered, Dialect, Event
from coordgen_rs.server.answers.reader import LONG_ANSWER, AnswerReader
from coordgen_rs.server.clients import Client
from coordgen_rs.server.refusal import RefusalError, log_unexpected, refusal, refused
from coordgen_rs.server.worker import Admission, Worker

PING_S = 15.0
"""A stream on which nothing comes for so long gets a sign, which clients leave out."""

_Sign = Callable[[], Awaitable[None]]
"""Sends one."""

_T = TypeVar("_T")

_UNHELD = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Prepared(NamedTuple):
    """A request that only waits for its turn.

    Attributes:
        worker: Answers it.
        admission: What the worker has given for it.
        client: Whose turn it takes.
        answered: What is answered, for each choice.
        streams: The answers, none of them begun; one alone where all choices are the same.
    """

    worker: Worker
    admission: Admission
    client: Client
    answered: Sequence[Answered]
    streams: Sequence[Stream]


class Answering(Response):
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
        prepare: Callable[[], Awaitable[Prepared]],
        *,
        is_streamed: bool,
    ) -> None:
        self.background = None
        self._dialect, self._model, self._prepare = dialect, model, prepare
        self._is_streamed = is_streamed

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
        sent = _Sent(send, self._dialect, self._model)
        try:
            if self._is_streamed:
                await self._stream(sent)
            else:
                await (await self._whole())(scope, receive, send)
        except Exception as error:
            told = refusal(error)
            if told.status == 500:
                log_unexpected(error)
            if sent.is_begun:
                await sent.fail(told)
            else:
                await refused(told, scope)(scope, receive, send)

    async def _stream(self, sent: "_Sent") -> None:
        prepared = await _done(self._prepare(), sent.sign)
        readers = [AnswerReader(one.request, at) for at, one in enumerate(prepared.answered)]
        writing = self._dialect.stream(prepared.answered)
        opening = next(writing)
        try:
            async with aclosing(_news(prepared, sent.sign)) as news:
                async for choices, one in news:
                    await sent.put(opening)
                    opening = []
                    for choice in choices:
                        reader = readers[choice]
                        told = reader.read(one) if isinstance(one, StepDelta) else reader.end(*one)
                        await sent.put(writing.send(told))
        except Exception:
            if sent.is_begun:  # by a sign: what comes first comes before the error
                await sent.put(opening)
            raise
        await sent.end()

    async def _whole(self) -> Response:
        prepared = await self._prepare()
        gains = [list[StepDelta]() for _ in prepared.answered]
        answers = dict[int, tuple[Answer, float]]()
        async with aclosing(_news(prepared, None)) as news:
            async for choices, one in news:
                for choice in choices:
                    if isinstance(one, StepDelta):
                        gains[choice].append(one)
                    else:
                        answers[choice] = one

        def written() -> Response:
            ends = [
                AnswerReader(one.request, choice).whole(*answers[choice], gains[choice])
                for choice, one in enumerate(prepared.answered)
            ]
            return JSONResponse(self._dialect.whole(prepared.answered, ends))

        num_tokens = sum(len(answer.token_ids) for answer, _ in answers.values())
        return await asyncio.to_thread(written) if num_tokens > LONG_ANSWER else written()


class _Sent:
    """What is sent of a stream."""

    def __init__(self, send: Send, dialect: Dialect, model: str) -> None:
        self._send, self._dialect, self._model = send, dialect, model
        self.is_begun, self._num_events = False, 0

    async def sign(self) -> None:
        """Send a sign of life."""
        await self._put(self._dialect.ping(self._model))

    async def put(self, events: Sequence[Event]) -> None:
        """Send events."""
        for event in events:
            self._num_events += 1
            await self._put(self._dialect.encoded(event))

    async def fail(self, error: RefusalError) -> None:
        """End the stream by an error."""
        await self.put([self._dialect.failure(error, self._num_events)])
        await self._put("", is_last=True)

    async def end(self) -> None:
        """End the stream."""
        if self._dialect.last:
            await self._put(self._dialect.last)
        await self._put("", is_last=True)

    async def _put(self, text: str, *, is_last: bool = False) -> None:
        if not self.is_begun:
            self.is_begun = True
            headers = [(b"content-type", self._dialect.content_type.encode()), *_UNHELD]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        message = {"type": "http.response.body", "body": text.encode(), "more_body": not is_last}
        await self._send(message)


async def _news(
    prepared: Prepared, sign: _Sign | None
) -> AsyncGenerator[tuple[Sequence[int], StepDelta | tuple[Answer, float]]]:
    """The news of each answer, with the choices that it is; see `Worker.answer`.

    Each answer waits for a turn of its own, so that other clients come in between; and each is read
    by a task, so that a client which reads slowly has its turn no longer than the answer takes.
    """
    everyone, is_each = range(len(prepared.answered)), len(prepared.streams) > 1
    found = asyncio.Queue[tuple[Sequence[int], StepDelta | tuple[Answer, float] | Exception]]()

    async def read(number: int, stream: Stream) -> None:
        choices = [number] if is_each else everyone
        request = prepared.answered[number].request
        answer = prepared.worker.answer(request, stream, prepared.client, prepared.admission)
        try:
            async with aclosing(answer) as news:
                async for one in news:
                    found.put_nowait((choices, one))
        except Exception as error:
            found.put_nowait((choices, error))

    tasks = [asyncio.create_task(read(*one)) for one in enumerate(prepared.streams)]
    try:
        num_left = len(tasks)
        while num_left:
            choices, one = await _next(found, sign)
            if isinstance(one, Exception):
                raise one
            num_left -= not isinstance(one, StepDelta)
            yield choices, one
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(queue: asyncio.Queue[_T], sign: _Sign | None) -> _T:
    """What comes next from a queue; `sign` is sent from time to time, None for none."""
    while queue.empty():
        try:
            async with asyncio.timeout(None if sign is None else PING_S):
                return await queue.get()
        except TimeoutError:
            if sign is not None:
                await sign()
    return queue.get_nowait()


async def _done(awaitable: Awaitable[_T], sign: _Sign) -> _T:
    """What something returns, or raises; `sign` as in `_next`."""
    task, ended = asyncio.ensure_future(awaitable), asyncio.Queue[asyncio.Future[_T]]()
    task.add_done_callback(ended.put_nowait)
    try:
        return (await _next(ended, sign)).result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # what it holds, it holds until then


async def _gone(receive: Receive) -> None:
    """Return when the client has gone; all of the request was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
