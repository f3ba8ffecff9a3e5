"""Who may ask: the key, the host that is asked for, and the page that a browser is on.

In: keys as an administrator gives them; requests, before anything of them is read. Out: the same,
or an error. A web page whose name was made to point at this machine (DNS rebinding) asks for its
own name as host, so only names that are known are served; a page elsewhere names itself as origin,
and is refused. Keys without a name get one of their hash, so that a key is never kept or shown.
"""

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordgen_rs.errors import OptionError
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.errors.json_text import JsonTextError, read_bytes
from coordgen_rs.server.api_error import APIError, error_response, logged_error
from coordgen_rs.server.clients import KEY_NAME, Client, client_of
from coordgen_rs.server.dialects.fields import MOST_BODY_BYTES

_MOST_FILE_BYTES = 1 << 20


class ApiKey(NamedTuple):
    """A key that clients send.

    Attributes:
        name: The name of its owner.
        secret: What they send.
    """

    name: str
    secret: bytes

    def __repr__(self) -> str:
        return f"ApiKey({self.name!r})"


def api_key(secret: str, name: str = "") -> ApiKey:
    """A key as a user gives it.

    Raises:
        OptionError: It cannot be sent in a header.
    """
    if not (secret and secret.isascii() and secret.isprintable() and " " not in secret):
        raise OptionError("the API key must be printable ASCII without spaces: it is a header")
    return ApiKey(
        name or f"key-{hashlib.sha256(secret.encode()).hexdigest()[:12]}", secret.encode()
    )


