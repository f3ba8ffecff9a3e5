"""Errors as clients of a path read them: in the form of OpenAI, Anthropic or Ollama.

In: a refusal, and the scope of the request. Out: an object for JSON.
"""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from coordgen_rs.server.refusal import RefusalError

ANTHROPIC, OLLAMA = "/v1/messages", "/api/"
"""What the paths of a dialect begin with."""

OF_ANTHROPIC = "anthropic-version"
"""A header that only clients of Anthropic's API send."""

_OF_BOTH = "/v1/models"
"""What paths begin with that Anthropic's API has, too."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_json(error: RefusalError, scope: Mapping[str, Any]) -> dict[str, Any]:
    """An error as who has sent a request of this scope reads it."""
    path = scope["path"]
    is_of_both = path.startswith(_OF_BOTH) and OF_ANTHROPIC in Headers(raw=[*scope["headers"]])
    if path.startswith(ANTHROPIC) or is_of_both:
        return anthropic_error(error)
    if path.startswith(OLLAMA):
        return {"error": str(error)}
    return error.to_json()


def anthropic_error(error: RefusalError) -> dict[str, Any]:
    """An error as Anthropic writes it; our own code beside its message, and where clients look."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    told: dict[str, Any] = {
        "type": _ANTHROPIC_TYPES.get(error.status, other),
        "message": str(error),
    }
    if error.code:
        told |= {"code": error.code, "details": {"error_code": error.code}}
    return {"type": "error", "error": told}
