"""What a dialect is: the functions that write an answer in its shapes, whole or as a stream."""

import json
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from coordgen_rs.server.answers.reader import Delta, Ended
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.record import Request

Event = dict[str, Any]
"""An object of a stream."""

Writing = Generator[list[Event], Delta | Ended, None]
"""Yields what comes before the first text, then, for each delta and the end, what tells it."""

as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""A value as JSON, without white space."""


class Answered(NamedTuple):
    """What is answered, and by whom.

    Attributes:
        request: What was asked for.
        model: The model's name.
        text_of: The text of a token, for trees.
    """

    request: Request
    model: str
    text_of: Callable[[int], str]


def server_sent(event: Event) -> str:
    """An event as a server-sent one."""
    kind = event.get("type")
    head = f"event: {kind}\n" if kind else ""
    return f"{head}data: {as_json(event)}\n\n"


class Dialect(NamedTuple):
    """How answers are written.

    Attributes:
        stream: Writes the events of a stream.
        whole: Writes an answer as one object.
        failure: Writes an error behind so many events.
        ping: What is sent where nothing else can be, given the model's name: clients leave it out.
        encoded: An event as it is sent.
        content_type: That of a stream.
        last: What a stream ends with.
        streams_by_default: Whether an answer is streamed where the request says nothing.
    """

    stream: Callable[[Answered], Writing]
    whole: Callable[[Answered, Ended], Event]
    failure: Callable[[RefusalError, int], Event] = lambda error, _: error.to_json()
    ping: Callable[[str], str] = lambda _: ": waiting\n\n"
    encoded: Callable[[Event], str] = server_sent
    content_type: str = "text/event-stream; charset=utf-8"
    last: str = ""
    streams_by_default: bool = False