def read_keys(path: Path) -> list[ApiKey]:
    """The keys of a file: one a line, behind its name or alone; `#` begins a comment line.

    Raises:
        OptionError: The file cannot be read, or a line is none of these.
    """
    try:
        lines = read_bytes(path, most_bytes=_MOST_FILE_BYTES).decode().splitlines()
    except (OSError, JsonTextError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise OptionError(f"--api-key-file {path} cannot be read: {said}") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise OptionError(f"{path}, line {number}: expected a key, or a name and a key")
        try:
            found.append(api_key(words[-1], words[0] if len(words) == 2 else ""))
        except OptionError as error:
            raise OptionError(f"{path}, line {number}: {error}") from error
    if not found:
        raise OptionError(f"--api-key-file {path} holds no key")
    return found


def checked_keys(keys: Iterable[ApiKey]) -> tuple[ApiKey, ...]:
    """Keys that all differ; those of one name are one client's.

    Raises:
        OptionError: One is given twice.
    """
    found = tuple(keys)
    secrets = [key.secret for key in found]
    for index, key in enumerate(found):
        if key.secret in secrets[:index]:
            raise OptionError(f"the API key of {key.name} is given twice")
    return found


@dataclass(frozen=True)
class Access:
    """Who may ask, and for what.

    Attributes:
        keys: The API keys; none asks for none.
        namespace_by_key: Whether each name of a key has a namespace of its own.
        namespace: The prefix of those namespaces.
        hosts: Names of this server, besides localhost and IP addresses.
        origins: Origins of other web pages that may ask.
        with_metrics: Whether there is `/metrics`.
    """

    keys: tuple[ApiKey, ...] = ()
    namespace_by_key: bool = False
    namespace: str = DEFAULT_NAMESPACE
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    with_metrics: bool = False


PUBLIC = ("/", "/health", "/v1/health")
"""Paths that need no key: a page that has nothing to tell, and whether the server is up."""


MOST_HEAD_BYTES = 16 << 10
"""The longest head of a request: its line and its headers."""

REFUSED_AFTER_S = 0.1
"""Who asks again at once, or tries keys, is not served sooner, and takes less time from others."""


_HELD = "coordgen.held"


def held(scope: Scope) -> ExitStack:
    """What a request holds until it has ended."""
    stack: ExitStack = scope[_HELD]
    return stack


class Guard:
    """Lets requests through to an application.

    Args:
        app: The application.
        access: Who may ask.
        slot: Holds a request with a body from before it is read; it may refuse.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        slot: Callable[[Client, str], AbstractContextManager[None]],
    ) -> None:
        self._app, self._keys, self._slot = app, access.keys, slot
        self._hosts = frozenset(host.lower() for host in access.hosts)
        self._origins = frozenset(access.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on; see ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _in_origin_form(scope)
        is_begun, headers = False, Headers(scope=scope)
        said = headers.get("content-length", "0")
        is_long = len(said) > 9 or not said.isdecimal() or int(said) > MOST_BODY_BYTES

        async def sent(message: Message) -> None:
            nonlocal is_begun
            if not is_begun and is_long:  # such a body is not heard to its end
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            is_begun = True
            await send(message)

        try:
            _check_head(scope, headers)
            scope[KEY_NAME] = self._check(headers, scope["path"], scope["method"])
            with ExitStack() as holding:
                scope[_HELD] = holding
                if scope["method"] == "POST":
                    holding.enter_context(self._slot(client_of(scope), scope["path"]))
                await self._app(scope, receive, sent)
        except Exception as error:
            told = logged_error(error)
            if not is_begun:
                await asyncio.sleep(REFUSED_AFTER_S)
                if (origin := headers.get("origin")) in self._origins:  # so that a page reads why
                    told.headers |= {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
                await error_response(told, scope)(scope, receive, sent)

    def _check(self, headers: Headers, path: str, method: str) -> str | None:
        """Check where a request comes from, and return the name behind its key.

        Raises:
            APIError: It may not be answered.
        """
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if not self._is_known(host):
            raise APIError(
                "the Host of the request is not a name of this server: --allow-host adds one",
                status=403,
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        is_own = origin in (f"http://{host}", f"https://{host}")
        if origin is not None and not is_own and origin not in self._origins:
            raise APIError(
                "pages of this origin may not use the server: --allow-origin lets them",
                status=403,
                code="origin_not_allowed",
            )
        if not self._keys or path in PUBLIC or method == "OPTIONS":
            return None
        return self._checked_key(headers).name

    def _is_known(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name = (parts.hostname or "").rstrip(".")
        except ValueError:
            return False
        if parts.netloc != host or "@" in host:  # more than a name and a port
            return False
        if name == "localhost" or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _checked_key(self, headers: Headers) -> ApiKey:
        """The key that a request was sent with.

        Raises:
            APIError: There is none, or no known one, or headers disagree.
        """
        sent = {key.strip() for key in headers.getlist("x-api-key")}
        for authorization in headers.getlist("authorization"):
            scheme, _, given = authorization.partition(" ")
            sent.add(given.strip() if scheme.lower() == "bearer" else "")
        given = sent.pop() if len(sent) == 1 else ""
        said = given.encode("latin-1", "replace")
        found = [key for key in self._keys if hmac.compare_digest(key.secret, said)]  # all of them
        if not found:
            raise APIError(
                "the API key is missing or wrong: send Authorization: Bearer KEY, or x-api-key: "
                "KEY",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found[0]


def _in_origin_form(scope: Scope) -> Scope:
    """A request whose line names the whole URL, as proxies' do, as one that names the path alone.

    The host of the URL is the one that is asked for, whatever the header says (RFC 9112, 3.2.2).
    """
    scheme, mark, rest = scope.get("raw_path", b"").partition(b"://")
    if not mark or scheme.lower() not in (b"http", b"https"):
        return scope
    host, _, path = rest.partition(b"/")
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {
        **scope,
        "path": unquote(f"/{path.decode('latin-1')}"),
        "raw_path": b"/" + path,
        "headers": [(b"host", host), *others],
    }


def _check_head(scope: Scope, headers: Headers) -> None:
    """Check the length of a head that was read whole, as short ones and those on a fast line are.

    Raises:
        APIError: It is.
    """
    line = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    if line + sum(len(name) + len(value) + 4 for name, value in headers.raw) > MOST_HEAD_BYTES:
        raise APIError(
            f"the head of the request is longer than {MOST_HEAD_BYTES:,} bytes",
            status=431,
            code="head_too_large",
            headers={"Connection": "close"},
        )
