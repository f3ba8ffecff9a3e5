"""The whole algorithm on one screen: `generate`, and `plain`, the baseline that it must equal."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import Accepted, Drafter, DynamicTree, LookupTable, Sampling, StepInputs
from coordgen_rs.draft_model import DraftModel, ModelDrafter
from coordgen_rs.errors import (
    CallOrderError,
    EmptyPromptError,
    NonFiniteLogitsError,
    OptionError,
    PromptTooLongError,
    TokenOutOfRangeError,
)
from coordgen_rs.history.requests import History
from coordgen_rs.stats import Stats
from coordgen_rs.target.session import Session

DRAFT_SOURCES: dict[str, tuple[str, ...]] = {
    "auto": ("automaton", "reuse"),
    "automaton": ("automaton",),
    "lookup": ("lookup",),
    "sam": ("sam",),
    "token-recycling": ("token-recycling",),
    "diaa": ("lookup-table",),
    "edgellm": ("draft-model",),
    "blend": ("automaton", "calibration", "reuse", "lookup-table"),
}
"""Sources by the name of a choice; "auto" adds what else `FREE_ROWS` has where rows cost nothing,
"auto" and "blend" add a draft model where there is one."""

FREE_ROWS = ("calibration", "lookup-table")
"""What fills rows that cost nothing, where the table adds a tenth to the tokens a step. Where rows
cost time these guesses are too unsure to pay: with both, decoding is 3 % slower, and whole answers
are 7 %, since the head has to run over the prompt (`coordgen bench --methods blend,auto`)."""

DRAFT_TREES: dict[str, str | DynamicTree] = {"token-recycling": "static", "diaa": DynamicTree()}
"""Trees of the choices that have their own; those of the others are blended, best first."""


class Step(NamedTuple):
    """What one verification gave out.

    Attributes:
        token_ids: The new tokens, in order.
        accept_len: How many of them, from the first, are accepted draft tokens; the target's own
            comes after them.
        provisional: Tokens that are likely to come next; the target may say others.
    """

    token_ids: list[int]
    accept_len: int
    provisional: Sequence[int] = ()


class Drafting(Protocol):
    """What the loop needs of a drafter; `Drafter` has it, and so has whatever stands in for one."""

    def begin(
        self,
        prompt_ids: NDArray[np.uint32],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        prediction: NDArray[np.uint32] | None = None,
    ) -> None:
        """Start a request."""

    @property
    def reads_prefill(self) -> bool:
        """Whether it asks for the logits of the prompt."""

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Learn what the target expects after the prompt's next tokens."""

    def propose(self, past_len: int) -> StepInputs:
        """Draft a tree, and fill the inputs of the step that is to verify it."""

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Verify the tree against the step's logits."""

    @property
    def accept_histogram(self) -> list[int]:
        """Entry `n` counts the steps that accepted `n` draft tokens."""

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Draft tokens proposed and accepted, by source."""


def generate(
    session: Session,
    prompt_ids: ArrayLike,
    *,
    max_new_tokens: int = 256,
    drafter: Drafting | None = None,
    sampling: Sampling | None = None,
    history: History | None = None,
    prediction: ArrayLike | None = None,
    switch: str = "auto",
    memory_budget: int | None = None,
    provisional: bool = False,
    stats: Stats | None = None,
) -> Iterator[Step]:
    """Yield the tokens that `plain` would yield, several at a time.

    Lookups draft a tree, one run of a decode graph verifies it, and what agrees with the target's
    own choice is given out (CoordGen, section 2.2). Stopping early leaves `session`
    holding exactly the committed tokens.

    Args:
        session: The target.
        prompt_ids: `(tokens,)` integers, at least one.
        max_new_tokens: Upper limit of new tokens; the cache's capacity is another.
        drafter: Made by `make_drafter` for this session; keep one to keep what it learned.
        sampling: How the target's tokens are drawn; None for greedy choice. The same seed gives the
            same tokens, with and without drafts.
        history: Takes the request in when it finishes; to be drafted from it must also have been
            given to `make_drafter`, unless there is no `drafter`.
        prediction: `(tokens,)` integers, how you expect the answer to read. Wherever it does, its
            tokens are drafted; elsewhere it costs nothing but rows.
        switch: When the target's prefill graphs give way to its decode graphs: "auto", "resident",
            "sync", "async", "greedy", "just_in_time" or "single" (`coordgen plan` compares them).
        memory_budget: Most bytes that the graphs of the target's blocks may hold; None for no
            limit. With "auto", what does not fit is streamed from disk in every pass.
        provisional: Yield before each verification, too: a step without tokens, but with those
            that are about to be verified, to be shown where the target is slow.
        stats: Filled as generation goes.

    Raises:
        EmptyPromptError, PromptTooLongError, TokenOutOfRangeError: The prompt cannot be used.
        TokenOutOfRangeError: The prediction holds an unknown token.
        OptionError: No such strategy.
        MemoryBudgetError: The budget is too small; the least that would do is named.
        BlockLoadError: A block of the target has no graph that can be loaded.
        NonFiniteLogitsError: The target answered NaN, while it read the prompt or in a step.
        CallOrderError: Another request took the session before this one had ended.
    """
    stats = Stats() if stats is None else stats
    drafter = make_drafter(session, history=history) if drafter is None else drafter
    prompt, limit = _admit(session, prompt_ids, max_new_tokens, stats)
    answer: list[int] = []
    if history is not None:
        history.refresh()
    drafter.begin(prompt, limit, sampling, _predicted(session, prediction))
    with stats.timing("prefill_s"):
        session.rewind(0)
        # The last prompt token is the root of the first draft.
        on_logits = drafter.prefilled if drafter.reads_prefill else None
        stats.switching = session.prefill(
            prompt[:-1], on_logits=on_logits, switch=switch, memory_budget=memory_budget
        )
    # A draft model goes on drafting where the target waits for its blocks (EdgeLLM III-D).
    while_waiting = drafter.draft_on if isinstance(drafter, ModelDrafter) else None
    try:
        while stats.finish_reason is None:
            start = time.perf_counter()
            _check_owner(session, len(prompt) - 1 + stats.new_tokens)
            inputs = drafter.propose(session.length)
            proposed = time.perf_counter()
            if provisional:
                yield Step([], 0, _first_path(inputs))
            logits = session.step(inputs, while_waiting)
            verified = time.perf_counter()
            accepted = drafter.accept(logits)
            end = time.perf_counter()
            session.commit(accepted.rows)
            stats.drafting_us.append(1e6 * (proposed - start + end - verified))
            new_tokens = accepted.token_ids.tolist()
            _count(stats, len(new_tokens), time.perf_counter() - start)
            stats.finish_reason = _reason(accepted.finish_reason, limit, max_new_tokens)
            answer += new_tokens
            yield Step(new_tokens, accepted.accept_len)
    finally:
        stats.accept_histogram, stats.per_source = drafter.accept_histogram, drafter.per_source
        if history is not None and answer and stats.finish_reason is not None:
            history.add(prompt, answer)


def plain(
    session: Session,
    prompt_ids: ArrayLike,
    *,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    switch: str = "auto",
    memory_budget: int | None = None,
    stats: Stats | None = None,
) -> Iterator[Step]:
    """Plain decoding, a token a run of the narrowest decode graph: no drafts, no tree mask.

    Arguments and errors as of `generate`.
    """
    stats = Stats() if stats is None else stats
    prompt, limit = _admit(session, prompt_ids, max_new_tokens, stats)
    with stats.timing("prefill_s"):
        session.rewind(0)
        stats.switching = session.prefill(prompt[:-1], switch=switch, memory_budget=memory_budget)
    inputs, token, first_row = session.step_inputs[0], prompt[-1:], np.zeros(1, np.uint32)
    while stats.finish_reason is None:
        start = time.perf_counter()
        _check_owner(session, len(prompt) - 1 + stats.new_tokens)
        inputs.fill_chain(token, session.length)
        logits = session.step(inputs)[0]
        token[0] = _choose(logits, sampling, stats.new_tokens)
        session.commit(first_row)
        _count(stats, 1, time.perf_counter() - start)
        if token[0] in session.end_token_ids:
            stats.finish_reason = "stop"
        elif stats.new_tokens == limit:
            stats.finish_reason = _reason("length", limit, max_new_tokens)
        yield Step(token.tolist(), 0)


def make_drafter(
    session: Session,
    draft: str | Sequence[str] = "auto",
    commit: str = "canonical",
    history: History | None = None,
    lookup_table: LookupTable | None = None,
    draft_model: DraftModel | None = None,
) -> Drafter | ModelDrafter:
    """A drafter for `session`.

    Args:
        session: The target; its measured step costs decide how wide a draft pays.
        draft: A key of `DRAFT_SOURCES`, or the names of any sources that `Drafter` knows. "auto"
            takes calibration and the look-up table where the session tells no step costs: with
            them, rows cost time, and the head's rows over the prompt cost more than calibration
            brought (`coordgen generate --sources` shows both: `prefill_s`, `tokens_per_step`).
        commit: "canonical" (exact on every provider) or "compact" (exact where the arithmetic is);
            a session that allows no compact commit takes the canonical one.
        history: Finished requests to draft from, too.
        lookup_table: What the source "lookup-table" draws on and teaches, see `coordgen warm-up`; a
            new one by default.
        draft_model: A smaller model that drafts, too; what `draft` "edgellm" needs.

    Raises:
        OptionError: No such draft or commit, or the history is of another vocabulary.
    """
    if commit == "compact" and "compact" not in getattr(session, "allowed_commits", (commit,)):
        commit = "canonical"
    drafter = Drafter(
        session.step_inputs,
        session.vocab_size,
        sources=_sources(session, draft, draft_model),
        costs=session.step_costs,
        commit=commit,
        end_token_ids=session.end_token_ids,
        history=None if history is None else history.shared,
        lookup_table=lookup_table,
        model_draft=None if draft_model is None else draft_model.core,
        tree=DRAFT_TREES.get(draft, "best-first") if isinstance(draft, str) else "best-first",
    )
    if draft_model is None:
        return drafter
    return ModelDrafter(drafter, draft_model, session.step_inputs[-1].rows - 1)


def _sources(
    session: Session, draft: str | Sequence[str], draft_model: DraftModel | None
) -> Sequence[str]:
    if not isinstance(draft, str):
        return draft
    if draft not in DRAFT_SOURCES:
        raise OptionError(f"draft is {draft!r}, but must be one of {', '.join(DRAFT_SOURCES)}")
    free = FREE_ROWS if draft == "auto" and session.step_costs is None else ()
    model = draft in ("auto", "blend") and draft_model is not None
    return (*DRAFT_SOURCES[draft], *free, *(["draft-model"] if model else []))


def _admit(
    session: Session, prompt_ids: ArrayLike, max_new_tokens: int, stats: Stats
) -> tuple[NDArray[np.uint32], int]:
    """Check the prompt; return it as a fresh array, with the number of tokens that can follow.

    Raises:
        OptionError: `max_new_tokens` is below 1.
        EmptyPromptError: The prompt has no token.
        PromptTooLongError: It has more than the cache holds.
        TokenOutOfRangeError: It holds an unknown token.
    """
    prompt = _token_ids(prompt_ids)
    if max_new_tokens < 1:
        raise OptionError(f"max_new_tokens is {max_new_tokens}, but must be at least 1")
    if len(prompt) == 0:
        raise EmptyPromptError("the prompt is empty: there is no token to continue from")
    if len(prompt) > session.capacity:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens, the cache holds {session.capacity}"
        )
    _check_known(prompt, session, "the prompt")
    stats.prompt_tokens = len(prompt)
    # The last token given out needs no slot, and the last prompt token takes one in the first step.
    return prompt.astype(np.uint32), min(max_new_tokens, session.capacity - len(prompt) + 1)


def _first_path(inputs: StepInputs) -> list[int]:
    """The tokens of the tree's first path, below its root."""
    depths = inputs.position_ids[: inputs.num_nodes] - inputs.position_ids[0]
    path_len = np.count_nonzero(depths == np.arange(len(depths)))  # row i is i tokens deep
    path: list[int] = inputs.input_ids[1:path_len].tolist()
    return path


