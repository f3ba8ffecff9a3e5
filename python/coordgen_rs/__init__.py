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

_NAMES = {
    "_core": (
        "Accepted DraftMethod DraftSource Drafter DynamicTree HostDrafter LookupTable "
        "PromptLookup Sampling SeenTokens SharedHistory StepInputs SuffixAutomaton "
        "draft_methods draft_sources strategies"
    ),
    "bundle.directory": "Bundle",
    "generation.drafting.draft_model": "DraftModel ModelDrafter",
    "generation.drafting.drafter": "make_drafter",
    "generation.drafting.proposer": "DraftProposer",
    "errors": "CoordgenError",
    "generation.loop": "generate plain",
    "generation.stats": "Stats",
    "generation.step": "Step TokenLogprob TopLogprob",
    "text.grammar.kinds": "Gbnf JsonSchema Lark Regex",
    "text.grammar.matcher": "Matcher",
    "text.grammar.vocabulary": "Vocabulary",
    "lab.energy": "EnergyMeter",
    "loading.directory": "open_bundle",
    "loading.options": "OpenOptions SessionOptions",
    "loading.profile": "Profile",
    "loading.session": "open_session",
    "model": "Model",
    "model.answer": "Answer Span StepDelta TextDelta",
    "model.dialogue": "Dialogue",
    "model.options": "ChatOptions RequestOptions",
    "model.stream": "AsyncStream Stream",
    "runtime.batch": "BatchStats",
    "runtime.cpu": "CpuDevice",
    "runtime.ort_session": "OrtSession",
    "runtime.session": "Session",
    "store.history.corpus": "Corpus",
    "store.history.requests": "History",
    "store.history.texts": "AddResult Document",
    "store.prefixes.pool": "PrefixPool",
    "text.tokenizer": "Tokenizer",
}
"""What each module gives; `__init__.pyi` says the same to type checkers."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)

_RENAMED = {
    "Added": "AddResult",
    "Alternative": "TopLogprob",
    "Drafting": "DraftProposer",
    "Gain": "StepDelta",
    "Piece": "TextDelta",
    "RunCounts": "BatchStats",
}
"""What names of earlier versions are called now; they go with the version after 0.3."""


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
