"""The body of a request: read within bounds, and parsed.

In: a request. Out: its fields, or a refusal. What is longer than any prompt that fits is refused by
its head. Long bodies are parsed in another thread, so that the streams of other clients do not wait
for them.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.fields import Fields
from coordgen_rs.text.tokenizer import Tokenizer

MOST_BODY_BYTES = 8 << 20
"""The longest body of any request, whatever the model."""

MOST_VALUES = 200_000
"""Values of lists and objects: each takes far more memory than it has letters."""

LONG_BODY_BYTES = 32 << 10
"""What is shorter is parsed sooner than it is handed to a thread: about half a millisecond."""

SLOWEST_BODY_S = 60.0
"""Seconds that a client has to send a whole body."""

_BYTES_BESIDE = 512 << 10
"""What a body may hold beside its prompt: tools, a schema, settings."""
_ESCAPED = 4
"""How many times as long a text may be that is written as JSON: three times where each letter is
one of `\\u00e4`, and some more for an expected answer beside it."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def most_body_bytes(tokenizer: Tokenizer, context: int) -> int:
    """How long a body may be for a model of so many tokens."""
    if tokenizer.bound is None:
        return MOST_BODY_BYTES
    longest = context * tokenizer.bound.bytes_per_token
    return min(MOST_BODY_BYTES, _BYTES_BESIDE + _ESCAPED * longest)


async def read(
    request: Request,
    most_bytes: int,
    in_thread: Callable[[Callable[[], Fields]], Awaitable[Fields]],
) -> Fields:
    """The fields of a request's body.

    Args:
        request: Nothing of its body has been read.
        most_bytes: A longer body is refused.
        in_thread: Runs what takes long.

    Raises:
        RefusalError: The body is compressed, too long, too slow, cut short, or no JSON object.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() not in ("", "identity"):
        raise RefusalError(
            "the Content-Encoding of a body has to be identity: send it without compression",
            status=415,
            param="Content-Encoding",
            code="unsupported_encoding",
            headers={"Accept-Encoding": "identity"},
        )
    try:
        async with asyncio.timeout(SLOWEST_BODY_S):
            body = await _body(request, most_bytes)
    except ClientDisconnect as error:
        raise RefusalError("the client went away while it sent the body") from error
    except TimeoutError as error:
        raise RefusalError(
            f"the body did not come within {SLOWEST_BODY_S:g} s",
            status=408,
            headers={"Connection": "close"},
        ) from error

    if len(body) > LONG_BODY_BYTES:
        return await in_thread(lambda: _parsed(body))
    return _parsed(body)


def _parsed(body: bytes) -> Fields:
    _check_num_values(body)
    try:
        return Fields(parse_json(body, "the body"))
    except JsonTextError as error:
        raise RefusalError(str(error), code="invalid_json") from error


async def _body(request: Request, most_bytes: int) -> bytes:
    """The bytes of a body.

    Raises:
        RefusalError: There are too many; where its head says so, none are read.
    """
    said = request.headers.get("content-length", "0")
    body, headers = bytearray(), dict[str, str]()
    if said.isdecimal() and int(said) <= most_bytes:
        async for piece in request.stream():
            body += piece
            if len(body) > most_bytes:
                headers = {"Connection": "close"}  # how much more there is, nobody knows
                break
        else:
            return bytes(body)
    raise RefusalError(
        f"the body is longer than {most_bytes:,} bytes, the most that this path takes",
        status=413,
        code="body_too_large",
        headers=headers,
    )


def _check_num_values(body: bytes) -> None:
    """Refuse what would become far more objects than it has bytes.

    Raises:
        RefusalError: There are too many lists, objects and values in them.
    """
    if _num_values(body) > MOST_VALUES and _num_values(_STRING.sub(b"", body)) > MOST_VALUES:
        raise RefusalError(
            f"the body has more than {MOST_VALUES:,} values in lists and objects",
            status=413,
            code="body_too_large",
        )


def _num_values(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")
