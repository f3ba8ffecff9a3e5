"""How the model of a command that answers is opened: bundle, memory, drafts, history.

In: a parser. Out: options; from those an open `Model`.
"""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from coordgen_rs._core import PLAIN, draft_methods, draft_sources, strategies
from coordgen_rs.cli.options import history as history_options
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.options import prefixes as prefix_options
from coordgen_rs.cli.options import provider as provider_options
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.drafting.options import DraftingOptions, MemoryOptions
from coordgen_rs.errors import OptionError
from coordgen_rs.model import Model
from coordgen_rs.opening.options import OpeningOptions

_Record = TypeVar("_Record", OpeningOptions, DraftingOptions, MemoryOptions)

_CHAT_TEMPLATE = option.path("--chat-template FILE").help(
    "a chat template in Jinja; default: the bundle's own"
)
_METHODS = (
    option.choice(
        "--draft", [*(method.name for method in draft_methods()), PLAIN], default="auto"
    ).help(
        "how to draft: auto (default), another method, or plain for no drafts; see "
        "docs/sources-and-methods.md"
    ),
    option.names("--sources NAME,..").help(
        "draft from these sources only: "
        + ", ".join(source.name for source in draft_sources() if source.can_be_asked_for)
    ),
)
_DRAFTING = (
    option.path("--draft-model BUNDLE").help(
        "a smaller model with the same tokenizer that also drafts; edgellm needs it"
    ),
    option.path("--lookup-table FILE").help(
        "a table written by `coordgen warm-up`, for --draft diaa and blend"
    ),
    option.count("--budget N").help("verify at most N draft tokens per step"),
    option.choice("--commit", ["auto", "canonical", "compact"], default="auto").help(
        "canonical is always exact, compact where `coordgen check` says so; auto (default) takes "
        "compact where it is"
    ),
)
_OPENING = (
    option.count("--context N", least=2).help(
        "most tokens of prompt and answer together; default: what the bundle was made for, and of "
        "a checkpoint 4096; more is for checkpoints, which are converted once more for it"
    ),
    provider_options.KV_CACHE,
    option.choice("--switch", list(strategies()), default="auto").help(
        "when to switch from the prefill graphs to the decode graphs; default %(default)s"
    ),
    option.size("--memory-budget BYTES").help(
        "most memory for the blocks' graphs and experts (500M, 2G); experts are read and dropped "
        "by use, blocks that do not fit are loaded again in every pass, while others compute"
    ),
    option.path("--profile FILE").help(
        "a profile from `coordgen profile`, for --switch and --memory-budget"
    ),
)


def add_arguments(parser: Parser) -> None:
    """Declare the options of opening a model: what `opened` reads."""
    parser.declare(_CHAT_TEMPLATE)
    parser.declare_alternatives(*_METHODS)
    parser.declare(*_DRAFTING, *history_options.OPTIONS, *prefix_options.OPTIONS, *_OPENING)
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
    memory = _record(
        MemoryOptions,
        options,
        remember=remember,
        prefix_memory=prefix_memory,
        history=options.history if history is None else history,
    )
    sources = options.sources or options.draft
    drafting = _record(DraftingOptions, options, draft=sources, memory=memory)
    with progress() as on_progress:
        opening = _record(
            OpeningOptions,
            options,
            path=options.model if path is None else path,
            width=None if options.budget is None else options.budget + 1,  # the root takes a row
            provider=provider_options.chosen(options),
            parallel=parallel,
            on_progress=on_progress,
        )
        return Model.opened(opening, drafting)


def _record(kind: type[_Record], options: argparse.Namespace, **given: Any) -> _Record:
    """A record: the fields that are given, and of the others the options of their names."""
    names = {field.name for field in fields(kind)} - given.keys()
    return kind(**given, **{name: getattr(options, name) for name in names})
