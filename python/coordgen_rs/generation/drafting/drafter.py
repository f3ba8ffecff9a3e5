"""What drafts for a target: by the names of the core's registry, and by namespace.

In: a session, the name of a method or of sources, and how a model is opened. Out: a drafter for
`generate`; or one for each namespace with its history, so that none drafts from what another has
learned or remembers: answers are the same whichever drafts, how fast they come is not. Which
sources a method has, and when, is decided in the core (`src/draft/methods`).
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import (
    PLAIN,
    Drafter,
    DraftMethod,
    DynamicTree,
    LookupTable,
    PhraseTable,
    draft_method,
    draft_methods,
)
from coordgen_rs.errors import BundleError, OptionError, arguments
from coordgen_rs.generation.drafting.proposer import DraftProposer
from coordgen_rs.runtime.session import COMMITS, Session, check_session

if TYPE_CHECKING:
    from coordgen_rs.generation.drafting.draft_model import DraftModel, ModelDrafter
    from coordgen_rs.loading.options import OpenOptions
    from coordgen_rs.runtime.ort_session import OrtSession
    from coordgen_rs.store.background import Lease
    from coordgen_rs.store.history.nearest import NearestNamespaces
    from coordgen_rs.store.history.requests import History


class MethodNames(tuple[str, ...]):
    """Names of methods; options may follow a name that is among them: "diaa:budget=60"."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.partition(":")[0] if isinstance(name, str) else name)


METHODS = MethodNames((*(method.name for method in draft_methods()), PLAIN))
"""All methods, and plain decoding."""

READS_TABLE = ("lookup-table", "diaa-table")
"""The sources that draw on the look-up table that is given."""

_OF_TOKENIZER = ("common-phrases", "respelling")
"""The sources that draw on a table which is made from the tokenizer."""

MOST_NAMESPACES = 64
"""Drafters that are kept at a time; each remembers up to half a million tokens, 24 to 26 MB."""


def make_drafter(
    session: Session,
    draft: str | Sequence[str] = "auto",
    commit: str = "auto",
    history: "History | None" = None,
    lookup_table: LookupTable | None = None,
    draft_model: "DraftModel | None" = None,
    *,
    beside: Drafter | None = None,
    earlier_requests: bool | None = None,
    free_rows: bool | None = None,
) -> "Drafter | ModelDrafter":
    """A drafter for `session`.

    Args:
        session: The target; its measured step costs decide how wide a draft pays. Without a bundle
            whose tokenizer can be read, no method drafts from "common-phrases"
            or "respelling".
        draft: The name of a method (`_core.draft_methods`), or the names of any sources
            (`_core.draft_sources`). "auto" has calibration and the look-up table where rows are
            free: elsewhere, running the head over the prompt costs more than calibration gains
            (`coordgen generate --sources` shows both: `prefill_s`, `tokens_per_step`).
        commit: "canonical" (exact on every provider), "compact" (exact where a row's bits depend
            on its path alone; a session that does not allow it uses canonical), or "auto": compact
            where it is among the session's `exact_commits`, as it usually is on CPU.
        history: Finished requests that are also drafted from.
        lookup_table: The table that "lookup-table" and "diaa-table" read and update, see `coordgen
            warm-up`; a new one by default.
        draft_model: A smaller model that also drafts; `draft` "edgellm" needs it. Without one,
            "auto", "blend" and "mtp" take the target's own head for further tokens, if it has one.
        beside: A drafter of another sequence of the same target, made with the same arguments, with
            which this one shares earlier requests and what is learned; None shares nothing.
        earlier_requests: Whether a method may also draft from earlier requests of this drafter, of
            which the last half million tokens are kept in memory. None is yes without a history,
            which keeps them, and those of other namespaces apart.
        free_rows: Draft as if rows cost nothing, as on an NPU; None asks the session.

    Raises:
        OptionError: A method, source or commit is unknown; a method lacks what it needs, or does
            not use the table or draft model that it is given; or the history has another
            vocabulary.
    """
    check_session(session)
    commit = chosen_commit(session, commit)
    for name, flag in (("earlier_requests", earlier_requests), ("free_rows", free_rows)):
        arguments.of_type(name, flag, bool)
    arguments.having("beside", beside, "propose", "drafter")
    arguments.having("history", history, "shared", "History")
    arguments.having("draft_model", draft_model, "shaped", "DraftModel")
    arguments.of_type("lookup_table", lookup_table, LookupTable)
    costs = None if free_rows else session.step_costs
    in_gaps, weighs, most = True, True, session.step_inputs[-1].rows - 1
    tree: str | DynamicTree = "best-first"
    if isinstance(draft, str):
        method = draft_method(arguments.one_of("draft", draft, METHODS))
        in_gaps, weighs, tree = method.in_gaps, method.weighs_model, method.tree
        most = min(most, method.most_drafted or most)
        if method.takes_mtp:
            draft_model = _own_or_given(session, method, draft_model)
        sources = method.sources(
            free_rows=costs is None,
            draft_model=draft_model is not None,
            common_phrases=True,
            earlier_requests=history is None if earlier_requests is None else earlier_requests,
        )
    else:
        sources = arguments.names("draft", draft)
        if draft_model is None and "draft-model" in sources:
            draft_model = own_head_of(session)
    of_tokenizer = any(source in _OF_TOKENIZER for source in sources)
    phrases = _phrases(session) if of_tokenizer else None
    if phrases is None and isinstance(draft, str):
        sources = [source for source in sources if source not in _OF_TOKENIZER]
    _check_used("look-up table", lookup_table, READS_TABLE, draft, sources)
    _check_used("draft model", draft_model, ("draft-model",), draft, sources)
    if draft_model is not None and isinstance(draft, str):
        draft_model = draft_model.shaped(method)
    drafter = Drafter(
        session.step_inputs,
        session.vocab_size,
        sources=sources,
        costs=costs,
        commit=commit,
        end_token_ids=session.end_token_ids,
        history=None if history is None else history.shared,
        lookup_table=lookup_table,
        model_draft=None if draft_model is None else draft_model.core,
        phrases=phrases,
        tree=tree,
        beside=beside,
    )
    if draft_model is None or "draft-model" not in sources:
        return drafter
    from coordgen_rs.generation.drafting.draft_model import ModelDrafter

    return ModelDrafter(drafter, draft_model, most, in_gaps=in_gaps, weighs=weighs)


