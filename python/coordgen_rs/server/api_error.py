"""What a client is told that does not get an answer, in the form of its dialect's errors.

In: an error of this package, or what is wrong with a request. Out: a response: a status, and a JSON
object in the form of OpenAI, Anthropic or Ollama.
"""

import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from coordgen_rs.errors import (
    ChatTemplateError,
    CoordgenError,
    EmptyPromptError,
    GrammarError,
    OptionError,
    PromptTooLongError,
    ShapeError,
    TokenOutOfRangeError,
)

_INVALID = "invalid_request_error"
_PATH = re.compile(r"(?<![\w<])(?:/|[A-Za-z]:\\)[\w.~-]+[/\\]")

_OF_REQUEST = (
    *(ChatTemplateError, EmptyPromptError, GrammarError, OptionError, ShapeError),
    TokenOutOfRangeError,
)
"""Errors that the request itself causes: another one would not get them."""


class APIError(Exception):
    """A request is answered with an error.

    Args:
        message: What is wrong, and what to do.
        status: The HTTP status.
        kind: OpenAI's `type`.
        param: The field at fault.
        code: OpenAI's `code`.
        headers: Further HTTP headers.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = _INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.headers = headers or {}

    def to_json(self) -> dict[str, Any]:
        """The error as OpenAI writes it."""
        told = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told}


def as_api_error(error: Exception) -> APIError:
    """What a client is told about an error.

    An error that is not of this package is told by its type alone: its message may hold anything.
    """
    if isinstance(error, APIError):
        return error
    if isinstance(error, PromptTooLongError):
        return APIError(str(error), code="context_length_exceeded", param="messages")
    said = str(error)
    is_of_server = isinstance(error, ChatTemplateError) and names_path(said)
    if isinstance(error, _OF_REQUEST) and not is_of_server:
        return APIError(said)
    if isinstance(error, CoordgenError):
        if names_path(said):
            said = f"the request failed ({type(error).__name__}): the server's log says why"
        return APIError(said, status=500, kind="server_error")
    return APIError(f"internal error: {type(error).__name__}", status=500, kind="server_error")


def names_path(said: str) -> bool:
    """Whether a message names a path of this machine, which is none of a client's."""
    return _PATH.search(said) is not None


def logged_error(error: Exception) -> APIError:
    """What a client is told about an error; what is not told is logged.

    That is where it came from, unless it is of this package: its message may hold a prompt. One of
    this package that names a path is logged as it is.
    """
    told = as_api_error(error)
    if told.status != 500:
        return told
    if isinstance(error, CoordgenError) and names_path(str(error)):
        logging.getLogger(__name__).error("%s: %s", type(error).__name__, error)
    if not isinstance(error, CoordgenError | APIError):
        where = "".join(traceback.format_tb(error.__traceback__))
        logging.getLogger(__name__).error("internal error: %s\n%s", type(error).__name__, where)
    return told


class UnavailableError(APIError):
    """The server cannot answer now: it loads the model, or is going down.

    Args:
        message: Tells which of these.
        code: Same as in `APIError`.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        headers = {"Retry-After": "2"}
        super().__init__(message, status=503, kind="unavailable_error", code=code, headers=headers)


class TooLongError(APIError):
    """A text does not fit into the model's context.

    Args:
        what: Names the text.
        num: How many tokens it has, or at least.
        context: How many fit.
        field: Where it comes from.
    """

    def __init__(self, what: str, num: str, context: int, field: str) -> None:
        said = f"{what} has {num} tokens, the model's context {context}"
        super().__init__(said, param=field, code="context_length_exceeded")


class ConstraintError(APIError):
    """What an answer is to be held to cannot be followed.

    Args:
        error: Says why.
        field: Asks for it; None where that is not known.
    """

    def __init__(self, error: Exception, field: str | None) -> None:
        said = str(error)
        if "NoExtension" in said:  # llguidance's word
            said = "it cannot be followed to an end: it comes to a place where no text may follow"
        said = said if field is None else f"{field}: {said}"
        super().__init__(said, param=field, code="invalid_value")


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


def error_json(error: APIError, scope: Mapping[str, Any]) -> dict[str, Any]:
    """An error as who has sent a request of this scope reads it."""
    path = scope["path"]
    is_of_both = path.startswith(_OF_BOTH) and OF_ANTHROPIC in Headers(raw=[*scope["headers"]])
    if path.startswith(ANTHROPIC) or is_of_both:
        return anthropic_error(error)
    if path.startswith(OLLAMA):
        return {"error": str(error)}
    return error.to_json()


def anthropic_error(error: APIError) -> dict[str, Any]:
    """An error as Anthropic writes it; our own code beside its message, and where clients look."""
    other = _INVALID if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, other)
    told: dict[str, Any] = {"type": kind, "message": str(error)}
    if error.code:
        told |= {"code": error.code, "details": {"error_code": error.code}}
    return {"type": "error", "error": told}


def error_response(error: APIError, scope: Mapping[str, Any]) -> JSONResponse:
    """The response that tells an error to who has sent a request of this scope."""
    return JSONResponse(error_json(error, scope), status_code=error.status, headers=error.headers)
