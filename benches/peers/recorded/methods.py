"""The rows of the table: lossless methods that draft from text alone, each with its settings.

In: nothing. Out: for each method a cell of an evaluation for any records and budget: our drafters
as `coordgen replay` has them, those of others by their own code. Where that is not installed,
opening the method says what is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from coordgen_rs.errors import CoordgenError
from coordgen_rs.lab.replay.command import ReplayCell, rows_of
from coordgen_rs.lab.replay.records import Source, tokenized
from coordgen_rs.lab.replay.run import MOST_BUDGET
from recorded import arctic, llama_cpp, transformers_lookup, vllm_ngram
from recorded.arctic import DEFAULTS, FILLED, Arctic
from recorded.llama_cpp import LlamaCpp
from recorded.rule import replay_rule
from recorded.transformers_lookup import TransformersLookup
from recorded.vllm_ngram import VllmNgram

CHAIN, TREE = "chain", "tree"


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

    def open(self, budget):
        """It is always there."""

    def cell(self, source, budget, history):
        """A cell; its figures are those of `coordgen replay`."""
        return ReplayCell(source, self.drafter, budget, history, "compact")


class RuleError(CoordgenError):
    """An engine's code failed; the message is its own."""


@dataclass(frozen=True)
class Theirs:
    """A rule by the code of the engine that has it.

    Attributes:
        name: Its row.
        shape: `CHAIN` or `TREE`.
        engine: The module here that opens it, by its name.
        make: Makes the `Rule`.
        remembers: Whether it can draft from earlier requests: `make` takes `remembering` then.
        told: Most tokens that it is told to draft, by `drafted`; None where it is not told.
    """

    name: str
    shape: str
    engine: str
    make: Callable[..., Any]
    remembers: bool = False
    told: int | None = None

    def open(self, budget, history="none"):
        """The `Rule`; raises ImportError or OSError where the engine's code cannot be loaded."""
        options = {"remembering": history != "none"} if self.remembers else {}
        if self.told is not None:
            options["drafted"] = min(self.told, budget)
        return self.make(**options)

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
            "engine": _ENGINES[self.method.engine].version(),
            "rule": f"{self.method.make!r}, {self.method.told}",
            "budget": self.budget,
            "history": self.history,
        }

    def measure(self):
        """Same as in `Cell`.

        Raises:
            RuleError: The engine's code failed.
        """
        records, _ = tokenized(self.source)
        try:
            rule = self.method.open(self.budget, self.history)
            return rows_of(replay_rule(self.method.name, records, self.budget, rule))
        except Exception as error:  # whatever it raises, the other cells go on
            raise RuleError(f"{type(error).__name__}: {error}") from error


_ENGINES = {
    module.__name__: module for module in (arctic, llama_cpp, transformers_lookup, vllm_ngram)
}


def versions(methods):
    """The engines of some methods with their versions, in a line each."""
    theirs = [of for of in methods if isinstance(of, Theirs)]
    return list(dict.fromkeys(_ENGINES[of.engine].version() for of in theirs))


def _theirs(module, shape, name, make, **has):
    return Theirs(name, shape, module.__name__, make, **has)


def _llama_cpp(name, matched=None, told=None, *, remembers=False):
    """With its defaults, or told what to match and how much to draft."""
    shown = f"llama.cpp {name}" if matched is None else f"llama.cpp {name}, {matched}"
    make = partial(LlamaCpp, name, matched)
    return _theirs(llama_cpp, CHAIN, shown, make, remembers=remembers, told=told)


METHODS = (
    Ours("coordgen auto", TREE, "auto", remembers=True),
    Ours("coordgen automaton", TREE, "automaton", remembers=False),
    Ours("SAM-Decoding", CHAIN, "sam", remembers=True),
    Ours("prompt lookup, 3 to 1", CHAIN, "prompt-lookup", remembers=False),
    _theirs(
        arctic,
        TREE,
        "ArcticInference, filled tree",
        partial(Arctic, how=FILLED),
        remembers=True,
    ),
    _theirs(
        arctic,
        CHAIN,
        "ArcticInference, defaults",
        partial(Arctic, how=DEFAULTS),
        remembers=True,
    ),
    _theirs(transformers_lookup, CHAIN, "transformers, 2 to 1", TransformersLookup),
    _theirs(vllm_ngram, CHAIN, "vLLM n-gram, 5", VllmNgram),
    _theirs(vllm_ngram, CHAIN, "vLLM n-gram, 5 to 1", partial(VllmNgram, 1, 5)),
    _llama_cpp("ngram-simple"),
    _llama_cpp("ngram-simple", 1, MOST_BUDGET),
    _llama_cpp("ngram-map-k"),
    _llama_cpp("ngram-map-k", 2, 16),
    _llama_cpp("ngram-map-k4v"),
    _llama_cpp("ngram-map-k4v", 2, 16),
    _llama_cpp("ngram-mod", remembers=True),
    _llama_cpp("ngram-mod", 2, MOST_BUDGET, remembers=True),
    _llama_cpp("ngram-cache", remembers=True),
)
"""All methods, ours first.

A row of llama.cpp with a number, the tokens that are matched, and vLLM's that goes down to 1 are
the settings with the most tokens a step on the half for tuning (`recorded/tune.py`). The others are
the engines' defaults, which ask for long matches. ngram-map-k and ngram-map-k4v find less where
they are told to draft more than 16.
"""
