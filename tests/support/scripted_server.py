"""The server over a model that follows a script, in a process of its own.

    python tests/support/scripted_server.py

The script, a line of JSON on standard input, is a list of `[needle, answer]`: the model says the
answer of the first pair whose needle stands in the prompt, to which what tools have answered
belongs. The server's address is printed; it ends with its standard input.
"""

import asyncio
import json
import socket
import sys
from pathlib import Path

import uvicorn

from coordgen_rs.server.app import make_app
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool
from fake_model import FakeModel

_PIECE = 7
"""Characters of a step."""


class ScriptedModel(FakeModel):
    """Says what the first rule that fits the prompt says."""

    context, ends = 1 << 20, "stop"

    def __init__(self, rules):
        super().__init__(parallel=4)
        self._rules = rules

    def steps_of(self, prompt, options):
        answer = next((said for needle, said in self._rules if needle in prompt), "I do not know.")
        starts = range(0, len(answer), _PIECE)
        pieces = [answer[start : start + _PIECE] for start in starts]
        return [(piece, ("target",) * len(piece)) for piece in pieces]


async def serve(rules):
    """Serve until standard input ends."""
    model = ScriptedModel(rules)
    models = ModelPool([ModelEntry("scripted", Path("scripted"))], lambda _: model, 64)
    models.start()
    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(models, Access())
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving
    models.close()
    models.join()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.stdin.readline())))
