"""What a command line can be given: each option is declared once, with how its value is read.

In: an option as its help shows it, such as `--threads N`, its bounds, and what `argparse` is told
besides. Out: an `Option` for `Parser.declare`. A value is checked as the API checks it: a wrong one
is an `OptionError` that names the option, raised while the command line is parsed. Options that
several commands share stand at the end.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from coordgen_rs.cli.terminal.text import from_argument, parse_bytes
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.loading.directory import PROVIDERS, ProviderChoice
from coordgen_rs.loading.options import OPEN_OPTIONS
from coordgen_rs.store.history.store import DEFAULT_MAX_TOKENS


@dataclass(frozen=True)
class Option:
    """An option, or a word that stands alone.

    Attributes:
        shown: The name and what help calls the value: `--threads N`, `bundle BUNDLE`.
        parse: From the name and what was typed to the value; None keeps what was typed.
        keywords: What `argparse` is told besides, such as a default.
        short: Its name in one letter, `-m`, if it has one.
    """

    shown: str
    parse: Callable[[str, str], Any] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    short: str | None = None

    @property
    def dest(self) -> str:
        """The name of its value among all that were parsed."""
        return self.shown.partition(" ")[0].strip("-").replace("-", "_")

    def help(self, text: str) -> "Option":
        """The same option with its line of help."""
        return replace(self, keywords={**self.keywords, "help": text})

    def also(self, short: str) -> "Option":
        """The same option, by one letter too."""
        return replace(self, short=short)

    def add_to(self, parser: Any) -> None:
        """Declare the option at a parser, or a group of one.

        A word that stands alone goes by the name of its value in errors.
        """
        name, _, metavar = self.shown.partition(" ")
        keywords = dict(self.keywords)
        if metavar:
            keywords["metavar"] = metavar
        if self.parse is not None:
            keywords["type"] = partial(self.parse, name if name.startswith("-") else metavar)
        names = [name] if self.short is None else [self.short, name]
        parser.add_argument(*names, **keywords)


def of(options: Mapping[str, arguments.Option], name: str, **keywords: Any) -> Option:
    """An option of the API, with the type, bounds, default and line of help that it has there.

    Args:
        options: Those of the API.
        name: Its name there; here it has dashes.
        keywords: What `argparse` is told besides; `parse` and `metavar` in place of what is there.
    """
    found = options[name]
    shown = f"--{name.replace('_', '-')} {keywords.pop('metavar', found.metavar)}".strip()
    if bool in found.types:
        return flag(shown).help(found.help)
    parse = keywords.pop("parse", None) or partial(_parsed, found)
    known: dict[str, Any] = {"help": found.help}
    if found.default is not None:
        known["default"] = found.default
    if found.choices:
        known["choices"] = found.choices
    return Option(shown, None if found.choices else parse, known | keywords)


def _parsed(option: arguments.Option, name: str, typed: str) -> Any:
    """What was typed, as the API takes it; raises OptionError where it is wrong."""
    value: object = typed
    if int in option.types:
        value = _converted(int, "an integer", name, typed)
    elif float in option.types:
        value = _converted(float, "a number", name, typed)
    elif Path not in option.types:
        value = from_argument(name, typed)
    return option.checked(name, value)


def _converted(kind: type, what: str, name: str, typed: str) -> object:
    try:
        return kind(typed)
    except ValueError as error:
        raise OptionError(f"{name} must be {what}, but is {arguments.shown(typed)}") from error


def flag(shown: str) -> Option:
    """An option without a value."""
    return Option(shown, None, {"action": "store_true"})


def word(shown: str, **keywords: Any) -> Option:
    """What was typed, whatever it is."""
    return Option(shown, None, keywords)


def choice(
    shown: str,
    choices: Sequence[str],
    *,
    check: Callable[[str, str], None] | None = None,
    **keywords: Any,
) -> Option:
    """One of some words, which help lists unless the value has a name.

    `check` raises where there is more to say of a word than that it is none of these.
    """

    def parse(name: str, typed: str) -> str:
        if check is not None:
            check(name, typed)
        return typed

    return Option(shown, parse, {"choices": choices, **keywords})


def _of_type(shown: str, keywords: Mapping[str, Any], kind: type, **bounds: Any) -> Option:
    return Option(shown, partial(_parsed, arguments.Option(types=(kind,), **bounds)), keywords)


def count(shown: str, *, least: int = 1, most: int = 2**63 - 1, **keywords: Any) -> Option:
    """A whole number within bounds, both inclusive."""
    return _of_type(shown, keywords, int, least=least, most=most)


def number(
    shown: str, *, least: float = -float("inf"), most: float = float("inf"), **keywords: Any
) -> Option:
    """A finite number within bounds, both inclusive."""
    return _of_type(shown, keywords, float, least=least, most=most)


def path(shown: str, **keywords: Any) -> Option:
    """A path; not an empty one, which would be the working directory."""
    return _of_type(shown, keywords, Path)


def text(shown: str, *, may_be_empty: bool = True, **keywords: Any) -> Option:
    """Text in UTF-8."""
    return _of_type(shown, keywords, str, may_be_empty=may_be_empty)


def one_of(shown: str, choices: Sequence[str], **keywords: Any) -> Option:
    """One of some words; another is told as the API tells it."""
    return _of_type(shown, keywords, str, choices=choices)


def size(shown: str, **keywords: Any) -> Option:
    """A number of bytes: 800000000, 800M, 2G."""
    return Option(shown, parse_size, keywords)


def parse_size(name: str, typed: str) -> int:
    """The number of bytes that was typed.

    Raises:
        OptionError: It is none.
    """
    try:
        return parse_bytes(typed)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from error


def names(shown: str, **keywords: Any) -> Option:
    """One name or more, with commas between them."""
    return Option(shown, parse_names, keywords)


def parse_names(name: str, typed: str) -> list[str]:
    """The names that were typed with commas between them.

    Raises:
        OptionError: One is empty, or not UTF-8.
    """
    found = [part.strip() for part in from_argument(name, typed).split(",")]
    if not all(found):
        raise OptionError(f"{name} must be names, but is {arguments.shown(typed)}")
    return found


def several(option: Option) -> Option:
    """Values with commas between them, each read as `option` reads its own."""
    parse_one = option.parse or (lambda _, typed: typed)
    return replace(
        option, parse=lambda name, typed: [parse_one(name, it.strip()) for it in typed.split(",")]
    )


def refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse options that would be ignored.

    Args:
        options: None where an option was not given.
        names: Of the options, as attributes.
        why: What the message says after the option.

    Raises:
        OptionError: One was given; the message names it.
    """
    for name in names:
        given = getattr(options, name)
        if given is not None and given is not False:
            raise OptionError(f"--{name.replace('_', '-')} {why}")


