"""The bodies of requests: read within bounds, parsed, and checked.

In: a request. Out: what a check makes of its fields, or a refusal. Long bodies are parsed in
another thread, so that the streams of other clients do not wait for them.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.fields import Fields
from coordgen_rs.server.refusal import RefusalError

MOST_BODY_BYTES = 8 << 20
"""Of a request: far more text than any context holds."""

LONG_BODY_BYTES = 32 << 10
"""What is shorter is parsed sooner than it is handed to a thread: about half a millisecond."""

SLOWEST_BODY_S = 60.0
"""What a client has to send all of it."""

_T = TypeVar("_T")


async def read(request: Request, check: Callable[[Fields], _T]) -> _T:
    """What `check` makes of a request's body.

    Raises:
        RefusalError: The body is too long, too slow, cut short, no JSON object, or `check` says so.
    """
    try:
        async with asyncio.timeout(SLOWEST_BODY_S):
            body = await _body(request)
    except ClientDisconnect as error:
        raise RefusalError("the client went away while it sent the body") from error
    except TimeoutError as error:
        raise RefusalError(
            f"the body did not come within {SLOWEST_BODY_S:g} s",
            status=408,
            headers={"Connection": "close"},
        ) from error

    def checked() -> _T:
        try:
            return check(Fields(parse_json(body, "the body")))
        except JsonTextError as error:
            raise RefusalError(str(error), code="invalid_json") from error

    return await asyncio.to_thread(checked) if len(body) > LONG_BODY_BYTES else checked()


async def _body(request: Request) -> bytes:
    """The bytes of a body.

    Raises:
        RefusalError: There are too many.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            raise RefusalError(
                f"the body is longer than {MOST_BODY_BYTES:,} bytes",
                status=413,
                code="body_too_large",
            )
    return bytes(body)
