"""Who may ask a server, and what requests of one client tell those of another.

In: options of `coordgen serve`. Out: an `Access`, and whether anything is remembered. Which keys
there are is checked here; what a request brings, in the server.
"""

import argparse
import os
import re
from typing import TYPE_CHECKING

from coordgen_rs.cli.options import option
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from coordgen_rs.server.guard import Access

_KEY = "COORDGEN_API_KEY"
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_REMEMBERING = ("earlier-requests", "sam-earlier-requests")
"""Sources that are nothing but what earlier requests have left."""
_KEEPING = ("history", "prefix_memory", "prefix_store")


OPTIONS = (
    option.text("--api-key KEY", may_be_empty=False, action="append", default=[]).help(
        f"clients must send it; can be repeated; better given as {_KEY} or in a file: others "
        "see command lines"
    ),
    option.path("--api-key-file FILE").help(
        "keys, one a line, each alone or behind a name and a space"
    ),
    option.choice("--namespace-by", ["key", "none"], default="key").help(
        "key (default): answers draft from, and reuse, earlier requests of the same key only; "
        "none: of all clients, on this machine's own addresses only"
    ),
    option.flag("--insecure").help(
        "serve another address than this machine's own without a key; nothing is remembered "
        "from one request to the next then"
    ),
    option.text("--allow-host NAME", may_be_empty=False, action="append", default=[]).help(
        "a name of this server, beside localhost and IP addresses; can be repeated"
    ),
    option.text("--allow-origin ORIGIN", may_be_empty=False, action="append", default=[]).help(
        "let web pages from elsewhere use the server, e.g. https://chat.example; can be repeated"
    ),
)


def chosen_access(options: argparse.Namespace) -> "Access":
    """Who may ask.

    Raises:
        OptionError: A key cannot be used, or strangers would be let in, or meet each other.
    """
    from coordgen_rs.server.guard import Access, api_key, checked_keys, read_keys
    from coordgen_rs.server.serving import is_loopback

    found = [api_key(secret) for secret in options.api_key]
    if options.api_key_file is not None:
        found += read_keys(options.api_key_file)
    if not found and os.environ.get(_KEY):
        found = [api_key(os.environ[_KEY])]
    keys = checked_keys(found)
    has_several = len({key.name for key in keys}) > 1
    if not is_loopback(options.host):
        if not keys and not options.insecure:
            raise OptionError(
                f"--host {options.host} can be reached from elsewhere: set {_KEY}, or give "
                "--insecure"
            )
        if not keys:
            _check_forgetful(options)
        if has_several and options.namespace_by == "none":
            raise OptionError(
                "--namespace-by none lets answers of one key draft from those of others, which "
                f"shows in how they come: with --host {options.host} it cannot be"
            )
    return Access(
        keys=keys,
        namespace_by_key=has_several and options.namespace_by == "key",
        namespace=options.namespace or DEFAULT_NAMESPACE,
        hosts=tuple(map(_host, options.allow_host)),
        origins=tuple(map(_origin, options.allow_origin)),
        with_metrics=options.metrics,
    )


def _host(given: str) -> str:
    """A name of the server as requests have it.

    Raises:
        OptionError: It is none.
    """
    told = "one name without scheme and port, such as chat.example"
    return _matching("--allow-host", given, given.lower().removesuffix("."), _HOST, told)


def _origin(given: str) -> str:
    """An origin of pages as browsers send it; `null` is that of files.

    Raises:
        OptionError: It is none.
    """
    told = "a scheme and a host, such as https://chat.example or http://localhost:3000, and no path"
    return _matching("--allow-origin", given, given.lower(), _ORIGIN, told)


def _matching(option: str, given: str, found: str, pattern: re.Pattern[str], told: str) -> str:
    if not pattern.fullmatch(found):
        raise OptionError(
            f"{option} is {arguments.shown(given)}, but must be {told}: there are no patterns"
        )
    return found


def remembers(options: argparse.Namespace) -> bool:
    """Whether requests may draft from earlier ones of the same client: where clients are known."""
    from coordgen_rs.server.serving import is_loopback

    has_key = bool(options.api_key or options.api_key_file or os.environ.get(_KEY))
    return has_key or is_loopback(options.host)


def _check_forgetful(options: argparse.Namespace) -> None:
    """Check that nothing is asked for that remembers.

    Raises:
        OptionError: Something is.
    """
    remembering = [f"sources {name}" for name in options.sources or () if name in _REMEMBERING]
    remembering += [name for name in _KEEPING if getattr(options, name)]
    if remembering:
        raise OptionError(
            f"--{remembering[0].replace('_', '-')} would let requests of strangers show in others' "
            f"answers: with --host {options.host} and no key, clients cannot be told apart"
        )
