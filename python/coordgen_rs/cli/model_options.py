"""How the model of a command that answers is opened, and what a request asks of it.

In: a parser. Out: options; from those an open `Model`, and the keywords of its methods. Whether a
model can follow a grammar is found out where it is opened.
"""

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coordgen_rs._core import PLAIN, draft_sources, strategies
from coordgen_rs.cli import option
from coordgen_rs.cli.option import Option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.generation.drafting.drafter import METHODS
from coordgen_rs.loading.options import DRAFTED_FROM, NEEDED, OPEN_OPTIONS
from coordgen_rs.model import Model
from coordgen_rs.model.options import REQUEST, RequestOptions
from coordgen_rs.text.grammar.kinds import Grammar, JsonSchema, Lark, Regex

_of = partial(option.of, OPEN_OPTIONS)
_SOURCES = [source.name for source in draft_sources() if source.can_be_asked_for]
_DRAFTS = (
    (
        _of("draft", choices=METHODS, metavar="METHOD").help(
            f"how to draft: {', '.join(METHODS)} (no drafts); default: auto; "
            "see docs/sources-and-methods.md"
        ),
        option.names("--sources NAME,..").help(
            f"draft from these sources only: {', '.join(_SOURCES)}"
        ),
    ),
    _of("draft_model"),
    _of("lookup_table"),
    option.count("--budget N").help("verify at most N draft tokens per step"),
    _of("commit"),
)
_HISTORY = (
    _of("history"),
    _of("namespace"),
    _of("nearest_namespace"),
    option.history_max_tokens("--history-max-tokens N"),
    _of("fleet_history"),
    _of("fleet_namespace"),
    _of("prefix_store"),
    _of("prefix_store_size", parse=option.parse_size),
)
_LOADING = (
    _of("chat_template"),
    option.count("--context N", least=2).help(
        OPEN_OPTIONS["context"].help
    ),  # for a prompt and more
    option.KV_CACHE,
    _of("switch", choices=list(strategies()), metavar="STRATEGY").help(
        f"{OPEN_OPTIONS['switch'].help}; one of {', '.join(strategies())}"
    ),
    _of("memory_budget", parse=option.parse_size),
    _of("profile", parse=arguments.path),
)


def add_arguments(parser: Parser, history: Sequence[Option] = ()) -> None:
    """Declare the options of opening a model: what `opened` reads.

    Args:
        parser: Of the command.
        history: More options of the command for what is kept from one request to the next.
    """
    parser.declare(option.THREADS)
    parser.declare_group("drafts", *_DRAFTS)
    parser.declare_group("history and prefixes", *_HISTORY, *history)
    parser.declare_group("loading and memory", *_LOADING)
    parser.declare_group("device", *option.PROVIDER)


