"""Published methods and ours: what each drafts from, and in which shape.

In: a method's name and a session. Out: its drafter. What is measured with them is the sections'
(`sections/`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from coordgen_rs._core import Drafter, DynamicTree, LookupTable
from coordgen_rs.draft_model import DraftModel, ModelDrafter
from coordgen_rs.errors import OptionError
from coordgen_rs.generate import DRAFT_SOURCES, FREE_ROWS
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.target.session import StepCost

PLAIN = "plain"


class Method(NamedTuple):
    """What drafts, and in which shape.

    Attributes:
        sources: Names that `Drafter` knows.
        remembering: More of them, where earlier requests may be drawn on.
        where_free: More of them, where rows cost nothing.
        tree: As of `Drafter`.
        branches: As of `DraftModel`.
        in_gaps: As of `ModelDrafter`.
    """

    sources: tuple[str, ...]
    remembering: tuple[str, ...] = ()
    where_free: tuple[str, ...] = ()
    tree: str | DynamicTree = "best-first"
    branches: bool = True
    in_gaps: bool = True


_MODEL, _SESSION = "draft-model", "session"

METHODS: dict[str, Method] = {
    "prompt-lookup": Method(("lookup",)),
    "sam": Method(("sam",)),
    "token-recycling": Method(("token-recycling",), tree="static"),
    "diaa": Method(("lookup-table",), tree=DynamicTree()),
    "chain": Method((_MODEL,), branches=False, in_gaps=False),
    "edgellm-waiting": Method((_MODEL,), in_gaps=False),
    "edgellm": Method((_MODEL,)),
    "coordgen": Method(("automaton", "calibration", "reuse"), (_SESSION,)),
    "blend": Method(("automaton", "calibration", "reuse", "lookup-table", _MODEL), (_SESSION,)),
    "auto": Method((*DRAFT_SOURCES["auto"], _MODEL), (_SESSION,), FREE_ROWS),
}
"""What can be measured beside plain decoding. Of EdgeLLM also its parts (its Figure 22): a chain
of the draft model's likeliest tokens, and its trees without provisional generation. "auto" is what
`generate` takes when nothing is asked for, with earlier requests."""

_SAM_REMEMBERING = Method(("sam-session",))


KNOWN = (PLAIN, *METHODS)
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
    return name != PLAIN and METHODS[name].sources == (_MODEL,)


def method_drafter(
    session: OrtSession,
    name: str,
    *,
    costs: Sequence[StepCost] | None,
    table: LookupTable,
    model: DraftModel | None = None,
    remembering: bool = True,
) -> Drafter | ModelDrafter:
    """A new drafter of a method, which has seen no request yet.

    Args:
        session: The target.
        name: A key of `METHODS`.
        costs: Of a step of each of the session's widths; None where rows are free.
        table: What the source "lookup-table" starts with.
        model: For the source "draft-model", which is left out where there is none.
        remembering: Whether earlier requests may be drawn on, by the methods whose papers do.
    """
    method = _method(name, remembering, is_free=costs is None)
    has_model = model is not None and _MODEL in method.sources
    if model is not None:  # a tree of its own for each method, which learns when it is enough
        model = DraftModel(
            model.session, least_that_pays=model.least_that_pays, branches=method.branches
        )
    drafter = Drafter(
        session.step_inputs,
        session.vocab_size,
        sources=[source for source in method.sources if has_model or source != _MODEL],
        costs=costs,
        end_token_ids=session.end_token_ids,
        lookup_table=table,
        model_draft=model.core if model is not None and has_model else None,
        tree=method.tree,
    )
    if model is None or not has_model:
        return drafter
    max_tokens = session.step_inputs[-1].rows - 1
    return ModelDrafter(drafter, model, max_tokens, in_gaps=method.in_gaps)


def _method(name: str, remembering: bool, *, is_free: bool) -> Method:
    """A method with all the sources that it has here."""
    method = METHODS[name]
    if remembering and name == "sam":
        return _SAM_REMEMBERING
    more = (method.remembering if remembering else ()) + (method.where_free if is_free else ())
    return method._replace(sources=method.sources + more)


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
