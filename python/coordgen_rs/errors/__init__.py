"""All errors, with one base class: those of the Rust core, and those of files and checkpoints."""

from coordgen_rs._core import (
    BlockLoadError,
    CallOrderError,
    CoordgenError,
    EmptyPromptError,
    ForkedError,
    GrammarError,
    HistoryIndexError,
    InvalidDraftError,
    LookupTableError,
    MemoryBudgetError,
    NonFiniteLogitsError,
    OptionError,
    ShapeError,
    TokenOutOfRangeError,
)


class PromptTooLongError(CoordgenError):
    """The prompt does not fit into the cache."""


class BundleError(CoordgenError):
    """A bundle is missing, incomplete, or of another schema version."""


class BundleDamagedError(BundleError):
    """A file of a bundle differs in size or SHA-256 from its manifest; the message names it."""


class ChatTemplateError(CoordgenError):
    """A chat template is missing or malformed, refuses the messages, or does not end."""


class DraftModelError(CoordgenError):
    """A draft model has a different tokenizer or vocabulary from its target."""


class CheckpointError(CoordgenError):
    """A checkpoint cannot be read: a file or tensor is missing, damaged or of the wrong shape."""


class UnsupportedModelError(CheckpointError):
    """A checkpoint has an architecture or option that the exporter does not support."""


class ExportError(CoordgenError):
    """A bundle cannot be written: the target exists, or the disk is full."""


class UnsupportedGrammarError(GrammarError):
    """A grammar cannot be followed: the message names what of it. Nothing was generated."""


class ProfileError(CoordgenError):
    """A profile is not valid JSON, lacks a field, or has an impossible value."""


class ProviderError(CoordgenError):
    """A provider of ONNX Runtime is not installed, cannot run here, or rejects a graph."""


class DeviceLostError(ProviderError):
    """The device failed during a run; the session is closed."""


class EngineError(CoordgenError):
    """Another engine refused or failed a run; the message says what it said."""


class SessionClosedError(CoordgenError):
    """The session or model is closed."""


class HistoryError(CoordgenError):
    """A history cannot be opened or read, or lines to import are malformed."""


class HistoryMismatchError(HistoryError):
    """A history was written with another tokenizer or vocabulary."""


class HistoryBusyError(HistoryError):
    """Others are adding or removing documents of the history, one at a time."""


class StaleProfileWarning(UserWarning):
    """A profile is of another bundle, machine or version; plans based on it may be worse."""


class LeftoverWarning(UserWarning):
    """What a killed run had left unfinished was removed; the message names it."""


class HistoryWarning(UserWarning):
    """A history cannot be written, its index had to be rebuilt, or other requests were evicted.

    Generation continues.
    """


class PrefixStoreWarning(UserWarning):
    """Prefixes cannot be kept on disk; answers are the same, and their prompts are computed."""


__all__ = [
    "BlockLoadError",
    "BundleDamagedError",
    "BundleError",
    "CallOrderError",
    "ChatTemplateError",
    "CheckpointError",
    "CoordgenError",
    "DeviceLostError",
    "DraftModelError",
    "EmptyPromptError",
    "EngineError",
    "ExportError",
    "ForkedError",
    "GrammarError",
    "HistoryBusyError",
    "HistoryError",
    "HistoryIndexError",
    "HistoryMismatchError",
    "HistoryWarning",
    "InvalidDraftError",
    "LeftoverWarning",
    "LookupTableError",
    "MemoryBudgetError",
    "NonFiniteLogitsError",
    "OptionError",
    "PrefixStoreWarning",
    "ProfileError",
    "PromptTooLongError",
    "ProviderError",
    "SessionClosedError",
    "ShapeError",
    "StaleProfileWarning",
    "TokenOutOfRangeError",
    "UnsupportedGrammarError",
    "UnsupportedModelError",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # of the core's too: here they are imported from
