"""`coordgen serve`: a local server in the form of OpenAI's API, and a chat page.

In: options. Out: what the server is to open, who may ask it, and whether anything is remembered
from one request to the next. Which keys there are is checked here; what a request brings, in the
server.
"""

import argparse
import os
import re
from typing import TYPE_CHECKING

from coordgen_rs.cli import model_options, option
from coordgen_rs.cli.exit_codes import DONE, INTERRUPTED
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.loading.directory import check_path
from coordgen_rs.loading.options import OPEN_OPTIONS
from coordgen_rs.model import Model
from coordgen_rs.runtime.machine import memory_bytes

if TYPE_CHECKING:
    from coordgen_rs.server.guard import Access

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

_KEY = "COORDGEN_API_KEY"
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_REMEMBERING = ("earlier-requests", "sam-earlier-requests")
"""Sources that are nothing but what earlier requests have left."""
_KEEPING = ("history", "prefix_memory", "prefix_store")

_USUAL = (
    option.path("model BUNDLE", nargs="*").help(
        f"{option.BUNDLE_HELP}; of several, each is opened when a request first names it"
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
_ACCESS = (
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
    parser.declare_group("who may ask", *_ACCESS)
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
    access = chosen_access(options)
    # Requests may draft from earlier ones of the same client where clients are known.
    remember = bool(access.keys) or is_loopback(options.host)
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
    option.refuse(
        options,
        ["nearest_namespace"],
        "is for one user: answers would draft from what others asked, which shows in how they come",
    )
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


def _default_prefix_memory() -> int:
    """What earlier prompts may take, in bytes."""
    memory = memory_bytes()
    return _PREFIX_MEMORY if memory is None else min(_PREFIX_MEMORY, memory // _SHARE_OF_MEMORY)


def _leave(code: int = INTERRUPTED) -> None:
    """End at once, whatever the model is doing; what is finished is written already."""
    os._exit(code)
