"""Lossless speculative generation on fixed-shape graphs.

Lookups draft what may come next, one run of the target verifies a whole tree of it, and exactly
the tokens that plain greedy decoding would have said come out, sooner:

    from coordgen_rs import Model

    with Model.open("bundle") as model:
        for piece in model.stream("Once upon a time", max_new_tokens=64):
            print(piece, end="", flush=True)

`generate` is the engineers' door, tokens in, tokens out, and `plain` the baseline that it equals
token for token. `coordgen export` makes bundles.
"""

from coordgen_rs._core import (
    Accepted,
    Drafter,
    DynamicTree,
    LookupTable,
    PromptLookup,
    Sampling,
    StepInputs,
    SuffixAutomaton,
)
from coordgen_rs.answer import Answer, Piece, Span
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.draft_model import DraftModel
from coordgen_rs.drafting import make_drafter
from coordgen_rs.energy.meter import EnergyMeter
from coordgen_rs.generate import Step, generate, plain
from coordgen_rs.history.requests import History
from coordgen_rs.model import Model
from coordgen_rs.stats import Stats
from coordgen_rs.target.open import open_session
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.target.session import Session
from coordgen_rs.text.tokenizer import Tokenizer

__all__ = [
    "Accepted",
    "Answer",
    "Bundle",
    "DraftModel",
    "Drafter",
    "DynamicTree",
    "EnergyMeter",
    "History",
    "LookupTable",
    "Model",
    "OrtSession",
    "Piece",
    "PromptLookup",
    "Sampling",
    "Session",
    "Span",
    "Stats",
    "Step",
    "StepInputs",
    "SuffixAutomaton",
    "Tokenizer",
    "generate",
    "make_drafter",
    "open_session",
    "plain",
]