def _own_or_given(
    session: Session, method: DraftMethod, given: "DraftModel | None"
) -> "DraftModel | None":
    """The draft model that is given, else the target's own head; None where there is neither.

    Raises:
        OptionError: The method is the head alone, and there is none, or another model is given.
        BundleError: It cannot be loaded.
    """
    model = own_head_of(session) if given is None else given
    if not method.needs_draft_model:
        return model
    if model is None:
        bundle = getattr(session, "bundle", None)
        shown = "the target" if bundle is None else bundle.shown
        raise OptionError(
            f"draft {method.name!r} needs a head for further tokens (MTP), and {shown} has none"
        )
    if not model.is_own_head:
        raise OptionError(
            f"draft {method.name!r} is the target's own head alone: leave the draft model out, or "
            "take draft 'chain'"
        )
    return model


def own_head_of(session: Session) -> "DraftModel | None":
    """The target's own head for further tokens; None where it has none.

    Raises:
        BundleError: It cannot be loaded.
    """
    bundle = getattr(session, "bundle", None)
    if not getattr(getattr(bundle, "manifest", None), "has_draft_head", False):
        return None
    from coordgen_rs.generation.drafting.draft_model import DraftModel

    return DraftModel.mtp_of(session)


def _phrases(session: Session) -> PhraseTable | None:
    """Common phrases in the tokens of a session's bundle; None where they are unknown."""
    from coordgen_rs.bundle.directory import Bundle
    from coordgen_rs.generation.drafting.common_phrases import phrase_table_at

    bundle = getattr(session, "bundle", None)
    if not isinstance(bundle, Bundle):
        return None
    try:
        return phrase_table_at(bundle.file(bundle.manifest.tokenizer))
    except BundleError:  # it only drafts less: who reads texts hears of it
        return None


def chosen_commit(session: Session, commit: str) -> str:
    """How a session commits drafts, "canonical" where it does not allow the "compact" asked for.

    Raises:
        OptionError: `commit` is none of `COMMITS`.
    """
    arguments.one_of("commit", commit, COMMITS)
    ways = session.exact_commits if commit == "auto" else session.allowed_commits
    return "compact" if commit != "canonical" and "compact" in ways else "canonical"


def _check_used(
    what: str,
    given: object,
    readers: Sequence[str],
    draft: str | Sequence[str],
    sources: Sequence[str],
) -> None:
    """Refuse what no source would read.

    Raises:
        OptionError: It was given, but its source is not among those that draft.
    """
    if given is not None and not {*readers} & {*sources}:
        asked = draft if isinstance(draft, str) else ",".join(draft)
        raise OptionError(
            f"draft {asked!r} does not use a {what}: it drafts from {', '.join(sources)} here, "
            f"but not from {readers[0]}"
        )


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
    users: "list[Lease]"

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

    def __init__(self, session: "OrtSession", options: "OpenOptions") -> None:
        self._session, self._options = session, options
        self.commit = chosen_commit(session, options["commit"])
        self._kept: OrderedDict[str, DraftState] = OrderedDict()  # the latest last
        self._dropped: list[DraftState] = []  # which requests may still draft from
        self._right = RLock()  # to change these: requests begin in several threads
        self._nearest: NearestNamespaces | None = None
        self._looks = RLock()  # to ask it: the first time, it reads all that the history holds
        draft, method, self._model = options["draft"], None, None
        if isinstance(draft, str):
            method = draft_method(arguments.one_of("draft", draft, METHODS))
        if options["draft_model"] is not None:
            from coordgen_rs.generation.drafting.draft_model import DraftModel

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

    def acquire(self, namespace: str, user: "Lease | None" = None) -> DraftState:
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

    def nearest(
        self, own: DraftState, prompt_ids: NDArray[np.uint32], user: "Lease | None" = None
    ) -> DraftState:
        """What drafts a prompt whose request names no namespace.

        Args:
            own: What would draft it otherwise, and does so unless the model was opened to look for
                the namespace that the prompt is most like, and there is one.
            prompt_ids: `(tokens,) u32`.
            user: Same as in `acquire`, whose errors it raises.
        """
        history = self._options["history"]
        if not self._options["nearest_namespace"] or history is None:
            return own
        from coordgen_rs.store.history.nearest import NearestNamespaces

        with self._looks:
            if self._nearest is None:
                self._nearest = NearestNamespaces(Path(history))
            name = self._nearest.nearest(prompt_ids)
        return own if name is None else self.acquire(name, user)

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
            from coordgen_rs.generation.drafting.warm_up import open_table

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
