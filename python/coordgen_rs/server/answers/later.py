"""A stream that begins before its model is open, where how it is answered depends on the model.

In: what makes the response, which may take long. Out: what ASGI sends: comments until there is a
response, then what that sends, or an event that tells why there is none.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordgen_rs.server.answers import answering
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.refusal import RefusalError, refusal


class AnsweringLater(Response):
    """The response to a request for a stream, once it can be made.

    Args:
        make: Makes it; it may raise a RefusalError.
        form: Makes what is sent until then.
    """

    def __init__(self, make: Callable[[], Awaitable[Response]], form: Form) -> None:
        self.background = None
        self._make, self._form = make, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; see ASGI.

        Raises:
            RefusalError: There is no response, and nothing was sent yet.
        """
        making, is_begun = asyncio.ensure_future(self._make()), False
        try:
            while not (await asyncio.wait([making], timeout=answering.PING_S))[0]:
                if not is_begun:
                    await answering.begin(send, self._form)
                is_begun = True
                await answering.put(send, self._form.ping())
            response = await making
        except RefusalError as error:
            if not is_begun:
                raise
            await answering.put(send, self._form.written(self._form.failure(refusal(error))))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        finally:
            making.cancel()
        if isinstance(response, answering.Answering):
            response.is_begun = is_begun
        await response(scope, receive, send)
