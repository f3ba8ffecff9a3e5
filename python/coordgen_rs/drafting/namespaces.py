"""Drafters by namespace: no one drafts from what another has learned or remembers.

In: how a model drafts, and the name of a namespace. Out: the drafter of that namespace, and its
history. Answers are the same whichever drafts; how fast they come is not.
"""

from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from coordgen_rs._core import PLAIN, Drafter, LookupTable, draft_method, draft_methods
from coordgen_rs.drafting.drafter import Drafting, chosen_commit, make_drafter
from coordgen_rs.errors import arguments
from coordgen_rs.loading.options import OpenOptions
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.threads.owner import Owner

if TYPE_CHECKING:
    from coordgen_rs.drafting.draft_model import DraftModel
    from coordgen_rs.store.history.requests import History

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


@dataclass(eq=False)
class Kept:
    """What is kept for one namespace.

    Attributes:
        drafters: By session; all share what they learn and remember.
        history: Same as in `Memory`.
        table: The look-up table that they read and update; None for a new one.
        users: Requests that draft from it; who is over does no longer.
    """

    drafters: dict[int, Drafting]
    history: "History | None"
    table: LookupTable | None
    users: list[Owner]

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
        self._kept: OrderedDict[str, Kept] = OrderedDict()  # the latest last
        self._dropped: list[Kept] = []  # which requests may still draft from
        self._right = RLock()  # to change the two: requests begin in several threads
        method = None
        if isinstance(options["draft"], str):
            choices = [*(method.name for method in draft_methods()), PLAIN]
            method = draft_method(arguments.one_of("draft", options["draft"], choices))
        self._closing = ExitStack()
        self._model = (
            None if options["draft_model"] is None else self._opened(options["draft_model"])
        )
        takes_mtp = "draft-model" in options["draft"] if method is None else method.takes_mtp
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
        return self.memory_of(self.used(namespace, Owner(is_over=True)), session)

    def used(self, namespace: str, user: Owner) -> Kept:
        """What is kept for a namespace, while a request uses it: its history stays open until then.

        All that is read from disk is read here.

        Args:
            namespace: Same as in `of`.
            user: The request.

        Raises:
            HistoryError, HistoryMismatchError, LookupTableError: Same as in `of`.
        """
        with self._right:
            found = self._kept.get(namespace)
            if found is not None and not self._options["remember"]:
                self._dropped.append(found)
                found = None
            if found is None:
                found = self._kept[namespace] = self._begun(namespace)
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

    def memory_of(self, kept: Kept, session: Session | None = None) -> Memory:
        """The same as `of`, of what is `used`; raises OptionError."""
        session = session or self._session
        if id(session) not in kept.drafters:  # sessions live as long as their target
            kept.drafters[id(session)] = self._drafter(kept, session)
        return Memory(kept.drafters[id(session)], kept.history)

    @property
    def reads_files(self) -> bool:
        """Whether `used` may read from disk."""
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
        self._closing.close()

    def _opened(self, path: Path | str) -> "DraftModel":
        from coordgen_rs.drafting.draft_model import DraftModel

        model = DraftModel.open(path, self._session)
        self._closing.callback(model.close)
        return model

    def _mtp(self) -> "DraftModel | None":
        """The target's own head for further tokens, which all namespaces then share."""
        if not self._session.bundle.manifest.has_draft_head:
            return None
        from coordgen_rs.drafting.draft_model import DraftModel

        return DraftModel.mtp_of(self._session)

    def _begun(self, namespace: str) -> Kept:
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
        return Kept({}, history, table, [])

    def _drafter(self, kept: Kept, session: Session) -> Drafting:
        options = self._options
        with ExitStack() as opened:  # closes what was opened, should something fail
            if not kept.drafters:
                opened.callback(kept.close)
            drafter = make_drafter(
                session,
                options["draft"],
                self.commit,
                kept.history,
                kept.table,
                self._model,
                beside=next((it for it in kept.drafters.values() if isinstance(it, Drafter)), None),
                earlier_requests=options["remember"] and options["history"] is None,
            )
            opened.pop_all()
        return drafter
