"""Drafters by namespace: what one has learned or remembers of its requests, no other drafts from.

In: how a model drafts, and the name of a namespace. Out: the drafter of that namespace, and its
history. Answers are the same whichever drafts; how fast they come is not.
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordgen_rs._core import draft_method
from coordgen_rs.drafting.drafter import Drafting, chosen_commit, make_drafter
from coordgen_rs.target.ort_session import OrtSession

if TYPE_CHECKING:
    from coordgen_rs.drafting.draft_model import DraftModel
    from coordgen_rs.history.requests import History

MOST_NAMESPACES = 64
"""Drafters that are kept at a time; each remembers up to half a million tokens, 24 to 26 MB."""


class Memory(NamedTuple):
    """What drafts for one namespace.

    Attributes:
        drafter: Made for the session.
        history: Where its requests are kept on disk; None if they are not.
    """

    drafter: Drafting
    history: "History | None"

    def close(self) -> None:
        """Close the history."""
        if self.history is not None:
            self.history.close()


class Drafters:
    """The drafters of one session; those least recently used go first.

    Args:
        session: The target.
        draft: Same as in `make_drafter`.
        commit: Same as in `make_drafter`.
        remember: Whether a drafter lives longer than its request.
        history: A directory of finished requests; None keeps none on disk.
        history_max_tokens: Same as in `History`.
        fleet_history: A directory of a fleet's indexes; None for none.
        fleet_namespace: Whose index of the fleet all draft from; None for each its own.
        lookup_table: A file written by `coordgen warm-up`; each namespace begins with a copy.
        draft_model: The directory of a smaller bundle. All namespaces share its cache.

    Attributes:
        commit: How drafts are committed (`chosen_commit`).

    Raises:
        OptionError: Same as in `make_drafter`.
        DraftModelError: The draft model has another tokenizer or vocabulary.
        BundleError: The draft model cannot be used.
    """

    def __init__(
        self,
        session: OrtSession,
        draft: str | Sequence[str] = "auto",
        commit: str = "canonical",
        *,
        remember: bool = True,
        history: Path | str | None = None,
        history_max_tokens: int | None = None,
        fleet_history: Path | str | None = None,
        fleet_namespace: str | None = None,
        lookup_table: Path | str | None = None,
        draft_model: Path | str | None = None,
    ) -> None:
        self._session, self._draft = session, draft
        self.commit = chosen_commit(session, commit)
        self._remember, self._directory = remember, history
        self._history_max_tokens, self._lookup_table = history_max_tokens, lookup_table
        self._fleet, self._fleet_namespace = fleet_history, fleet_namespace
        self._kept: OrderedDict[str, Memory] = OrderedDict()  # the latest last
        method = draft_method(draft) if isinstance(draft, str) else None
        self._closing = ExitStack()
        self._model = None if draft_model is None else self._opened(draft_model)
        if self._model is not None and method is not None:
            # Once: two of them over one cache would disturb each other.
            self._model = self._model.shaped(method)

    def of(self, namespace: str) -> Memory:
        """What drafts for a namespace.

        Raises:
            HistoryError, HistoryMismatchError: The history cannot be used.
            LookupTableError: The look-up table cannot be used.
            OptionError: Same as in `make_drafter`.
        """
        found = self._kept.pop(namespace, None)
        if found is not None and not self._remember:
            found.close()
            found = None
        found = found or self._made(namespace)
        self._kept[namespace] = found
        while len(self._kept) > MOST_NAMESPACES:
            self._kept.popitem(last=False)[1].close()
        return found

    def close(self) -> None:
        """Close all histories and the draft model."""
        while self._kept:
            self._kept.popitem()[1].close()
        self._closing.close()

    def _opened(self, path: Path | str) -> "DraftModel":
        from coordgen_rs.drafting.draft_model import DraftModel

        model = DraftModel.open(path, self._session)
        self._closing.callback(model.close)
        return model

    def _made(self, namespace: str) -> Memory:
        session, table, kept = self._session, None, None
        with ExitStack() as opened:  # closes what was opened, should something fail
            if self._lookup_table is not None:
                from coordgen_rs.drafting.warm_up import open_table

                table = open_table(Path(self._lookup_table), session.bundle)
            if self._directory is not None or self._fleet is not None:
                from coordgen_rs.history.requests import History

                kept = History.of(
                    self._directory,
                    session.bundle,
                    namespace=namespace,
                    max_tokens=self._history_max_tokens,
                    fleet=self._fleet,
                    fleet_namespace=self._fleet_namespace,
                    keep=self._directory is not None,
                )
                opened.callback(kept.close)
            drafter = make_drafter(
                session,
                self._draft,
                self.commit,
                kept,
                table,
                self._model,
                earlier_requests=self._remember and self._directory is None,
            )
            opened.pop_all()
        return Memory(drafter, kept)
