"""How the model of a command that answers is opened: bundle, memory, drafts, history.

In: a parser. Out: options; from those an open `Model`.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coordgen_rs._core import PLAIN, draft_methods, draft_sources, strategies
from coordgen_rs.cli import option
from coordgen_rs.cli.option import Option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.loading.options import DRAFTED_FROM, NEEDED, OPEN_OPTIONS
from coordgen_rs.model import Model

_of = partial(option.of, OPEN_OPTIONS)
_METHODS = [method.name for method in draft_methods()]
_SOURCES = [source.name for source in draft_sources() if source.can_be_asked_for]
_DRAFTS = (
    (
        _of("draft", choices=[*_METHODS, PLAIN], metavar="METHOD").help(
            f"how to draft: auto (default), {PLAIN} for no drafts, or another of "
            f"{', '.join(it for it in _METHODS if it != 'auto')}; see docs/sources-and-methods.md"
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
