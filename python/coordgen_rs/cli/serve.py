"""`coordgen serve`: a local server in the form of OpenAI's API, and a chat page."""

import argparse
import os

from coordgen_rs.cli import request_options, text, values
from coordgen_rs.cli.warned import warnings_told
from coordgen_rs.errors import OptionError
from coordgen_rs.extras import how_to_install

ABOUT = "serve a model to OpenAI clients and browsers on this machine"
EXAMPLES = """\
Any OpenAI client works with http://127.0.0.1:8080/v1 as its base URL; http://127.0.0.1:8080
is a chat page. Requests wait for each other. Ctrl-C or SIGTERM ends the server: running answers get
--grace seconds.

examples:
  coordgen serve bundle
  coordgen serve bundle --port 0 --name smollm2 --metrics
  COORDGEN_API_KEY=secret coordgen serve bundle --host 0.0.0.0
"""

_KEY = "COORDGEN_API_KEY"
_OF_OTHERS = ("earlier-requests", "sam-earlier-requests")
"""Sources that a method leaves out where it may not remember."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "model",
        type=values.path("BUNDLE"),
        metavar="BUNDLE",
        help="from `coordgen export`, or a folder with genai_config.json",
    )
    _add_place(parser)
    _add_access(parser)
    request_options.add_model_arguments(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen; default %(default)s: this machine alone",
    )
    parser.add_argument(
        "--port",
        type=values.count("--port", least=0, most=65535),
        default=8080,
        metavar="N",
        help="default %(default)s; 0 takes a free one",
    )
    parser.add_argument(
        "--name",
        type=values.text("--name", may_be_empty=False),
        metavar="NAME",
        help="the model's name for clients; default: the name of its directory",
    )
    parser.add_argument(
        "--max-queue",
        type=values.count("--max-queue", least=0),
        default=8,
        metavar="N",
        help="most requests that wait; more get status 429; default %(default)s",
    )
    parser.add_argument(
        "--grace",
        type=values.number("--grace", least=0, most=3600),
        default=10,
        metavar="SECONDS",
        help="what running answers get when the server is told to end; default %(default)s",
    )
    parser.add_argument(
        "--prefix-memory",
        type=values.size("--prefix-memory"),
        default=512_000_000,
        metavar="SIZE",
        help="most memory for what was read of earlier prompts, so that chats can take turns; "
        "default 512M, 0 keeps the last prompt only",
    )
    parser.add_argument("--metrics", action="store_true", help="counts for Prometheus at /metrics")


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key",
        type=values.text("--api-key", may_be_empty=False),
        metavar="KEY",
        help=f"clients must send it; better given as {_KEY}: others see command lines",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="serve another address than this machine's own without a key",
    )
    parser.add_argument(
        "--share-requests",
        action="store_true",
        help="on another address: let answers draft from requests of other clients, in memory and "
        "in --history, which shows in how they come",
    )
    parser.add_argument(
        "--allow-host",
        type=values.text("--allow-host", may_be_empty=False),
        action="append",
        default=[],
        metavar="NAME",
        help="a name of this server, beside localhost and IP addresses; can be repeated",
    )
    parser.add_argument(
        "--allow-origin",
        type=values.text("--allow-origin", may_be_empty=False),
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages from elsewhere use the server, e.g. https://chat.example; can be "
        "repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until the user ends it.

    Raises:
        OptionError: An option would be ignored or is unsafe, or a package is missing.
    """
    try:
        from coordgen_rs.server.app import Access
        from coordgen_rs.server.serving import Place, is_loopback, serve
    except ModuleNotFoundError as error:
        raise OptionError(
            f"serve needs the package {error.name}: {how_to_install('server')}"
        ) from error
    key = options.api_key or os.environ.get(_KEY) or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise OptionError("the API key must be printable ASCII without spaces: it is a header")
    is_shared = is_loopback(options.host) or options.share_requests
    if not is_loopback(options.host):
        _check_remote(options, key)
    access = Access(
        options.name or options.model.resolve().name,
        key,
        tuple(options.allow_host),
        tuple(options.allow_origin),
        options.metrics,
    )
    place = Place(options.host, options.port, options.max_queue, options.grace)
    request_options.check_opening(options)
    with warnings_told():
        serve(
            lambda: request_options.opened(
                options, prefix_memory=options.prefix_memory, remember=is_shared
            ),
            place,
            access,
            lambda line: text.tell(f"coordgen: {line}"),
        )
    return 0


def _check_remote(options: argparse.Namespace, key: str | None) -> None:
    """Check that others may be let in.

    Raises:
        OptionError: They are not kept apart from each other or from strangers.
    """
    if key is None and not options.insecure:
        raise OptionError(
            f"--host {options.host} can be reached from elsewhere: set {_KEY}, or give --insecure"
        )
    if options.history is not None and not options.share_requests:
        raise OptionError(
            "--history lets each client's answers draft from those of all others, which answers "
            f"show: with --host {options.host}, give --share-requests to allow that"
        )
    shared = [source for source in options.sources or () if source in _OF_OTHERS]
    if shared and not options.share_requests:
        raise OptionError(
            f"--sources {shared[0]} drafts from the requests of all clients, which answers show: "
            f"with --host {options.host}, give --share-requests to allow that"
        )
