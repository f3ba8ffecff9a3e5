"""What drafts for a target: `make_drafter`, by the names of the core's registry.

In: a session, and the name of a method or of sources. Out: a drafter for `generate`. Which sources
a method has, and when, is decided in the core (`src/draft/methods`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordgen_rs._core import (
    Drafter,
    DraftMethod,
    DynamicTree,
    LookupTable,
    PhraseTable,
    draft_method,
    draft_methods,
)
from coordgen_rs.errors import BundleError, OptionError, arguments
from coordgen_rs.runtime.session import COMMITS, Session, check_session

if TYPE_CHECKING:
    from coordgen_rs.drafting.draft_model import DraftModel, ModelDrafter
    from coordgen_rs.store.history.requests import History


_METHODS = [method.name for method in draft_methods()]

_OF_TOKENIZER = ("common-phrases", "respelling")
"""The sources that draw on a table which is made from the tokenizer."""


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
        lookup_table: The table that the source "lookup-table" reads and updates, see `coordgen
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
        method = draft_method(arguments.one_of("draft", draft, _METHODS))
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
    _check_used("look-up table", lookup_table, "lookup-table", draft, sources)
    _check_used("draft model", draft_model, "draft-model", draft, sources)
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
    from coordgen_rs.drafting.draft_model import ModelDrafter

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
    from coordgen_rs.drafting.draft_model import DraftModel

    return DraftModel.mtp_of(session)


def _phrases(session: Session) -> PhraseTable | None:
    """Common phrases in the tokens of a session's bundle; None where they are unknown."""
    from coordgen_rs.bundle.directory import Bundle
    from coordgen_rs.drafting.common_phrases import phrase_table_at

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
    what: str, given: object, source: str, draft: str | Sequence[str], sources: Sequence[str]
) -> None:
    """Refuse what no source would read.

    Raises:
        OptionError: It was given, but its source is not among those that draft.
    """
    if given is not None and source not in sources:
        asked = draft if isinstance(draft, str) else ",".join(draft)
        raise OptionError(
            f"draft {asked!r} does not use a {what}: it drafts from {', '.join(sources)} here, "
            f"but not from {source}"
        )
