"""`coordgen serve`: a local server in the form of OpenAI's API, and a chat page."""

import argparse

from coordgen_rs.cli.options import access as access_options
from coordgen_rs.cli.options import model as model_options
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.warned import warnings_told
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.opening.options import MOST_PARALLEL

EXAMPLES = """\
Any OpenAI client works with http://127.0.0.1:8080/v1 as its base URL; http://127.0.0.1:8080
is a chat page. By default up to four requests are answered at a time, in the same steps; others
wait. Ctrl-C or SIGTERM ends the server: running answers get --grace seconds. With --prefix-store,
what users ask and are answered stays on disk.

examples:
  coordgen serve bundle
  coordgen serve bundle --port 0 --name smollm2 --metrics
  COORDGEN_API_KEY=secret coordgen serve bundle --host 0.0.0.0
  coordgen serve bundle --host 0.0.0.0 --api-key-file keys
  coordgen serve bundle --prefix-store prefixes --prefix-store-size 20G
"""

_PREFIX_MEMORY = 512_000_000
"""What earlier prompts may take by default, in bytes."""

_OPTIONS = (
    option.path("model BUNDLE").help(shared.BUNDLE_HELP),
    option.word("--host ADDRESS", default="127.0.0.1").help(
        "where to listen; default %(default)s: this machine alone"
    ),
    option.count("--port N", least=0, most=65535, default=8080).help(
        "default %(default)s; 0 takes a free one"
    ),
    option.text("--name NAME", may_be_empty=False).help(
        "the model's name for clients; default: that of its file or directory"
    ),
    option.count("--max-queue N", least=0, default=8).help(
        "most requests of each client that wait; more get status 429; default %(default)s"
    ),
    option.count("--parallel N", least=1, most=MOST_PARALLEL).help(
        "most requests that are answered at a time, in the same steps; default: up to 4, as memory "
        "allows"
    ),
    option.number("--grace SECONDS", least=0, most=3600, default=10).help(
        "what running answers get when the server is told to end; default %(default)s"
    ),
    option.size("--prefix-memory SIZE").help(
        "most memory for what was read of earlier prompts, so that chats can take turns; "
        "default 512M, 0 keeps the last prompt only"
    ),
    option.flag("--metrics").help("counts for Prometheus at /metrics"),
    *access_options.OPTIONS,
)


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(*_OPTIONS)
    model_options.add_arguments(parser)


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
    access = access_options.chosen_access(options)
    place = Place(options.host, options.port, options.max_queue, options.grace)
    remember = access_options.remembers(options)
    given = options.prefix_memory
    prefix_memory = _PREFIX_MEMORY if given is None else given
    model_options.check(options)
    with warnings_told():
        serve(
            lambda: model_options.opened(
                options,
                prefix_memory=prefix_memory if remember else 0,
                remember=remember,
                parallel=options.parallel,
            ),
            place,
            access,
            lambda line: text.tell(f"coordgen: {line}"),
        )
    return 0
