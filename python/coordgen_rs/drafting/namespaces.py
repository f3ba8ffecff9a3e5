"""Drafters by namespace: no one drafts from what another has learned or remembers.

In: how a model drafts, and the name of a namespace. Out: the drafter of that namespace, and its
history. Answers are the same whichever drafts; how fast they come is not.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordgen_rs._core import Drafter, LookupTable, draft_method
from coordgen_rs.drafting.drafter import Drafting, chosen_commit, make_drafter
from coordgen_rs.drafting.options import DraftingOptions
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.target.session import Session

if TYPE_CHECKING:
    from coordgen_rs.drafting.draft_model import DraftModel
    from coordgen_rs.history.requests import History

MOST_NAMESPACES = 64
"""Drafters that are kept at a time; each remembers up to half a million tokens, 24 to 26 MB."""


class Memory(NamedTuple):
    """What drafts for one namespace.

    Attributes:
        drafter: Made for the session that asked.
        history: Where its requests are kept on disk; None if they are not.
    """

    drafter: Drafting
    history: "History | None"


@dataclass
class _Kept:
    """What is kept for one namespace.

    Attributes:
        drafters: By session; all share what they learn and remember.
        history: Same as in `Memory`.
        table: The look-up table that they read and update; None for a new one.
        num_users: Requests that draft from it now.
        is_dropped: Whether it is closed when the last of them ends.
    """

    drafters: dict[int, Drafting]
    history: "History | None"
    table: LookupTable | None
    num_users: int = 0
    is_dropped: bool = False

    def close(self) -> None:
        """Close the history, when nobody uses it any more."""
        self.is_dropped = True
        if self.history is not None and self.num_users == 0:
            self.history.close()


class Drafters:
    """The drafters of one target; namespaces least recently used go first.

    Args:
        session: The target, whose sequences may have drafters of their own.
        options: How it drafts. Each namespace begins with a copy of the look-up table; all share
            the draft model's cache.

    Attributes:
        commit: How drafts are committed (`chosen_commit`).

    Raises:
        OptionError: Same as in `make_drafter`.
        DraftModelError: The draft model has another tokenizer or vocabulary.
        BundleError: The draft model cannot be used.
    """

    def __init__(self, session: OrtSession, options: DraftingOptions) -> None:
        self._session, self._options = session, options
        self.commit = chosen_commit(session, options.commit)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the latest last
        method = draft_method(options.draft) if isinstance(options.draft, str) else None
        self._closing = ExitStack()
        self._model = None if options.draft_model is None else self._opened(options.draft_model)
        takes_mtp = "draft-model" in options.draft if method is None else method.takes_mtp
        if self._model is None and takes_mtp:
            self._model = self._mtp()
        if self._model is not None and method is not None:
            # Once: two of them over one cache would disturb each other.
            self._model = self._model.shaped(method)

    @property
    def has_model(self) -> bool:
        """Whether a draft model, or the target's own head for further tokens, drafts, too."""
        return self._model is not None

    def of(self, namespace: str, session: Session | None = None) -> Memory:
        """What drafts for a namespace.

        Args:
            namespace: Its name.
            session: The sequence of the target that runs the request; None for the target itself.

        Raises:
            HistoryError, HistoryMismatchError: The history cannot be used.
            LookupTableError: The look-up table cannot be used.
            OptionError: Same as in `make_drafter`.
        """
        return self._of(self._kept_for(namespace), session)

    @contextmanager
    def used(self, namespace: str, session: Session | None = None) -> Iterator[Memory]:
        """The same as `of`, while a request uses it: its history stays open until then."""
        kept = self._kept_for(namespace)
        kept.num_users += 1
        try:
            yield self._of(kept, session)
        finally:
            kept.num_users -= 1
            if kept.is_dropped:
                kept.close()

    def _kept_for(self, namespace: str) -> _Kept:
        found = self._kept.pop(namespace, None)
        if found is not None and not self._options.memory.remember:
            found.close()
            found = None
        found = found or self._begun(namespace)
        self._kept[namespace] = found
        idle = [name for name, kept in self._kept.items() if kept.num_users == 0]
        for name in idle[: max(0, len(self._kept) - MOST_NAMESPACES)]:
            self._kept.pop(name).close()
        return found

    def _of(self, kept: _Kept, session: Session | None) -> Memory:
        session = session or self._session
        if id(session) not in kept.drafters:  # sessions live as long as their target
            kept.drafters[id(session)] = self._drafter(kept, session)
        return Memory(kept.drafters[id(session)], kept.history)

    @property
    def history(self) -> Path | str | None:
        """The directory in which requests are kept, and documents to draft from."""
        return self._options.memory.history

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

    def _mtp(self) -> "DraftModel | None":
        """The target's own head for further tokens, which all namespaces then share."""
        if not self._session.bundle.manifest.has_own_head:
            return None
        from coordgen_rs.drafting.draft_model import DraftModel

        return DraftModel.mtp_of(self._session)

    def _begun(self, namespace: str) -> _Kept:
        """What a namespace's drafters share."""
        bundle, options, table, history = self._session.bundle, self._options, None, None
        memory = options.memory
        if options.lookup_table is not None:
            from coordgen_rs.drafting.warm_up import open_table

            table = open_table(Path(options.lookup_table), bundle)
        if memory.history is not None or memory.fleet_history is not None:
            from coordgen_rs.history.requests import History

            history = History.of(
                memory.history,
                bundle,
                namespace=namespace,
                max_tokens=memory.history_max_tokens,
                fleet=memory.fleet_history,
                fleet_namespace=memory.fleet_namespace,
                keep=memory.history is not None,
            )
        return _Kept({}, history, table)

    def _drafter(self, kept: _Kept, session: Session) -> Drafting:
        options, memory = self._options, self._options.memory
        with ExitStack() as opened:  # closes what was opened, should something fail
            if not kept.drafters:
                opened.callback(kept.close)
            drafter = make_drafter(
                session,
                options.draft,
                self.commit,
                kept.history,
                kept.table,
                self._model,
                beside=next((it for it in kept.drafters.values() if isinstance(it, Drafter)), None),
                earlier_requests=memory.remember and memory.history is None,
            )
            opened.pop_all()
        return drafter
