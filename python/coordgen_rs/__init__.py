"""Lossless speculative generation on fixed-shape graphs.

Lookups draft what may come next, one run of the target verifies a whole tree of drafts, and the
output is exactly the tokens of plain decoding, sooner:

    from coordgen_rs import Model

    with Model.open("bundle") as model:
        for piece in model.stream_chat([{"role": "user", "content": "Name three rivers."}]):
            print(piece.text, end="", flush=True)

`Model` takes and returns text; `stream` and `generate` are for text without a chat template. The
lower level works with tokens: `open_session`, `generate`, and the baseline `plain`, which returns
the same tokens. `coordgen export` makes bundles.

Names are loaded on first use: what a program does not use costs it nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordgen_rs._core import (
        Accepted,
        Drafter,
        DynamicTree,
        HostDrafter,
        LookupTable,
        PromptLookup,
        Sampling,
        SeenTokens,
        StepInputs,
        SuffixAutomaton,
    )
    from coordgen_rs.answer import Answer, Gain, Piece, Span, Stream
    from coordgen_rs.bundle.directory import Bundle
    from coordgen_rs.dialogue import Dialogue
    from coordgen_rs.draft_model import DraftModel, ModelDrafter
    from coordgen_rs.drafting import make_drafter
    from coordgen_rs.energy.meter import EnergyMeter
    from coordgen_rs.errors import CoordgenError
    from coordgen_rs.generate import Step, generate, plain
    from coordgen_rs.grammar.kinds import JsonSchema, Lark, Regex
    from coordgen_rs.grammar.matcher import Matcher
    from coordgen_rs.grammar.vocabulary import Vocabulary
    from coordgen_rs.history.requests import History
    from coordgen_rs.model import Model
    from coordgen_rs.profile.file import Profile
    from coordgen_rs.request_options import RequestOptions
    from coordgen_rs.stats import Stats
    from coordgen_rs.target.open import open_session
    from coordgen_rs.target.ort_session import OrtSession
    from coordgen_rs.target.prefixes import PrefixPool
    from coordgen_rs.target.session import Session
    from coordgen_rs.text.tokenizer import Tokenizer

__all__ = [
    "Accepted",
    "Answer",
    "Bundle",
    "CoordgenError",
    "Dialogue",
    "DraftModel",
    "Drafter",
    "DynamicTree",
    "EnergyMeter",
    "Gain",
    "History",
    "HostDrafter",
    "JsonSchema",
    "Lark",
    "LookupTable",
    "Matcher",
    "Model",
    "ModelDrafter",
    "OrtSession",
    "Piece",
    "PrefixPool",
    "Profile",
    "PromptLookup",
    "Regex",
    "RequestOptions",
    "Sampling",
    "SeenTokens",
    "Session",
    "Span",
    "Stats",
    "Step",
    "StepInputs",
    "Stream",
    "SuffixAutomaton",
    "Tokenizer",
    "Vocabulary",
    "generate",
    "make_drafter",
    "open_session",
    "plain",
]

_MODULES = {
    "Accepted": "_core",
    "Answer": "answer",
    "Bundle": "bundle.directory",
    "CoordgenError": "errors",
    "Dialogue": "dialogue",
    "DraftModel": "draft_model",
    "Drafter": "_core",
    "DynamicTree": "_core",
    "EnergyMeter": "energy.meter",
    "Gain": "answer",
    "History": "history.requests",
    "HostDrafter": "_core",
    "JsonSchema": "grammar.kinds",
    "Lark": "grammar.kinds",
    "LookupTable": "_core",
    "Matcher": "grammar.matcher",
    "Model": "model",
    "ModelDrafter": "draft_model",
    "OrtSession": "target.ort_session",
    "Piece": "answer",
    "PrefixPool": "target.prefixes",
    "Profile": "profile.file",
    "PromptLookup": "_core",
    "Regex": "grammar.kinds",
    "RequestOptions": "request_options",
    "Sampling": "_core",
    "SeenTokens": "_core",
    "Session": "target.session",
    "Span": "answer",
    "Stats": "stats",
    "Step": "generate",
    "StepInputs": "_core",
    "Stream": "answer",
    "SuffixAutomaton": "_core",
    "Tokenizer": "text.tokenizer",
    "Vocabulary": "grammar.vocabulary",
    "generate": "generate",
    "make_drafter": "drafting",
    "open_session": "target.open",
    "plain": "generate",
}
"""Where each name comes from."""


class _Package(ModuleType):
    """This module. Its `generate` is the function, also after the module of that name is loaded."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "generate" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # which would take any name for one that is there

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