def check(options: argparse.Namespace) -> None:
    """Check what opening the model is to heed.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.draft == PLAIN and options.budget is not None:
        raise OptionError(f"--budget is for drafts, but --draft is {PLAIN}")
    for name, needed in {"namespace": "history", **NEEDED}.items():
        if getattr(options, needed) is None:
            option.refuse(options, [name], f"needs --{needed.replace('_', '-')}")
    if options.draft == PLAIN:
        option.refuse(options, DRAFTED_FROM, f"is for drafts, but --draft is {PLAIN}")


def opened(
    options: argparse.Namespace,
    *,
    path: Path | None = None,
    history: Path | None = None,
    prefix_memory: int = 0,
    remember: bool = True,
    parallel: int | None = 1,
) -> Model:
    """The model, open.

    Args:
        options: Those of `add_arguments`.
        path: Where the model is; None for what the options say.
        history: Same as in `Model.open`; None for what the options say.
        prefix_memory: Same as in `Model.open`.
        remember: Same as in `Model.open`.
        parallel: Same as in `Model.open`.

    Raises:
        OptionError: An option would be ignored.
    """
    check(options)
    known: Any = {name: value for name, value in vars(options).items() if name in OPEN_OPTIONS}
    if history is not None:
        known["history"] = history
    with progress() as on_progress:
        known |= {
            "draft": options.sources or options.draft,
            "width": None if options.budget is None else options.budget + 1,  # and the root
            "provider": option.chosen_provider(options),
            "prefix_memory": prefix_memory,
            "remember": remember,
            "parallel": parallel,
            "on_progress": on_progress,
        }
        return Model.open(options.model if path is None else path, **known)


def parse_bias(name: str, typed: str) -> tuple[int, float]:
    """A token id, and what is added to its logit.

    Raises:
        OptionError: It is something else.
    """
    token, _, bias = typed.partition("=")
    try:
        found = int(token), float(bias)
    except ValueError as error:
        raise OptionError(
            f"{name} must be a token id and a number, such as 42=-100, but is "
            f"{arguments.shown(typed)}"
        ) from error
    arguments.count(f"the token of {name}", found[0], least=0, most=2**32 - 1)
    if found[1] != -math.inf:
        arguments.number(f"the bias of {name}", found[1], least=-100, most=100)
    return found


def _parse_stop(name: str, typed: str) -> str:
    return arguments.text(name, text.from_argument(name, typed), may_be_empty=False)


_SYSTEM = option.text("--system TEXT").help(
    "in a chat: what the model is told before everything else"
)
_SEVERAL = {"stop": _parse_stop, "logit_bias": parse_bias}
"""Options that can be given more than once, and how each value is read."""
_OPTIONS = {
    name: option.of(REQUEST, name, parse=_SEVERAL[name], action="append", default=[])
    if name in _SEVERAL
    else option.of(REQUEST, name)
    for name, it in REQUEST.items()
    if it.help
}

OF_SAMPLING = ("top_k", "top_p", "min_p", "seed")
"""Options that change nothing at temperature 0."""
_USUAL = ("max_new_tokens", "temperature", "seed")
_GRAMMARS = (
    option.path("--json-schema FILE").help(
        "answer with JSON that this schema accepts, on one line; see docs/grammar.md"
    ),
    option.text("--regex PATTERN").help(
        "answer with a text that this regular expression matches from start to end"
    ),
    option.path("--lark FILE").help(
        "answer with a text of this grammar, in llguidance's dialect of Lark"
    ),
)

SETTABLE = [it for it in _OPTIONS.values() if "action" not in it.keywords]
"""Those that have one value, which a dialogue may change."""


def add_request_arguments(parser: Parser) -> None:
    """Declare the options of a request, the usual ones first."""
    parser.declare(_SYSTEM, *(_OPTIONS[name] for name in _USUAL))
    others = (it for name, it in _OPTIONS.items() if name not in _USUAL)
    parser.declare_group("sampling and stopping", *others)
    parser.declare_group("grammar", _GRAMMARS)


def request(options: argparse.Namespace) -> RequestOptions:
    """The keywords of `Model`'s methods.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.temperature == 0:
        given = {name: getattr(options, name) != REQUEST[name].default for name in OF_SAMPLING}
        option.refuse(
            argparse.Namespace(**given), given, "is for sampling: give --temperature above 0, too"
        )
    chosen: Any = {name: getattr(options, name) for name in _OPTIONS}
    found: RequestOptions = chosen | {"logit_bias": dict(options.logit_bias)}
    return found


def grammar(options: argparse.Namespace) -> Grammar | None:
    """The grammar that the options ask for.

    Raises:
        OptionError: A file is no schema, or not UTF-8; the message names it.
        OSError: A file cannot be read.
    """
    if options.json_schema is not None:
        content = text.read_file(options.json_schema)
        try:
            return JsonSchema(content)
        except OptionError as error:
            raise OptionError(f"{options.json_schema}: {error}") from error
    if options.regex is not None:
        return Regex(options.regex)
    return None if options.lark is None else Lark(text.read_file(options.lark))
