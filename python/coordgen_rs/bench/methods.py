"""Methods of the core's registry in the bench: which can be measured, and a new drafter of each.

In: a method's name and a session. Out: its drafter. What is measured with them is the sections'
(`sections/`).
"""

from collections.abc import Sequence

from coordgen_rs._core import PLAIN, Drafter, LookupTable, draft_method, draft_methods
from coordgen_rs.draft_model import DraftModel, ModelDrafter
from coordgen_rs.drafting import make_drafter
from coordgen_rs.errors import OptionError
from coordgen_rs.target.ort_session import OrtSession

KNOWN = (PLAIN, *(method.name for method in draft_methods()))
"""Every method, plain decoding first."""


def check_methods(names: Sequence[str], *, has_draft_model: bool) -> None:
    """Refuse what cannot be measured.

    Raises:
        OptionError: No such method, or one that needs a draft model where there is none.
    """
    for name in names:
        if name not in KNOWN:
            raise OptionError(f"method is {name!r}, but must be one of {', '.join(KNOWN)}")
        if not has_draft_model and needs_draft_model(name):
            raise OptionError(f"method {name!r} needs a draft model")


def needs_draft_model(name: str) -> bool:
    """Whether a known method drafts from nothing but a draft model."""
    return name != PLAIN and draft_method(name).needs_draft_model


def method_drafter(
    session: OrtSession,
    name: str,
    *,
    free_rows: bool,
    table: LookupTable,
    model: DraftModel | None = None,
    remembering: bool = True,
) -> Drafter | ModelDrafter:
    """A new drafter of a method, which has seen no request yet.

    Args:
        session: The target.
        name: Of a method of the registry.
        free_rows: Whether drafts are made as if rows cost nothing.
        table: What the source "lookup-table" starts with.
        model: For the source "draft-model", which is left out where there is none.
        remembering: Whether earlier requests may be drawn on, by the methods whose papers do.
    """
    if model is not None:  # a tree of its own for each method, which learns when it is enough
        model = DraftModel(model.session, least_that_pays=model.least_that_pays)
    return make_drafter(
        session,
        name,
        lookup_table=table,
        draft_model=model,
        earlier_requests=remembering,
        free_rows=free_rows,
    )


def extra_bytes(drafter: Drafter | ModelDrafter | None) -> int:
    """What a method holds beside the target, a draft model's weights and cache included."""
    if drafter is None:
        return 0
    held = drafter.memory_bytes()
    if isinstance(drafter, ModelDrafter) and isinstance(drafter.model.session, OrtSession):
        session = drafter.model.session
        held += session.cache.nbytes
        held += sum(file.num_bytes for file in session.bundle.manifest.files.values())
    return held
