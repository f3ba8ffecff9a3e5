"""EdgeLLM's items: a target that is streamed from a slow disk, and a draft model beside it.

In: what is measured with. Out: figures by item and name. Half of the target's blocks fit into
memory, and loads are slowed down until a step takes as many steps of the draft model as in the
paper's Figure 20.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import PLAIN
from coordgen_rs.generation.drafting.draft_model import ModelDrafter
from coordgen_rs.lab.bench.drafting import ADDS, BNV, EDGELLM, PP, SF, SP
from coordgen_rs.lab.bench.widths import time_steps
from coordgen_rs.lab.bench.workbench import MethodAnswer, Tallies, Workbench, answer, tallied
from coordgen_rs.lab.loads.plans import step_us
from coordgen_rs.lab.papers.coordgen import Watched, kind_of_rejection, spread
from coordgen_rs.lab.papers.items import Found, Measurement, Wanted
from coordgen_rs.lab.tables import ALL, NOT_POSSIBLE
from coordgen_rs.runtime.ort_session import OrtSession

BARS = {
    "branches (BNV)": (SP, BNV),
    "fallback (SF)": (BNV, SF),
    "provisional (PP)": (SF, EDGELLM),
    "provisional before fallback": (BNV, PP),
    "fallback after provisional": (PP, EDGELLM),
}
"""Figure 22: what a part adds, from which method to which. The text gives the order in two ways."""

SWEPT = {
    "alpha": ("first threshold", 0.01, (0.1, 0.03, 0.003, 0.001)),
    "keep": ("factor", 0.5, (0.9, 0.7, 0.3, 0.1)),
}
"""Figure 12: options of the fallback, what they are, the paper's values and others."""

_STEPS_OF_DRAFT = 16.5
"""Steps of the draft model in one of the target: the middle of 11.7 to 21.8."""
_ROWS = 10
GAMMA = 8
"""Tokens that methods without the fallback draft."""
_SHARE = 0.5
_SLOWER = "slower while verifying"
"""Section V's words for Figure 20's P over G."""


def _draft_session(bench: Workbench) -> OrtSession:
    session = None if bench.draft_model is None else bench.draft_model.session
    if not isinstance(session, OrtSession):
        raise TypeError("the draft model runs on a session of its own")
    return session


def draft_alone(wanted: Wanted) -> Iterator[Found]:
    """Tables I and IV, and Figure 9's width of a draft step."""
    bench = wanted.bench()
    session, right = _draft_session(bench), list[bool]()
    drafted, alone, points = list[float](), list[float](), dict[str, list[float]]()
    drafter = bench.drafter(EDGELLM)
    for task, prompt in ((task, prompt) for task, of in bench.prompts.items() for prompt in of):
        said = np.array(bench.answer(prompt, None).tokens, np.uint32)
        drafted.append(rouge_l(bench.answer(prompt, drafter).tokens, said.tolist()))
        foretold = likeliest(session, np.concatenate([prompt, said])[:-1])
        right += (foretold[len(prompt) - 1 :] == said).tolist()
        session.rewind(0)
        own = answer(session, prompt, None, max_new_tokens=bench.settings.max_new_tokens).tokens
        alone.append(rouge_l(own, said.tolist()))
        points.setdefault(task, []).append(100 * (drafted[-1] - alone[-1]))
    session.rewind(0)
    named = "tokens that the draft model has right, %"
    yield Found("EdgeLLM Table I", named, 100 * float(np.mean(right)))
    for named, scores in (("EdgeLLM", drafted), ("draft model alone", alone)):
        yield Found("EdgeLLM Table IV", f"{named}, Rouge-L, %", 100 * float(np.mean(scores)))
    means = [float(np.mean(of_task)) for of_task in points.values()]
    yield from spread("EdgeLLM Table IV", "EdgeLLM over the draft model", means, ", points")
    times = _medians(session, bench.settings.prompt_len, 10)
    wide = step_us(times, _ROWS) / times[1]
    yield Found("EdgeLLM Figure 9", "ours, tree 10 wide", wide)
    yield Found("EdgeLLM Figure 9", "batched beside one by one", _ROWS / wide)


