"""Errors as clients of a path read them: in the form of OpenAI, Anthropic or Ollama.

In: a refusal, and the path that was asked. Out: an object for JSON.
"""

from typing import Any

from coordgen_rs.server.refusal import RefusalError

ANTHROPIC, OLLAMA = "/v1/messages", "/api/"
"""What the paths of a dialect begin with."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_json(error: RefusalError, path: str) -> dict[str, Any]:
    """An error as who asks a path reads it."""
    if path.startswith(ANTHROPIC):
        return anthropic_error(error)
    if path.startswith(OLLAMA):
        return {"error": str(error)}
    return error.to_json()


def anthropic_error(error: RefusalError) -> dict[str, Any]:
    """An error as Anthropic writes it; our own code beside its message."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    told = {"type": _ANTHROPIC_TYPES.get(error.status, other), "message": str(error)}
    return {"type": "error", "error": told | ({"code": error.code} if error.code else {})}
