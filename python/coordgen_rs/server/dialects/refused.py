"""Paths of other servers that this one does not have, each refused by name and reason.

In: nothing. Out: routes that answer with status 501, in the form of their dialect.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordgen_rs.server.refusal import RefusalError

_NO_EMBEDDINGS = "the server gives no embeddings: its models answer with text"
_NO_FILES = "the server does not change its models: give others on its command line"

_WHY = {
    "/v1/embeddings": _NO_EMBEDDINGS,
    "/api/embed": _NO_EMBEDDINGS,
    "/api/embeddings": _NO_EMBEDDINGS,
    "/api/pull": _NO_FILES,
    "/api/push": _NO_FILES,
    "/api/create": _NO_FILES,
    "/api/copy": _NO_FILES,
    "/api/delete": _NO_FILES,
    "/api/blobs/{digest}": _NO_FILES,
    "/v1/messages/batches": "the server takes requests one by one, not in batches",
}


def refused_routes() -> list[Route]:
    """The routes of all these paths."""
    return [Route(path, _refuse, methods=["GET", "POST", "DELETE"]) for path in _WHY]


async def _refuse(request: Request) -> Response:
    path = request.scope["path"]
    why = _WHY.get(path, _NO_FILES)
    raise RefusalError(f"{path} is not supported: {why}", status=501, code="unsupported_path")
