"""How the model of a command that answers is opened: bundle, memory, drafts, history.

In: a parser. Out: options; from those an open `Model`.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from coordgen_rs._core import PLAIN, draft_methods, draft_sources, strategies
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.options import provider as provider_options
from coordgen_rs.cli.options.history import max_tokens
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.loading.options import OPENING
from coordgen_rs.model import Model

_of = partial(option.of, OPENING)
_METHODS = (
    _of("draft", choices=[*(method.name for method in draft_methods()), PLAIN]),
    option.names("--sources NAME,..").help(
        "draft from these sources only: "
        + ", ".join(source.name for source in draft_sources() if source.can_be_asked_for)
    ),
)
_DRAFTING = (
    _of("draft_model"),
    _of("lookup_table"),
    option.count("--budget N").help("verify at most N draft tokens per step"),
    _of("commit"),
    _of("history"),
    _of("namespace"),
    max_tokens("--history-max-tokens N"),
    _of("fleet_history"),
    _of("fleet_namespace"),
    _of("prefix_store"),
    _of("prefix_store_size", parse=option.parse_size),
)
_OPENING = (
    option.count("--context N", least=2).help(OPENING["context"].help),  # for a prompt and more
    provider_options.KV_CACHE,
    _of("switch", choices=list(strategies())),
    _of("memory_budget", parse=option.parse_size),
    _of("profile", parse=arguments.path),
)


def add_arguments(parser: Parser) -> None:
    """Declare the options of opening a model: what `opened` reads."""
    parser.declare(_of("chat_template"))
    parser.declare_alternatives(*_METHODS)
    parser.declare(*_DRAFTING, *_OPENING)
    parser.declare(*provider_options.OPTIONS, shared.THREADS)


def check(options: argparse.Namespace) -> None:
    """Check what opening the model is to heed.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.draft == PLAIN and options.budget is not None:
        raise OptionError(f"--budget is for drafts, but --draft is {PLAIN}")
    if options.history is None:
        option.refuse(options, ("namespace", "history_max_tokens"), "needs --history")
    if options.prefix_store is None:
        option.refuse(options, ("prefix_store_size",), "needs --prefix-store")
    if options.fleet_history is None:
        option.refuse(options, ("fleet_namespace",), "needs --fleet-history")
    if options.draft == PLAIN:
        option.refuse(
            options,
            ("history", "fleet_history", "draft_model", "lookup_table"),
            f"is for drafts, but --draft is {PLAIN}",
        )


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
    known: Any = {name: value for name, value in vars(options).items() if name in OPENING}
    if history is not None:
        known["history"] = history
    with progress() as on_progress:
        known |= {
            "draft": options.sources or options.draft,
            "width": None if options.budget is None else options.budget + 1,  # and the root
            "provider": provider_options.chosen(options),
            "prefix_memory": prefix_memory,
            "remember": remember,
            "parallel": parallel,
            "on_progress": on_progress,
        }
        return Model.open(options.model if path is None else path, **known)
