"""What `coordgen_rs` exports, for type checkers; a test holds that `__init__.py` gives the same."""

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
from coordgen_rs.errors import CoordgenError
from coordgen_rs.generation.drafting.draft_model import DraftModel, ModelDrafter
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.drafting.proposer import DraftProposer
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import Step, TokenLogprob, TopLogprob
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
from coordgen_rs.store.history.requests import History
from coordgen_rs.store.history.texts import AddResult, Document
from coordgen_rs.store.prefixes.pool import PrefixPool
from coordgen_rs.text.grammar.kinds import Gbnf, JsonSchema, Lark, Regex
from coordgen_rs.text.grammar.matcher import Matcher
from coordgen_rs.text.grammar.vocabulary import Vocabulary
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
