"""One request to a server: its events, and when each of them came.

In: a server's address and a JSON body. Out: events as JSON objects, with the clock of this process.
Servers are on this machine, so no proxy is asked.
"""

import http.client
import json
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from live.llama_build import ProgramError

_EVENT = b"data: "
_DONE = b"[DONE]"


class Reply(NamedTuple):
    """What came of a request.

    Attributes:
        tokens: All tokens of the answer.
        arrivals: `(seconds, tokens)` of each event that brought some, by `time.perf_counter`.
        begun: When the request was sent, by the same clock.
        num_decoded: How many of the tokens `steps` brought; a server may take the first one from
            reading the prompt.
        steps: Runs of the model for them.
        num_read: Tokens of the prompt that the server computed.
    """

    tokens: list[int]
    arrivals: list[tuple[float, int]]
    begun: float
    num_decoded: int = 0
    steps: int = 0
    num_read: int = 0

    @property
    def first_s(self):
        """Seconds until the first token."""
        return self.arrivals[0][0] - self.begun

    @property
    def whole_s(self):
        """Seconds until the last."""
        return self.arrivals[-1][0] - self.begun


def events(url, path, body, headers, limit_s):
    """Each event of a stream, and when it came; the connection is closed behind them.

    Args:
        url: The server's address.
        path: Where to ask.
        body: What to ask, as JSON types.
        headers: Further headers.
        limit_s: Seconds that may pass without a byte.

    Raises:
        ProgramError: The server refuses, tells an error, or the stream breaks off.
    """
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=limit_s)
    try:
        content = json.dumps(body).encode()
        connection.request("POST", path, content, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        if response.status != 200:
            said = response.read().decode(errors="replace")
            raise ProgramError(f"the server refuses {path} with {response.status}: {said}")
        for line in response:
            if not line.startswith(_EVENT) or (data := line[len(_EVENT) :].strip()) == _DONE:
                continue
            event = json.loads(data)
            if "error" in event:
                raise ProgramError(f"the server tells an error: {event['error']}")
            yield time.perf_counter(), event
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ProgramError(f"{path} broke off: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