_DAY_S = 24 * 60 * 60

BUNDLE_HELP = (
    "from `coordgen export`, or a folder with genai_config.json or genie_config.json; a GGUF file, "
    "a Hugging Face directory or hf:OWNER/NAME is converted when it is first opened"
)

EXPORTED_BUNDLE = path("bundle BUNDLE").help("from `coordgen export`")
BUNDLE = path("bundle BUNDLE").help(BUNDLE_HELP)
THREADS = of(OPEN_OPTIONS, "threads")
KV_CACHE = of(OPEN_OPTIONS, "kv_cache")
JSON = flag("--json").help("print one JSON object instead")

QNN_OPTION = word("--qnn-option NAME=VALUE", action="append", default=[]).help(
    "an option of the QNN provider: performance_mode, vtcm_mb, finalization_mode, "
    "context_priority, shared_memory, spill_fill, offload_io_quantization, profiling, "
    "profiling_file, or any other by the provider's own name"
)
PROVIDER = (
    choice("--provider", PROVIDERS).help("require a bundle made for this provider"),
    word("--soc NAME").help("require a bundle made for this chip"),
    flag("--recompile").help("compile again if context binaries are for another version or chip"),
    QNN_OPTION,
)
"""What runs a bundle, and how."""


def chosen_provider(options: argparse.Namespace) -> ProviderChoice:
    """What `PROVIDER` asks for.

    Raises:
        OptionError: An option of QNN is unknown or has a wrong value.
    """
    from coordgen_rs.runtime.qnn.options import parse_options

    qnn_options = parse_options(options.qnn_option) if options.qnn_option else None
    return ProviderChoice(options.provider, options.soc, qnn_options, options.recompile)


OLDER_THAN = count("--older-than DAYS", least=0).help("only what was not used for so many days")


def unused_since(options: argparse.Namespace) -> float | None:
    """Since when what `OLDER_THAN` asks for was not used, in seconds since 1970; None for any."""
    days = options.older_than
    return None if days is None else time.time() - _DAY_S * days


def history_max_tokens(shown: str) -> Option:
    """The option that caps a history, under a name."""
    return count(shown).help(
        "evict the oldest requests of all namespaces beyond this; the history keeps the number; "
        f"at first {DEFAULT_MAX_TOKENS}"
    )
