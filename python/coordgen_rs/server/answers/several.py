"""Several answers to one request: one object with all choices, or one stream in which they mix.

In: the news of a request's jobs. Out: what ASGI sends. Each choice has its figures beside its text;
the prompt counts once. An error of one choice is the request's: no client could tell it from a
choice that ended, so the others are ended, too.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.server.answers.answering import Answering, OfJob, Told, written
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.jobs import Jobs
from coordgen_rs.server.worker import Worker

_FIGURES = ("timings", "metrics", "coordgen")


class AnsweringSeveral(Answering):
    """The response to a request for several answers.

    Args:
        jobs: Submitted to the worker.
        worker: Told when the client has gone.
        forms: Make the objects of the choices, one each.
        held: Closed when all has been sent.
        with_usage: Whether a stream ends with a chunk of usage.
    """

    def __init__(
        self,
        jobs: Jobs,
        worker: Worker,
        forms: Sequence[Form],
        held: ExitStack,
        *,
        with_usage: bool,
    ) -> None:
        super().__init__(jobs.all[0], worker, forms[0], held)
        for form in forms:
            form.head = forms[0].head
        self._jobs, self._forms, self._with_usage = jobs, forms, with_usage
        self._answers: dict[int, Answer] = {}
        self._usages: dict[int, dict[str, Any]] = {}

    def _withdraw(self) -> None:
        for job in self._jobs.all:
            self._worker.withdraw(job)

    async def _next(self, within_s: float | None = None) -> Told:
        number, news = await self._jobs.news(within_s)
        return news if news is None or isinstance(news, Exception) else OfJob(number, news)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        gains: dict[int, list[Gain]] = {number: [] for number in range(len(self._jobs.all))}
        while len(self._answers) < len(self._jobs.all):
            told = await self._next()
            if isinstance(told, Exception):
                await self._refuse(told, scope, receive, send)
            if not isinstance(told, OfJob):
                return
            number, news = told
            if isinstance(news, Answer):
                self._answers[number] = news
            else:
                gains[number].append(news)
        num_tokens = sum(len(answer.token_ids) for answer in self._answers.values())
        made = partial(self._object, gains)
        await (await written(made, num_tokens))(scope, receive, send)

    def _object(self, gains: dict[int, list[Gain]]) -> JSONResponse:
        wholes = [
            (choice, self._forms[choice].whole(self._answers[number], job.queued_s, gains[number]))
            for number, job in enumerate(self._jobs.all)
            for choice in self._jobs.choices[number]
        ]
        wholes.sort(key=lambda found: found[0])
        usages = [whole["usage"] for _, whole in wholes]
        choices = [_beside_text(whole)["choices"][0] for _, whole in wholes]
        return JSONResponse(wholes[0][1] | {"choices": choices, "usage": summed(usages)})

    def _opening(self) -> list[dict[str, Any]]:
        return [chunk for form in self._forms for chunk in form.opening()]

    def _events(self, news: Told) -> list[dict[str, Any]]:
        if not isinstance(news, OfJob):
            return []
        number, told = news
        found = []
        for choice in self._jobs.choices[number]:
            form = self._forms[choice]
            if isinstance(told, Answer):
                self._answers[number] = told
                found += form.ending(told, self._jobs.all[number].queued_s)
                self._usages[choice] = form.usage(told)
            else:
                found += form.step(told)
        chunks = [_beside_text(chunk) for chunk in found]
        if self._with_usage and self._is_over(news):
            usages = [self._usages[choice] for choice in sorted(self._usages)]
            chunks.append(self._forms[0].used(summed(usages)))
        return chunks

    def _is_over(self, news: Told) -> bool:
        return len(self._answers) == len(self._jobs.all)


def summed(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The usage of several answers to one prompt, which counts once."""
    first = usages[0]
    num_new = sum(usage["completion_tokens"] for usage in usages)
    details = Counter[str]()
    for usage in usages:
        details.update(usage["completion_tokens_details"])
    return first | {
        "completion_tokens": num_new,
        "total_tokens": first["prompt_tokens"] + num_new,
        "completion_tokens_details": {
            name: details[name] for name in first["completion_tokens_details"]
        },
    }


def _beside_text(chunk: dict[str, Any]) -> dict[str, Any]:
    """An object or a chunk whose figures stand in its choice: each choice has its own."""
    figures = {name: chunk.pop(name) for name in _FIGURES if name in chunk}
    if figures:
        chunk["choices"][0] |= figures
    return chunk
