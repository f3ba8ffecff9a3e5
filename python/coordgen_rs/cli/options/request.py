"""The options of commands that answer: how the model is opened, and what a request asks for.

In: a parser. Out: options; from those an open `Model`, and the keywords of its methods. `generate`
and `chat` share them.
"""

import argparse
from dataclasses import fields
from typing import Any, TypeVar

from coordgen_rs._core import PLAIN, draft_methods, draft_sources, strategies
from coordgen_rs.cli.options import history as history_options
from coordgen_rs.cli.options import option, shared
from coordgen_rs.cli.options import provider as provider_options
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.drafting.options import DraftingOptions, MemoryOptions
from coordgen_rs.errors import OptionError
from coordgen_rs.model import Model
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.opening.options import OpeningOptions

_Record = TypeVar("_Record", OpeningOptions, DraftingOptions, MemoryOptions)

_CHAT_TEMPLATE = option.path("--chat-template FILE").help(
    "a chat template in Jinja; default: the bundle's own"
)
_LIMITS = (
    option.text("--system TEXT").help("in a chat: what the model is told before everything else"),
    option.count("--max-new-tokens N", default=256).help(
        "most tokens of an answer; default %(default)s"
    ),
    option.text("--stop TEXT", may_be_empty=False, action="append", default=[]).help(
        "end the answer before this text; can be given more than once"
    ),
    option.flag("--ignore-eos").help("go on behind end tokens, to the limit"),
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
_SAMPLING = (
    option.number("--temperature T", least=0, default=0).help(
        "sample at this temperature; 0 (default) always takes the most likely token"
    ),
    option.count("--top-k K", least=0, default=0).help(
        "sample from the K most likely tokens; default: all"
    ),
    option.number("--top-p P", least=0, most=1, default=1).help(
        "sample from the fewest tokens whose probabilities add up to P; default: all"
    ),
    option.number("--min-p P", least=0, most=1, default=0).help(
        "sample from tokens at least P times as likely as the likeliest; default: all"
    ),
    option.number("--repetition-penalty X", least=0.01, most=100, default=1).help(
        "above 1: make tokens of prompt and answer less likely, at temperature 0 too; "
        "default %(default)s"
    ),
    option.count("--seed N", least=0, most=2**64 - 1).help(
        "the same seed gives the same tokens; default: one at random, which is told"
    ),
)
_OPENING = (
    option.choice("--switch", list(strategies()), default="auto").help(
        "when to switch from the prefill graphs to the decode graphs; default %(default)s"
    ),
    option.size("--memory-budget BYTES").help(
        "most memory for the blocks' graphs (500M, 2G); blocks that do not fit are loaded "
        "again in every pass, while others compute"
    ),
    option.path("--profile FILE").help(
        "a profile from `coordgen profile`, for --switch and --memory-budget"
    ),
)


def add_arguments(parser: Parser) -> None:
    """Declare the options of a request, and of opening a model."""
    parser.declare(*_LIMITS, *_SAMPLING)
    add_model_arguments(parser)


def add_model_arguments(parser: Parser) -> None:
    """Declare the options of opening a model: what `opened` reads."""
    parser.declare(_CHAT_TEMPLATE)
    parser.declare_alternatives(*_METHODS)
    parser.declare(*_DRAFTING, *history_options.OPTIONS, *_OPENING)
    parser.declare(*provider_options.OPTIONS, shared.THREADS)


def request(options: argparse.Namespace) -> RequestOptions:
    """The keywords of `Model`'s methods.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.temperature == 0:
        given = {"top_k": options.top_k != 0, "top_p": options.top_p != 1}
        given |= {"min_p": options.min_p != 0, "seed": options.seed is not None}
        option.refuse(
            argparse.Namespace(**given), given, "is for sampling: give --temperature above 0, too"
        )
    return {
        "max_new_tokens": options.max_new_tokens,
        "stop": options.stop,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repetition_penalty,
        "seed": options.seed,
        "ignore_eos": options.ignore_eos,
    }


def check_opening(options: argparse.Namespace) -> None:
    """Check what opening the model is to heed.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.draft == PLAIN and options.budget is not None:
        raise OptionError(f"--budget is for drafts, but --draft is {PLAIN}")
    if options.history is None:
        option.refuse(options, ("namespace", "history_max_tokens"), "needs --history")
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
    context: int | None = None,
    prefix_memory: int = 0,
    remember: bool = True,
) -> Model:
    """The model, open.

    Args:
        options: Those of `add_model_arguments`.
        context: Same as in `Model.open`.
        prefix_memory: Same as in `Model.open`.
        remember: Same as in `Model.open`.

    Raises:
        OptionError: An option would be ignored.
    """
    check_opening(options)
    memory = _record(MemoryOptions, options, remember=remember, prefix_memory=prefix_memory)
    sources = options.sources or options.draft
    drafting = _record(DraftingOptions, options, draft=sources, memory=memory)
    with progress() as on_progress:
        opening = _record(
            OpeningOptions,
            options,
            path=options.model,
            width=None if options.budget is None else options.budget + 1,  # the root takes a row
            context=context,
            provider=provider_options.chosen(options),
            on_progress=on_progress,
        )
        return Model.opened(opening, drafting)


def _record(kind: type[_Record], options: argparse.Namespace, **given: Any) -> _Record:
    """A record: the fields that are given, and of the others the options of their names."""
    names = {field.name for field in fields(kind)} - given.keys()
    return kind(**given, **{name: getattr(options, name) for name in names})
