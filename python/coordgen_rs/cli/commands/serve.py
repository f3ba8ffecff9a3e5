"""`coordgen serve`: a local server in the form of OpenAI's API, and a chat page."""

import argparse
import os

from coordgen_rs.cli.exit_codes import DONE, INTERRUPTED
from coordgen_rs.cli.options import access as access_options
from coordgen_rs.cli.options import model as model_options
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.loading.directory import check_path
from coordgen_rs.loading.options import OPEN_OPTIONS
from coordgen_rs.model import Model
from coordgen_rs.runtime.machine import memory_bytes

EXAMPLES = """\
Any OpenAI client works with http://127.0.0.1:8080/v1 as its base URL; http://127.0.0.1:8080
is a chat page. By default up to four requests are answered at a time, in the same steps; others
wait. Ctrl-C or SIGTERM ends the server: running answers get --grace seconds; a second one stops
it at once, with exit code 130. With --prefix-store, what users ask and are answered stays on disk.

examples:
  coordgen serve bundle
  coordgen serve bundle --port 0 --name smollm2 --metrics
  COORDGEN_API_KEY=secret coordgen serve bundle --host 0.0.0.0
  coordgen serve bundle --host 0.0.0.0 --api-key-file keys
  coordgen serve small.gguf large.gguf --models-dir models --memory-limit 8G
  coordgen serve bundle --prefix-store prefixes --prefix-store-size 20G
"""

_PREFIX_MEMORY, _SHARE_OF_MEMORY = 512_000_000, 8
"""What earlier prompts may take by default: bytes, or such a part of memory where that is less."""

_USUAL = (
    option.path("model BUNDLE", nargs="*").help(
        f"{shared.BUNDLE_HELP}; of several, each is opened when a request first names it"
    ),
    option.path("--models-dir DIR").help(
        "offer every bundle and GGUF file in it, too, each by its name"
    ),
    option.word("--host ADDRESS", default="127.0.0.1").help(
        "where to listen; default %(default)s: this machine alone"
    ),
    option.count("--port N", least=0, most=65535, default=8080).help(
        "default %(default)s; 0 takes a free one"
    ),
    option.text("--name NAME", may_be_empty=False).help(
        "the model's name for clients; default: that of its file or directory"
    ),
    option.of(OPEN_OPTIONS, "parallel", default=None),
)
_SERVER = (
    option.size("--memory-limit SIZE").help(
        "most memory for open models together: those that were used longest ago are put away for "
        "others; default: no limit"
    ),
    option.count("--max-queue N", least=0).help(
        "most requests of each client that wait; more get status 429; default 64 where this "
        "machine alone can ask, or 8"
    ),
    option.number("--grace SECONDS", least=0, most=3600, default=10).help(
        "what running answers get when the server is told to end; default %(default)s"
    ),
    option.flag("--metrics").help("counts for Prometheus at /metrics"),
)
_PREFIX_OPTION = option.size("--prefix-memory SIZE").help(
    "most memory for what was read of earlier prompts, so that chats can take turns; "
    "default 512M, or an eighth of memory where that is less; 0 keeps the last prompt only"
)


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(*_USUAL)
    parser.declare_group("who may ask", *access_options.OPTIONS)
    parser.declare_group("server", *_SERVER)
    model_options.add_arguments(parser, [_PREFIX_OPTION])


def run(options: argparse.Namespace) -> int:
    """Serve until the user ends it.

    Raises:
        OptionError: An option would be ignored or is unsafe, or a package is missing.
    """
    try:
        from coordgen_rs.server.models.catalog import ModelEntry, find_models
        from coordgen_rs.server.serving import ServerOptions, is_loopback, serve
    except ModuleNotFoundError as error:
        raise OptionError(
            f"serve needs the package {error.name}: {how_to_install('server')}"
        ) from error
    access = access_options.chosen_access(options)
    remember = access_options.remembers(options)
    given = options.prefix_memory
    prefix_memory = _default_prefix_memory() if given is None else given
    most_waiting = 64 if is_loopback(options.host) else 8
    place = ServerOptions(
        options.host,
        options.port,
        most_waiting if options.max_queue is None else options.max_queue,
        options.memory_limit,
        prefix_memory if remember else 0,
        options.grace,
    )
    models = find_models(options.model, options.models_dir, options.name)
    model_options.check(options)
    has_several = len(models) > 1
    if not has_several:
        check_path(models[0].path)

    def opened(one: ModelEntry) -> Model:
        # A history is for one tokenizer.
        has_own = has_several and options.history is not None
        return model_options.opened(
            options,
            path=one.path,
            history=options.history / one.name if has_own else None,
            prefix_memory=place.cache_bytes,
            remember=remember,
            parallel=options.parallel,
        )

    is_closed = serve(
        models,
        opened,
        place,
        access,
        lambda line: text.tell(f"coordgen: {line}"),
        _leave,
    )
    if not is_closed:
        _leave(DONE)
    return DONE


def _default_prefix_memory() -> int:
    """What earlier prompts may take, in bytes."""
    memory = memory_bytes()
    return _PREFIX_MEMORY if memory is None else min(_PREFIX_MEMORY, memory // _SHARE_OF_MEMORY)


def _leave(code: int = INTERRUPTED) -> None:
    """End at once, whatever the model is doing; what is finished is written already."""
    os._exit(code)
