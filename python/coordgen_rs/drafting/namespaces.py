"""Drafters by namespace: no one drafts from what another has learned or remembers.

In: how a model drafts, and the name of a namespace. Out: the drafter of that namespace, and its
history. Answers are the same whichever drafts; how fast they come is not.
"""

from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from coordgen_rs._core import PLAIN, Drafter, LookupTable, draft_method, draft_methods
from coordgen_rs.drafting.drafter import chosen_commit, make_drafter, own_head_of
from coordgen_rs.drafting.proposer import DraftProposer
from coordgen_rs.errors import arguments
from coordgen_rs.loading.options import OpenOptions
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.background import Lease

if TYPE_CHECKING:
    from coordgen_rs.store.history.requests import History

MOST_NAMESPACES = 64
"""Drafters that are kept at a time; each remembers up to half a million tokens, 24 to 26 MB."""


@dataclass(eq=False)
class DraftState:
    """What drafts for one namespace, and is kept for its next requests.

    Attributes:
        drafters: By session; all share what they learn and remember.
        history: Where its requests are kept on disk; None if they are not.
        table: The look-up table that they read and update; None for a new one.
        users: Requests that draft from it; who is over does no longer.
    """

    drafters: dict[int, DraftProposer]
    history: "History | None"
    table: LookupTable | None
    users: list[Lease]

    @property
    def is_used(self) -> bool:
        """Whether a request drafts from it now."""
        self.users[:] = [it for it in self.users if not it.is_over]
        return bool(self.users)

    def close(self) -> None:
        """Close the history."""
        if self.history is not None:
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

    def __init__(self, session: OrtSession, options: OpenOptions) -> None:
        self._session, self._options = session, options
        self.commit = chosen_commit(session, options["commit"])
        self._kept: OrderedDict[str, DraftState] = OrderedDict()  # the latest last
        self._dropped: list[DraftState] = []  # which requests may still draft from
        self._right = RLock()  # to change the two: requests begin in several threads
        draft, method, self._model = options["draft"], None, None
        if isinstance(draft, str):
            choices = [*(method.name for method in draft_methods()), PLAIN]
            method = draft_method(arguments.one_of("draft", draft, choices))
        if options["draft_model"] is not None:
            from coordgen_rs.drafting.draft_model import DraftModel

            self._model = DraftModel.open(options["draft_model"], session)
        elif "draft-model" in draft if method is None else method.takes_mtp:
            self._model = own_head_of(session)  # which all namespaces share
        self._opened_model = None if options["draft_model"] is None else self._model
        if self._model is not None and method is not None:
            # Once: two of them over one cache would disturb each other.
            self._model = self._model.shaped(method)

    @property
    def has_model(self) -> bool:
        """Whether a draft model, or the target's own head for further tokens, drafts, too."""
        return self._model is not None

    def acquire(self, namespace: str, user: Lease | None = None) -> DraftState:
        """What drafts for a namespace, while a request uses it: its history stays open until then.

        All that is read from disk is read here.

        Args:
            namespace: Its name.
            user: The request; None for a look alone.

        Raises:
            HistoryError, HistoryMismatchError: The history cannot be used.
            LookupTableError: The look-up table cannot be used.
        """
        with self._right:
            found = self._kept.get(namespace)
            if found is not None and not self._options["remember"]:
                self._dropped.append(found)
                found = None
            if found is None:
                found = self._kept[namespace] = self._begun(namespace)
            if user is not None:
                found.users.append(user)
            self._kept.move_to_end(namespace)
            idle = [name for name, kept in self._kept.items() if not kept.is_used]
            for name in idle[: max(0, len(self._kept) - MOST_NAMESPACES)]:
                self._dropped.append(self._kept[name])
                del self._kept[name]
            for kept in [it for it in self._dropped if not it.is_used]:
                if kept not in self._kept.values():  # an interrupt left it there
                    kept.close()
                self._dropped.remove(kept)
        return found

    def drafter_of(self, state: DraftState, session: Session | None = None) -> DraftProposer:
        """The drafter of a namespace for a sequence of the target, or for the target itself.

        Raises:
            OptionError: Same as in `make_drafter`.
        """
        session, drafters, options = session or self._session, state.drafters, self._options
        if id(session) not in drafters:  # sessions live as long as their target
            with ExitStack() as opened:  # closes what was opened, should something fail
                if not drafters:
                    opened.callback(state.close)
                drafters[id(session)] = make_drafter(
                    session,
                    options["draft"],
                    self.commit,
                    state.history,
                    state.table,
                    self._model,
                    beside=next((it for it in drafters.values() if isinstance(it, Drafter)), None),
                    earlier_requests=options["remember"] and options["history"] is None,
                )
                opened.pop_all()
        return drafters[id(session)]

    @property
    def reads_files(self) -> bool:
        """Whether `acquire` may read from disk."""
        options = self._options
        files = (options["history"], options["fleet_history"], options["lookup_table"])
        return any(it is not None for it in files)

    @property
    def history(self) -> Path | str | None:
        """The directory in which requests are kept, and documents to draft from."""
        return self._options["history"]

    def close(self) -> None:
        """Close all histories and the draft model."""
        for kept in [*self._dropped, *self._kept.values()]:
            kept.close()
        if self._opened_model is not None:
            self._opened_model.close()

    def _begun(self, namespace: str) -> DraftState:
        """What a namespace's drafters share."""
        bundle, options, table, history = self._session.bundle, self._options, None, None
        if options["lookup_table"] is not None:
            from coordgen_rs.drafting.warm_up import open_table

            table = open_table(Path(options["lookup_table"]), bundle)
        if options["history"] is not None or options["fleet_history"] is not None:
            from coordgen_rs.store.history.requests import History

            history = History.of(
                options["history"],
                bundle,
                namespace=namespace,
                max_tokens=options["history_max_tokens"],
                fleet=options["fleet_history"],
                fleet_namespace=options["fleet_namespace"],
                keep=options["history"] is not None,
            )
        return DraftState({}, history, table, [])