def _choose(logits: NDArray[np.float32], sampling: Sampling | None, index: int) -> int:
    if sampling is not None:
        return sampling.draw(logits, index)
    token = int(logits.argmax())  # the first maximum: ties go to the lowest id
    if not np.isfinite(logits[token]):
        raise NonFiniteLogitsError("row 0 of the logits holds no usable maximum")
    return token


def _predicted(session: Session, prediction: ArrayLike | None) -> NDArray[np.uint32] | None:
    if prediction is None:
        return None
    tokens = _token_ids(prediction)
    _check_known(tokens, session, "the prediction")
    return tokens.astype(np.uint32)


def _token_ids(token_ids: ArrayLike) -> NDArray[np.int64]:
    return np.array(token_ids, np.int64).reshape(-1)


def _check_known(token_ids: NDArray[np.int64], session: Session, what: str) -> None:
    unknown = token_ids[(token_ids < 0) | (token_ids >= session.vocab_size)]
    if len(unknown):
        raise TokenOutOfRangeError(
            f"{what}: token id {unknown[0]} is outside the vocabulary of {session.vocab_size}"
        )


def _check_owner(session: Session, expected_len: int) -> None:
    if session.length != expected_len:
        raise CallOrderError(
            f"the session holds {session.length} tokens, this request left {expected_len}: another "
            "request has taken the session"
        )


def _count(stats: Stats, new_tokens: int, seconds: float) -> None:
    stats.steps += 1
    stats.new_tokens += new_tokens
    stats.decode_s += seconds


def _reason(reason: str | None, limit: int, max_new_tokens: int) -> str | None:
    return "capacity" if reason == "length" and limit < max_new_tokens else reason
