"""How a model drafts, and what it remembers to draft from: records, checked where they are made.

In: what a user asks for. Out: a `DraftingOptions` with its `MemoryOptions`, passed on whole. What
depends on the target is checked by `make_drafter`, and what is wrong with a file where it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordgen_rs._core import PLAIN
from coordgen_rs.errors import OptionError, arguments

COMMITS = ("auto", "canonical", "compact")
"""Ways to commit drafts; `auto` chooses by what was measured."""


def _check_paths(**paths: Path | str | None) -> None:
    """Check paths that may be left out; raises OptionError."""
    for name, given in paths.items():
        if given is not None:
            arguments.path(name, given)


@dataclass(frozen=True)
class MemoryOptions:
    """What a model keeps of its requests; fields are the same as in `Model.open`.

    Raises:
        OptionError: One is of a wrong type or out of range, or two exclude each other.
    """

    remember: bool = True
    namespace: str | None = None
    history: Path | str | None = None
    history_max_tokens: int | None = None
    fleet_history: Path | str | None = None
    fleet_namespace: str | None = None
    prefix_memory: int = 0
    prefix_store: Path | str | None = None
    prefix_store_size: int | None = None

    def __post_init__(self) -> None:
        arguments.flag("remember", self.remember)
        for name in ("namespace", "fleet_namespace"):
            if getattr(self, name) is not None:
                arguments.text(name, getattr(self, name), may_be_empty=False)
        _check_paths(
            history=self.history,
            fleet_history=self.fleet_history,
            prefix_store=self.prefix_store,
        )
        arguments.count("prefix_memory", self.prefix_memory, least=0)
        if self.fleet_history is None and self.fleet_namespace is not None:
            raise OptionError("a fleet_namespace needs a fleet_history, but there is none")
        if self.history_max_tokens is not None:
            if self.history is None:
                raise OptionError("history_max_tokens needs a history, but there is none")
            arguments.count("history_max_tokens", self.history_max_tokens)
        if self.prefix_store_size is not None:
            if self.prefix_store is None:
                raise OptionError("prefix_store_size needs a prefix_store, but there is none")
            arguments.count("prefix_store_size", self.prefix_store_size)
        keeping = {
            "a history": self.history is not None,
            "prefix_memory": self.prefix_memory,
            "a prefix_store": self.prefix_store is not None,
        }
        for what, keeps in keeping.items():
            if keeps and not self.remember:
                raise OptionError(f"{what} remembers requests, but remember is False")


@dataclass(frozen=True)
class DraftingOptions:
    """How a model drafts; fields are the same as in `Model.open`.

    Attributes:
        memory: What it drafts from of earlier requests.

    Raises:
        OptionError: One is of a wrong type, unknown, or would be ignored.
    """

    draft: str | Sequence[str] = "auto"
    commit: str = "auto"
    draft_model: Path | str | None = None
    lookup_table: Path | str | None = None
    memory: MemoryOptions = MemoryOptions()

    def __post_init__(self) -> None:
        if isinstance(self.draft, str):
            arguments.text("draft", self.draft)
        else:
            arguments.names("draft", self.draft)
            if not self.draft:
                raise OptionError(f"draft names no source; without drafts it is {PLAIN!r}")
        arguments.one_of("commit", self.commit, COMMITS)
        _check_paths(draft_model=self.draft_model, lookup_table=self.lookup_table)
        drafted_from = {
            "history": self.memory.history,
            "fleet's history": self.memory.fleet_history,
            "draft model": self.draft_model,
            "look-up table": self.lookup_table,
        }
        for what, given in drafted_from.items():
            if given is not None and self.draft == PLAIN:
                raise OptionError(f"a {what} needs drafts, but draft is {PLAIN!r}")
