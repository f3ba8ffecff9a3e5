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

Names are loaded on first use: what a program does not use costs it nothing. Errors are in
`coordgen_rs.errors`.

ONNX Runtime's own builds report to Microsoft how they are used, from 1.29 on also on Linux. Here
they do not, unless the process has set `ORT_DISABLE_TELEMETRY` or imported ONNX Runtime before.
"""

import os
from importlib import import_module

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

TYPE_CHECKING = False
"""What `typing` has by this name, which takes several times as long to load as all of this."""

if TYPE_CHECKING:
    from coordgen_rs._core import (
        Accepted,
        Drafter,
        DraftMethod,
        DraftSource,
        DynamicTree,
        HostDrafter,
        LookupTable,
        PromptLookup,
        Sampling,
        SeenTokens,
        SharedHistory,
        StepInputs,
        SuffixAutomaton,
        draft_methods,
        draft_sources,
        strategies,
    )
    from coordgen_rs.bundle.directory import Bundle
    from coordgen_rs.drafting.draft_model import DraftModel, ModelDrafter
    from coordgen_rs.drafting.drafter import make_drafter
    from coordgen_rs.drafting.proposer import DraftProposer
    from coordgen_rs.errors import CoordgenError
    from coordgen_rs.generation.logprobs import TokenLogprob, TopLogprob
    from coordgen_rs.generation.loop import generate, plain
    from coordgen_rs.generation.stats import Stats
    from coordgen_rs.generation.step import Step
    from coordgen_rs.grammar.kinds import Gbnf, JsonSchema, Lark, Regex
    from coordgen_rs.grammar.matcher import Matcher
    from coordgen_rs.grammar.vocabulary import Vocabulary
    from coordgen_rs.lab.energy import EnergyMeter
    from coordgen_rs.loading.directory import open_bundle
    from coordgen_rs.loading.options import OpenOptions, SessionOptions
    from coordgen_rs.loading.profile import Profile
    from coordgen_rs.loading.session import open_session
    from coordgen_rs.model import Model
    from coordgen_rs.model.answer import Answer, Span, StepDelta, TextDelta
    from coordgen_rs.model.dialogue import Dialogue
    from coordgen_rs.model.options import ChatOptions, RequestOptions
    from coordgen_rs.model.stream import AsyncStream, Stream
    from coordgen_rs.runtime.batch import BatchStats
    from coordgen_rs.runtime.cpu import CpuDevice
    from coordgen_rs.runtime.ort_session import OrtSession
    from coordgen_rs.runtime.session import Session
    from coordgen_rs.store.history.corpus import Corpus
    from coordgen_rs.store.history.documents import Document
    from coordgen_rs.store.history.requests import History
    from coordgen_rs.store.history.texts import AddResult
    from coordgen_rs.store.prefixes.pool import PrefixPool
    from coordgen_rs.text.tokenizer import Tokenizer

    __version__: str

__all__ = [
    "Accepted",
    "AddResult",
    "Answer",
    "AsyncStream",
    "BatchStats",
    "Bundle",
    "ChatOptions",
    "CoordgenError",
    "Corpus",
    "CpuDevice",
    "Dialogue",
    "Document",
    "DraftMethod",
    "DraftModel",
    "DraftProposer",
    "DraftSource",
    "Drafter",
    "DynamicTree",
    "EnergyMeter",
    "Gbnf",
    "History",
    "HostDrafter",
    "JsonSchema",
    "Lark",
    "LookupTable",
    "Matcher",
    "Model",
    "ModelDrafter",
    "OpenOptions",
    "OrtSession",
    "PrefixPool",
    "Profile",
    "PromptLookup",
    "Regex",
    "RequestOptions",
    "Sampling",
    "SeenTokens",
    "Session",
    "SessionOptions",
    "SharedHistory",
    "Span",
    "Stats",
    "Step",
    "StepDelta",
    "StepInputs",
    "Stream",
    "SuffixAutomaton",
    "TextDelta",
    "TokenLogprob",
    "Tokenizer",
    "TopLogprob",
    "Vocabulary",
    "draft_methods",
    "draft_sources",
    "generate",
    "make_drafter",
    "open_bundle",
    "open_session",
    "plain",
    "strategies",
]

_MODULES = {
    "Accepted": "_core",
    "AddResult": "store.history.texts",
    "Answer": "model.answer",
    "AsyncStream": "model.stream",
    "BatchStats": "runtime.batch",
    "Bundle": "bundle.directory",
    "ChatOptions": "model.options",
    "CoordgenError": "errors",
    "Corpus": "store.history.corpus",
    "CpuDevice": "runtime.cpu",
    "Dialogue": "model.dialogue",
    "Document": "store.history.documents",
    "DraftMethod": "_core",
    "DraftModel": "drafting.draft_model",
    "DraftProposer": "drafting.proposer",
    "DraftSource": "_core",
    "Drafter": "_core",
    "DynamicTree": "_core",
    "EnergyMeter": "lab.energy",
    "Gbnf": "grammar.kinds",
    "History": "store.history.requests",
    "HostDrafter": "_core",
    "JsonSchema": "grammar.kinds",
    "Lark": "grammar.kinds",
    "LookupTable": "_core",
    "Matcher": "grammar.matcher",
    "Model": "model",
    "ModelDrafter": "drafting.draft_model",
    "OpenOptions": "loading.options",
    "OrtSession": "runtime.ort_session",
    "PrefixPool": "store.prefixes.pool",
    "Profile": "loading.profile",
    "PromptLookup": "_core",
    "Regex": "grammar.kinds",
    "RequestOptions": "model.options",
    "Sampling": "_core",
    "SeenTokens": "_core",
    "Session": "runtime.session",
    "SessionOptions": "loading.options",
    "SharedHistory": "_core",
    "Span": "model.answer",
    "Stats": "generation.stats",
    "Step": "generation.step",
    "StepDelta": "model.answer",
    "StepInputs": "_core",
    "Stream": "model.stream",
    "SuffixAutomaton": "_core",
    "TextDelta": "model.answer",
    "TokenLogprob": "generation.logprobs",
    "Tokenizer": "text.tokenizer",
    "TopLogprob": "generation.logprobs",
    "Vocabulary": "grammar.vocabulary",
    "draft_methods": "_core",
    "draft_sources": "_core",
    "generate": "generation.loop",
    "make_drafter": "drafting.drafter",
    "open_bundle": "loading.directory",
    "open_session": "loading.session",
    "plain": "generation.loop",
    "strategies": "_core",
}
"""Where each name comes from."""

_RENAMED = {
    "Added": "AddResult",
    "Alternative": "TopLogprob",
    "Drafting": "DraftProposer",
    "Gain": "StepDelta",
    "Piece": "TextDelta",
    "RunCounts": "BatchStats",
}
"""What names of earlier versions are called now; they go with the version after 0.3."""


if not TYPE_CHECKING:  # which would take any name for one that is there

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module(f"{__name__}.errors.extras").package_version()
        if name in _RENAMED:
            new = _RENAMED[name]
            message = f"{__name__}.{name} is now {__name__}.{new}"
            import_module("warnings").warn(message, DeprecationWarning, stacklevel=2)
            return getattr(import_module(__name__), new)
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
