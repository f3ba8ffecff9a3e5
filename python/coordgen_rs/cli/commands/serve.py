"""`coordgen serve`: a local server in the form of OpenAI's API, and a chat page."""

import argparse

from coordgen_rs.cli.options import request as request_options
from coordgen_rs.cli.options.access import add_access_arguments, chosen_access, remembers
from coordgen_rs.cli.terminal import text, values
from coordgen_rs.cli.terminal.warned import warnings_told
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install

EXAMPLES = """\
Any OpenAI client works with http://127.0.0.1:8080/v1 as its base URL; http://127.0.0.1:8080
is a chat page. Requests wait for each other. Ctrl-C or SIGTERM ends the server: running answers get
--grace seconds.

examples:
  coordgen serve bundle
  coordgen serve bundle --port 0 --name smollm2 --metrics
  COORDGEN_API_KEY=secret coordgen serve bundle --host 0.0.0.0
  coordgen serve bundle --host 0.0.0.0 --api-key-file keys
"""

_PREFIX_MEMORY = 512_000_000
"""What earlier prompts may take by default, in bytes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "model",
        type=values.path("BUNDLE"),
        metavar="BUNDLE",
        help="from `coordgen export`, or a folder with genai_config.json or genie_config.json",
    )
    _add_place(parser)
    add_access_arguments(parser)
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
        help="most requests of each client that wait; more get status 429; default %(default)s",
    )
    parser.add_argument(
        "--context",
        type=values.count("--context"),
        metavar="N",
        help="most tokens of prompt and answer together; default and most: what the bundle was "
        "made for",
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
        metavar="SIZE",
        help="most memory for what was read of earlier prompts, so that chats can take turns; "
        "default 512M, 0 keeps the last prompt only",
    )
    parser.add_argument("--metrics", action="store_true", help="counts for Prometheus at /metrics")


def run(options: argparse.Namespace) -> int:
    """Serve until the user ends it.

    Raises:
        OptionError: An option would be ignored or is unsafe, or a package is missing.
    """
    try:
        from coordgen_rs.server.serving import Place, serve
    except ModuleNotFoundError as error:
        raise OptionError(
            f"serve needs the package {error.name}: {how_to_install('server')}"
        ) from error
    access = chosen_access(options)
    place = Place(options.host, options.port, options.max_queue, options.grace)
    remember = remembers(options)
    given = options.prefix_memory
    prefix_memory = _PREFIX_MEMORY if given is None else given
    request_options.check_opening(options)
    with warnings_told():
        serve(
            lambda: request_options.opened(
                options,
                context=options.context,
                prefix_memory=prefix_memory if remember else 0,
                remember=remember,
            ),
            place,
            access,
            lambda line: text.tell(f"coordgen: {line}"),
        )
    return 0