def likeliest(session: OrtSession, tokens: NDArray[np.uint32]) -> NDArray[np.int64]:
    """What a model holds likeliest after each of some tokens, `(tokens,) i64`."""
    read: list[NDArray[np.int64]] = []
    session.rewind(0)
    session.prefill(
        tokens, on_logits=lambda of: read.append(of.reshape(-1, of.shape[-1]).argmax(-1))
    )
    return np.concatenate(read)


def rouge_l(own: Sequence[int], other: Sequence[int]) -> float:
    """The F measure of the longest common subsequence (Lin 2004), of tokens."""
    lengths = [0] * (len(other) + 1)
    for token in own:
        above = lengths[:]
        for at, one in enumerate(other, 1):
            lengths[at] = above[at - 1] + 1 if one == token else max(above[at], lengths[at - 1])
    return 2 * lengths[-1] / (len(own) + len(other))


def _medians(session: OrtSession, past_len: int, num_steps: int) -> dict[int, float]:
    times = time_steps(session, past_len, num_steps)
    return {rows: float(np.median(taken)) for rows, taken in times.items()}


def streamed(wanted: Wanted, share: float = _SHARE, **changes: Any) -> Workbench:
    """A workbench whose target keeps to a share of its blocks, of which loads are slowed down.

    As steps take long, it has one prompt a task.
    """
    budget, _ = _held(wanted, share)
    streaming = {"memory_budget": budget, "load_delay_s": _delay_s(wanted), "limit": 1}
    return wanted.bench(**(streaming | changes))


@cache
def _held(wanted: Wanted, share: float) -> tuple[int, str]:
    """The bytes of a share of the target's blocks, of two at least, and how many these are."""
    sizes = [cost.decode_bytes for cost in wanted.bench().session.switcher.costs]
    num_blocks = max(2, int(share * len(sizes)))
    return num_blocks * max(sizes), f"{num_blocks} of {len(sizes)} blocks"


@cache
def _delay_s(wanted: Wanted) -> float:
    """How much longer each load shall take."""
    bench, (budget, _) = wanted.bench(), _held(wanted, _SHARE)
    wanted_s = _STEPS_OF_DRAFT * _one_row_s(_draft_session(bench))
    delays = 0.0, wanted_s / len(bench.session.switcher.costs)
    benches = (wanted.bench(memory_budget=budget, load_delay_s=delay) for delay in delays)
    steps = [_one_row_s(bench.session) for bench in benches]
    return round(float(np.interp(wanted_s, steps, delays)), 6)


