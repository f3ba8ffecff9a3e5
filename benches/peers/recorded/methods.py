"""The rows of the table: lossless methods that draft from text alone, each with its settings.

In: nothing. Out: for each method a cell of an evaluation for any records and budget: our drafters
as `coordgen replay` has them, those of others by their own code. Where that is not installed,
opening the method says what is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

from coordgen_rs.tools.evaluation.replayed import Replayed, Source, rows_of, tokenized
from recorded import arctic, llama_cpp, vllm_ngram
from recorded.arctic import DEFAULTS, FILLED, Arctic
from recorded.llama_cpp import LlamaCpp
from recorded.rule import replay_rule
from recorded.transformers_lookup import TransformersLookup
from recorded.vllm_ngram import VllmNgram

CHAIN, TREE = "chain", "tree"

_PINNED = {module.PACKAGE: module.PINNED[0] for module in (arctic, vllm_ngram)}


@dataclass(frozen=True)
class Ours:
    """A method of the registry, replayed as `coordgen replay` does.

    Attributes:
        name: Its row.
        shape: `CHAIN` or `TREE`.
        drafter: Its name in the registry.
        remembers: Whether it can draft from earlier requests.
    """

    name: str
    shape: str
    drafter: str
    remembers: bool

    def open(self):
        """It is always there."""

    def cell(self, source, budget, history):
        """A cell; its figures are those of `coordgen replay`."""
        return Replayed(source, self.drafter, budget, history, "compact")


@dataclass(frozen=True)
class Theirs:
    """A rule by the code of the engine that has it.

    Attributes:
        name: Its row.
        shape: `CHAIN` or `TREE`.
        package: The engine.
        make: Makes the `Rule`; given `remembering` where the rule remembers.
        remembers: Whether it can draft from earlier requests.
    """

    name: str
    shape: str
    package: str
    make: Callable[..., Any]
    remembers: bool = False

    def open(self, history="none"):
        """The `Rule`; raises ModuleNotFoundError where the engine's code is absent."""
        remembering = {"remembering": history != "none"} if self.remembers else {}
        return self.make(**remembering)

    def cell(self, source, budget, history):
        """A cell."""
        return RuleCell(self, source, budget, history)


@dataclass(frozen=True)
class RuleCell:
    """A cell of an evaluation: a rule replayed on records."""

    method: Theirs
    source: Source
    budget: int
    history: str

    def settings(self):
        """Same as in `Cell`."""
        return {
            "command": "replay rule",
            **self.source.settings(),
            "drafter": self.method.name,
            "engine": _version(self.method.package),
            "rule": repr(self.method.make),
            "budget": self.budget,
            "history": self.history,
        }

    def measure(self):
        """Same as in `Cell`."""
        records, _ = tokenized(self.source)
        rule = self.method.open(self.history)
        return rows_of(replay_rule(self.method.name, records, self.budget, rule))


def versions(methods):
    """The engines of some methods with their versions, in a line each."""
    return list(dict.fromkeys(_version(of.package) for of in methods if isinstance(of, Theirs)))


def _version(package):
    if package == llama_cpp.PACKAGE:
        return f"{package} of {llama_cpp.version()}"
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:  # a part of it that was built alone
        return f"part of {_PINNED[package]}"


def _llama_cpp(name, *sizes, remembers=False):
    shown = ", ".join([f"llama.cpp {name}", *map(str, sizes)])
    return Theirs(shown, CHAIN, llama_cpp.PACKAGE, partial(LlamaCpp, name, *sizes), remembers)


METHODS = (
    Ours("coordgen auto", TREE, "auto", remembers=True),
    Ours("coordgen automaton", TREE, "automaton", remembers=False),
    Ours("SAM-Decoding", CHAIN, "sam", remembers=True),
    Ours("prompt lookup, 3 to 1", CHAIN, "prompt-lookup", remembers=False),
    Theirs("ArcticInference, filled tree", TREE, arctic.PACKAGE, partial(Arctic, how=FILLED), True),
    Theirs("ArcticInference, defaults", CHAIN, arctic.PACKAGE, partial(Arctic, how=DEFAULTS), True),
    Theirs("transformers, 2 to 1", CHAIN, "transformers", TransformersLookup),
    Theirs("vLLM n-gram, 5", CHAIN, vllm_ngram.PACKAGE, VllmNgram),
    Theirs("vLLM n-gram, 5 to 1", CHAIN, vllm_ngram.PACKAGE, partial(VllmNgram, 1, 5)),
    _llama_cpp("ngram-simple"),
    _llama_cpp("ngram-simple", 1, 16),
    _llama_cpp("ngram-map-k"),
    _llama_cpp("ngram-map-k", 2, 16),
    _llama_cpp("ngram-map-k4v"),
    _llama_cpp("ngram-map-k4v", 2, 8),
    _llama_cpp("ngram-mod", remembers=True),
    _llama_cpp("ngram-mod", 2, 16, remembers=True),
    _llama_cpp("ngram-cache", remembers=True),
)
"""All methods, ours first.

A row of llama.cpp with numbers, tokens that are matched and drafted, and vLLM's that goes down to 1
are the settings with the most tokens a step on the half for tuning. The others are the engines'
defaults, which ask for long matches.
"""
