"""The whole algorithm on one screen: `generate`, and `plain`, the baseline it must equal.

Where the session is one of several sequences, both yield `WAITS` wherever the target is to run.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import Sampling, SeenTokens, keep_allowed, token_logprob
from coordgen_rs.errors import CallOrderError, NonFiniteLogitsError, arguments
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.drafting.proposer import DraftProposer
from coordgen_rs.generation.request import Request, admit, admit_grammar
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import (
    PlainStep,
    Step,
    TokenLogprob,
    checked,
    drafted,
    first_path,
    prefill,
    records,
    tree_of,
)
from coordgen_rs.runtime.session import OnRead, Session, check_session
from coordgen_rs.store.prefixes.pool import PrefixPool, Reused, reused

if TYPE_CHECKING:
    from coordgen_rs.store.history.requests import History
    from coordgen_rs.text.grammar.matcher import Matcher


def generate(
    session: Session,
    prompt_ids: ArrayLike,
    *,
    max_new_tokens: int = 256,
    drafter: DraftProposer | None = None,
    sampling: Sampling | None = None,
    ignore_eos: bool = False,
    reuse_prefix: bool = False,
    prefixes: PrefixPool | None = None,
    history: "History | None" = None,
    prediction: ArrayLike | None = None,
    grammar: "Matcher | None" = None,
    logprobs: int | None = None,
    provisional: bool = False,
    trees: bool = False,
    on_read: OnRead = None,
    stats: Stats | None = None,
) -> Generator[Step]:
    """Yield the tokens that `plain` would yield, several at a time.

    Lookups draft a tree, one run of a decode graph verifies it, and what agrees with the target's
    own choice is accepted (CoordGen, section 2.2). After stopping early, `session` holds exactly
    the committed tokens.

    Args:
        session: The target.
        prompt_ids: `(tokens,)` integers, at least one.
        max_new_tokens: Most new tokens; the cache's capacity is another limit.
        drafter: Made by `make_drafter` for this session; keep one to keep what it learned.
        sampling: How the target's tokens are chosen; None takes the likeliest. The same seed gives
            the same tokens, with and without drafts.
        ignore_eos: End tokens do not end the answer: they are tokens like others.
        reuse_prefix: Compute only the part of the prompt that follows what the session holds: the
            longest common prefix of the two stays, as a chat's next turn has it. The tokens are the
            same; calibration keeps what it learned from earlier prompts, and has no rows of tokens
            that the target said itself. False computes the whole prompt, as measurements need it.
        prefixes: With `reuse_prefix`, also what earlier requests on this session have left here;
            what this one overwrites is left here, too.
        history: Stores the request when it finishes. To draft from it, pass it to `make_drafter` as
            well, unless there is no `drafter`.
        prediction: `(tokens,)` integers, the answer as you expect it. Where the answer follows it,
            tokens are drafted from it; elsewhere it costs only rows.
        grammar: What the answer must follow, from `Vocabulary.matcher`: the target's token is the
            likeliest (or the one drawn) of those that are allowed. Tokens that the grammar forces
            are drafted first, and drafts that it refuses are left out. The answer ends where the
            grammar is complete.
        logprobs: Tell of each token how likely the target held it, and of so many alternatives, 0
            to 20; see `Step.logprobs`. None tells nothing, and costs nothing.
        provisional: Also yield before each verification: a step without tokens, but with those that
            are about to be verified, to show early where the target is slow.
        trees: Also give each step's draft tree.
        on_read: Called behind each chunk of the prompt with how many tokens of it were computed. It
            may end the request by an exception; what was computed stays, to be reused.
        stats: Filled during generation.

    Raises:
        OptionError: A prompt or prediction is not integers, `max_new_tokens` is below 1, or the
            grammar is of another vocabulary; or something else is of a wrong type. Also where
            biases forbid every token that may follow.
        ShapeError: A prompt or prediction has more than one dimension: requests run one at a time.
        EmptyPromptError, PromptTooLongError, TokenOutOfRangeError: The prompt cannot be used.
        TokenOutOfRangeError: The prediction holds an unknown token, or one has a bias.
        MemoryBudgetError: The session's budget is too small; the message says how much is needed.
        BlockLoadError: A block of the target has no graph that can be loaded.
        NonFiniteLogitsError: The target returned NaN, for the prompt or in a step.
        UnsupportedGrammarError: The grammar allows no token at all.
        GrammarError: The grammar cannot go on; what was given out until then follows it.
        CallOrderError: Another request took the session before this one had ended.
    """
    _check_types(session, sampling, stats, on_read, prefixes)
    arguments.having("drafter", drafter, "propose", "drafter")
    arguments.having("history", history, "refresh", "History")
    for name, flag in (("provisional", provisional), ("trees", trees)):
        arguments.flag(name, flag)
    stats = Stats() if stats is None else stats
    drafter = make_drafter(session, history=history) if drafter is None else drafter
    request = admit(session, prompt_ids, max_new_tokens)
    ignore_eos = arguments.flag("ignore_eos", ignore_eos)
    reuse_prefix = arguments.flag("reuse_prefix", reuse_prefix)
    expected_answer = None
    if prediction is not None:
        expected_answer = arguments.token_ids("the prediction", prediction, session.vocab_size)
    ruled = admit_grammar(session, grammar, ignore_eos=ignore_eos)
    told: dict[str, Any] = {} if checked(logprobs) is None else {"logprobs": logprobs}
    if history is not None:
        history.refresh()
    answer: list[int] = []
    number, held = _begin(session, request, stats, prefixes, reuse_prefix=reuse_prefix)
    kept = held.num_tokens
    drafter.begin(
        request.prompt,
        request.limit,
        sampling,
        expected_answer,
        ignore_eos=ignore_eos,
        num_reused=kept,
        **(ruled | told),
    )
    try:
        with stats.prefill(request.prompt, *held):
            session.rewind(kept)
            # The last prompt token is the root of the first draft.
            on_logits = drafter.prefilled if drafter.reads_prefill else None
            stats.switching = yield from prefill(
                session, request.prompt[kept:-1], on_logits=on_logits, on_read=on_read
            )
        # A draft model keeps drafting while the target waits for its blocks (EdgeLLM III-D).
        session.gap_work = drafter.draft_on
        while stats.finish_reason is None:
            _check_owner(session, number, len(request.prompt) - 1 + len(answer))
            stats.begin("draft")
            inputs = yield from drafted(session, drafter, stats)
            tree = tree_of(drafter) if trees else None
            if provisional:
                stats.pause()
                yield Step([], 0, first_path(inputs))
            stats.begin("verify")
            logits = session.step(inputs)
            stats.begin("accept")
            accepted = drafter.accept(logits)
            stats.begin("commit")
            session.commit(accepted.rows)
            new_tokens = accepted.token_ids.tolist()
            answer += new_tokens
            stats.end_step(len(new_tokens), request.finish_reason(accepted.finish_reason))
            yield Step(
                new_tokens,
                accepted.accept_len,
                sources=accepted.sources,
                num_drafted=inputs.num_nodes - 1,
                num_rows=inputs.rows,
                tree=tree,
                logprobs=records(new_tokens, accepted.logprobs or ()) if told else (),
            )
    finally:
        if session.request == number:  # else they are another request's by now
            session.gap_work = None
            stats.accept_histogram, stats.per_source = drafter.accept_histogram, drafter.per_source
            drafter.end()
        if history is not None and answer and stats.finish_reason is not None:
            history.add(request.prompt, answer[: stats.cut_at])


def plain(
    session: Session,
    prompt_ids: ArrayLike,
    *,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    ignore_eos: bool = False,
    reuse_prefix: bool = False,
    prefixes: PrefixPool | None = None,
    grammar: "Matcher | None" = None,
    logprobs: int | None = None,
    on_read: OnRead = None,
    stats: Stats | None = None,
) -> Generator[Step]:
    """Plain decoding, one token per run of the narrowest decode graph: no drafts, no trees.

    Arguments and errors are the same as in `generate`.
    """
    _check_types(session, sampling, stats, on_read, prefixes)
    num_alternatives = checked(logprobs)
    stats = Stats() if stats is None else stats
    request = admit(session, prompt_ids, max_new_tokens)
    ignore_eos = arguments.flag("ignore_eos", ignore_eos)
    reuse_prefix = arguments.flag("reuse_prefix", reuse_prefix)
    admit_grammar(session, grammar, ignore_eos=ignore_eos)
    answer: list[int] = []
    seen = None
    if sampling is not None and sampling.penalises:
        seen = SeenTokens(session.vocab_size)
        seen.restart(request.prompt)
    number, held = _begin(session, request, stats, prefixes, reuse_prefix=reuse_prefix)
    kept = held.num_tokens
    with stats.prefill(request.prompt, *held):
        session.rewind(kept)
        stats.switching = yield from prefill(session, request.prompt[kept:-1], on_read=on_read)
    end_token_ids = () if ignore_eos else session.end_token_ids
    root, first_row = request.prompt[-1:].copy(), np.zeros(1, np.uint32)
    while stats.finish_reason is None:
        _check_owner(session, number, len(request.prompt) - 1 + len(answer))
        stats.begin("verify")
        inputs = yield from drafted(session, PlainStep(session, root), stats)
        row = session.step(inputs)[0]
        # As the target gave it: a grammar masks the row itself.
        given = row if grammar is None or num_alternatives is None else row.copy()
        token = _choose(_allowed(row, grammar), sampling, len(answer), seen)
        root[0] = token
        if seen is not None:
            seen.extend(root)
        session.commit(first_row)
        answer.append(token)
        stats.end_step(1, _plain_finish(answer, end_token_ids, request, grammar))
        told: Sequence[TokenLogprob] = ()
        if num_alternatives is not None:
            told = records([token], [token_logprob(given, token, num_alternatives)])
        yield Step([token], 0, sources=("target",), logprobs=told)


def _check_types(
    session: Session, sampling: Sampling | None, stats: object, on_read: object, prefixes: object
) -> None:
    check_session(session)
    arguments.of_type("prefixes", prefixes, PrefixPool)
    arguments.of_type("sampling", sampling, Sampling)
    if sampling is not None:
        sampling.check_tokens(session.vocab_size)
    arguments.of_type("stats", stats, Stats)
    arguments.function("on_read", on_read)


def _plain_finish(
    answer: list[int], end_token_ids: Sequence[int], request: Request, grammar: "Matcher | None"
) -> str | None:
    if answer[-1] in end_token_ids:
        return "stop"
    if grammar is not None and grammar.extend(answer[-1:]):
        return "grammar"
    return request.finish_reason("length" if len(answer) == request.limit else None)


def _allowed(logits: NDArray[np.float32], grammar: "Matcher | None") -> NDArray[np.float32]:
    """A row of logits `(vocab_size,) f32` in which what the grammar refuses is impossible."""
    if grammar is not None:
        logits = logits if logits.flags.writeable else logits.copy()
        grammar.after([])
        keep_allowed(logits[np.newaxis], grammar.words)
    return logits


def _choose(
    logits: NDArray[np.float32], sampling: Sampling | None, index: int, seen: SeenTokens | None
) -> int:
    if sampling is not None:
        return sampling.draw(logits, index, seen)
    token = int(logits.argmax())  # the first maximum: ties go to the lowest id
    if not np.isfinite(logits[token]):
        raise NonFiniteLogitsError("row 0 of the logits holds no usable maximum")
    return token


def _begin(
    session: Session,
    request: Request,
    stats: Stats,
    prefixes: PrefixPool | None,
    *,
    reuse_prefix: bool,
) -> tuple[int, Reused]:
    """Take over the session from the request that had it: its number, and what it has of this."""
    session.request += 1
    session.gap_work = None
    stats.follow(getattr(session, "expert_report", None))
    with stats.reading():
        held = reused(session, request.prompt, prefixes) if reuse_prefix else Reused(0, 0)
    return session.request, held


def _check_owner(session: Session, number: int, expected_len: int) -> None:
    if session.request != number or session.length != expected_len:
        raise CallOrderError(
            f"another request has taken the session: this is its request {number}, which left "
            f"{expected_len} tokens in it; it is at request {session.request}, with "
            f"{session.length} tokens"
        )