def _one_row_s(session: OrtSession) -> float:
    return _medians(session, min(64, session.capacity // 2), 10)[1] / 1e3


def _per_token(tallies: Tallies, task: str, method: str) -> float:
    return float(np.median([one.decode_s / one.tokens for one in tallies[task, method]]))


def ablation(wanted: Wanted) -> Iterator[Found]:
    """Figures 3, 16, 20 and 22, and the idle time of Figure 9."""
    resident = wanted.tallies((), repeats=1, limit=1)
    bench = streamed(wanted)
    drafters = list[ModelDrafter]()

    def watched(answers: Iterator[MethodAnswer[Any]]) -> Iterator[MethodAnswer[Any]]:
        for given in answers:
            if given.method == EDGELLM and given.drafter not in drafters:
                drafters.append(given.drafter)
            yield given

    tallies = tallied(watched(bench.answers((PLAIN, *ADDS), bench.drafter)))
    tasks = [task for task, _ in tallies if task != ALL]
    loads = [
        100 * (1 - _per_token(resident, task, PLAIN) / _per_token(tallies, task, PLAIN))
        for task in tasks
    ]
    yield from spread("EdgeLLM Figure 3", "share of loads", loads, ", %")
    yield Found("EdgeLLM Figure 9", "idle while loading, %", float(np.mean(loads)))

    def gains(before: str, after: str) -> list[float]:
        return [_per_token(tallies, t, before) / _per_token(tallies, t, after) for t in tasks]

    yield from spread("EdgeLLM Figure 16", "over SPL", gains(PLAIN, EDGELLM))
    fastest = min(_per_token(tallies, task, EDGELLM) for task in tasks)
    yield Found("EdgeLLM Figure 16", "s/token", fastest, why="of the fastest task")
    yield from spread("EdgeLLM Figure 16", "over SP", gains(SP, EDGELLM))
    for name, (before, after) in BARS.items():
        yield from spread("EdgeLLM Figure 22", name, gains(before, after))
    for method in ADDS:
        rate = tallies[ALL, method][-1].tokens_per_step
        yield Found("EdgeLLM Figure 22", f"{method}, tokens/step", rate)
    of_draft, of_target = _one_row_s(_draft_session(bench)), _per_token(tallies, ALL, PLAIN)
    yield Found("EdgeLLM Figure 20", "ours, G, s", of_draft)
    yield Found("EdgeLLM Figure 20", "ours, V, s", of_target)
    ratios = [_per_token(tallies, task, PLAIN) / of_draft for task in tasks]
    yield from spread("EdgeLLM Figure 20", "V over G", ratios, why="set by slower loads")
    in_gaps = sum(one.num_provisional for one in drafters)
    of_gap = sum(one.gap_s for one in drafters) / in_gaps if in_gaps else None
    if of_gap is not None:
        yield Found("EdgeLLM Figure 20", "ours, P, s", of_gap)
        yield from spread("EdgeLLM Figure 20", "P over G", [of_gap / of_draft])
        yield from spread("EdgeLLM memory and verification", _SLOWER, [of_gap / of_draft])
    hidden = [
        100 * kept / (kept + one.num_runs)
        for one in drafters
        if (kept := one.model.core.num_promoted) or one.num_runs
    ]
    yield from spread("EdgeLLM Figure 16", "drafting hidden", hidden, ", %")
    alone = _per_token(tallies, ALL, EDGELLM) / of_draft
    yield Found("EdgeLLM Figure 16", "draft model alone, over EdgeLLM", alone)


def shared_budget(wanted: Wanted) -> Iterator[Found]:
    """Section V: a step of the target, where the draft model takes its part of the budget."""
    item, name = "EdgeLLM memory and verification", "verification beside a draft model"
    alone = streamed(wanted, 0.75)
    (budget, blocks), (least, _) = _held(wanted, 0.75), _held(wanted, 0)
    files = _draft_session(alone).bundle.manifest.files.values()
    left = budget - sum(file.num_bytes for file in files)
    if left < least:
        why = f"{blocks}, and the draft model leaves less than two"
        yield Found(item, name, None, NOT_POSSIBLE, why)
        return
    alone_s, delay_s = _one_row_s(alone.session), _delay_s(wanted)
    beside = wanted.bench(memory_budget=left, load_delay_s=delay_s)
    yield Found(item, name, _one_row_s(beside.session) / alone_s, why=f"of {blocks}")


def rows(wanted: Wanted) -> Iterator[Found]:
    """Figures 5 and 11: one step over ten rows, beside ten of one row; loads are slow."""
    times = _medians(streamed(wanted).session, 64, 10)
    wide = step_us(times, _ROWS)
    yield from spread("EdgeLLM Figure 5", "10 tokens", [_ROWS * times[1] / wide])
    yield Found("EdgeLLM Figure 11", "10 rows beside 1", wide / times[1])


def errors(wanted: Wanted) -> Iterator[Found]:
    """Figures 10 and 21: what a verification is of, and how often it finds an error."""
    bench = streamed(wanted)
    drafted, shares, waits, tokens = list[float](), list[float](), list[float](), list[float]()
    for prompts in bench.prompts.values():
        watched = Watched(bench.drafter(EDGELLM))  # type: ignore[arg-type]
        wrong, num_drafted = list[bool](), 0
        for prompt in prompts:
            bench.answer(prompt, watched)
            num_drafted += watched.num_drafted
            for at, paths in watched.drafts:
                kinds = [kind_of_rejection(path, watched.said[at:]) for path in paths]
                wrong.append(bool(kinds) and all(kinds))
        drafted.append(num_drafted / len(wrong))
        shares.append(100 * float(np.mean(wrong)))
        if any(wrong):
            waits.append(len(wrong) / sum(wrong))
            tokens.append(num_drafted / sum(wrong))
    yield from spread("EdgeLLM Figure 10", "tokens drafted for a verification", drafted)
    item = "EdgeLLM Figure 21"
    yield from spread(item, "verifications with an error", shares, ", %")
    yield from spread(item, "verifications for a long wait", waits)
    yield from spread(item, "tokens for a long wait", tokens)


def thresholds(wanted: Wanted) -> Iterator[Found]:
    """Figure 12: the first threshold and the factor; and lengths of branches, all by time."""
    whole = f"{EDGELLM}:whole_lengths=yes"
    named = {
        (option, value): f"{EDGELLM}:{option}={value}"
        for option, (_, _, values) in SWEPT.items()
        for value in values
    }
    capped = f"{EDGELLM}:gamma={GAMMA}"
    methods = [PLAIN, PP, capped, EDGELLM, whole, *named.values()]
    bench = streamed(wanted)
    tallies = tallied(bench.answers(methods, bench.drafter, repeats=1))
    times = {name: _per_token(tallies, ALL, name) for _, name in tallies}
    item = "EdgeLLM Figure 12"
    for option, (what, usual, values) in SWEPT.items():
        of = {usual: times[EDGELLM]} | {value: times[named[option, value]] for value in values}
        best = min(of, key=lambda value: of[value])
        yield Found(item, f"best {what}", best)
        yield Found(item, f"gain of the best {what}, most", max(of.values()) / of[best])
        for value, taken in of.items():
            yield Found(item, f"{what} {value}, over SPL", times[PLAIN] / taken)
    named_capped = f"fallback after provisional, {GAMMA} tokens at most"
    yield Found("EdgeLLM Figure 22", named_capped, times[PP] / times[capped])
    gain = times[EDGELLM] / times[whole]
    yield Found("EdgeLLM Eq. 2", "lengths from the root, over those of branches", gain)


def lengths(wanted: Wanted) -> Iterator[Found]:
    """Figure 17: when the 64th, 128th and 256th token comes."""
    bench = streamed(wanted, ignore_eos=True, max_new_tokens=256)
    at: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for given in bench.answers((SP, EDGELLM), bench.drafter, repeats=1):
        counts = accumulate(number for _, number in given.answered.arrivals)
        times = (when for when, _ in given.answered.arrivals)
        at[given.task, given.method] = list(zip(times, counts, strict=True))
    for number in (64, 128, 256):
        come = {
            key: next((when for when, count in of if count >= number), None)
            for key, of in at.items()
        }
        gains = [
            slow / quick
            for (task, method), slow in come.items()
            if method == SP and slow and (quick := come[task, EDGELLM])
        ]
        if gains:
            name = "256th token" if number == 256 else f"{number}th token"
            yield from spread("EdgeLLM Figure 17", f"{name}, over SP", gains)


def budgets(wanted: Wanted) -> Iterator[Found]:
    """Figure 18: shares of the blocks that fit into memory; a load takes as long with each."""
    for share in (0.25, 0.5, 0.75):
        bench, (_, blocks) = streamed(wanted, share), _held(wanted, share)
        tallies = tallied(bench.answers((PLAIN, SP, EDGELLM), bench.drafter, repeats=1))
        for name, other in (("SPL", PLAIN), ("SP", SP)):
            gain = _per_token(tallies, ALL, other) / _per_token(tallies, ALL, EDGELLM)
            yield Found("EdgeLLM Figure 18", f"{blocks}, over {name}", gain)


_BOTH = ("data", "draft_model")
MEASUREMENTS = (
    Measurement(
        ("EdgeLLM Table I", "EdgeLLM Table IV", "EdgeLLM Figure 9"), draft_alone, needs=_BOTH
    ),
    Measurement(
        (
            *("EdgeLLM Figure 3", "EdgeLLM Figure 9", "EdgeLLM Figure 16"),
            *("EdgeLLM Figure 20", "EdgeLLM Figure 22", "EdgeLLM memory and verification"),
        ),
        ablation,
        needs=_BOTH,
    ),
    Measurement(("EdgeLLM memory and verification",), shared_budget, needs=_BOTH),
    Measurement(("EdgeLLM Figure 5", "EdgeLLM Figure 11"), rows, needs=_BOTH),
    Measurement(("EdgeLLM Figure 10", "EdgeLLM Figure 21"), errors, needs=_BOTH),
    Measurement(
        ("EdgeLLM Figure 12", "EdgeLLM Eq. 2", "EdgeLLM Figure 22"),
        thresholds,
        only_full=True,
        needs=_BOTH,
    ),
    Measurement(("EdgeLLM Figure 17",), lengths, only_full=True, needs=_BOTH),
    Measurement(("EdgeLLM Figure 18",), budgets, only_full=True, needs=_BOTH),
)
