"""CoordGen's items: plans, times of a phone's figures on this machine, counts of its ablations.

In: what is measured with. Out: figures by item and name. Its tables are of a phone's NPU; beside
them stand those of this processor, which runs prefill and decoding, as in `NPU vanilla`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import PLAIN, Accepted, BlockCost, StepInputs
from coordgen_rs._core import plan as plan_blocks
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.drafting.proposer import WrappedDrafter
from coordgen_rs.lab.bench.energy_and_memory import measure_energy, stage_peaks
from coordgen_rs.lab.bench.latency import ClockedDrafter, ClockedHead, parts
from coordgen_rs.lab.bench.switching import measure_graphs
from coordgen_rs.lab.bench.widths import measure_chunk_size, time_steps
from coordgen_rs.lab.bench.workbench import Tallies, Workbench
from coordgen_rs.lab.fleet.tasks import in_own_process
from coordgen_rs.lab.papers.items import Found, Measurement, Wanted, items
from coordgen_rs.lab.papers.phone import COLUMNS, STRATEGIES
from coordgen_rs.lab.plots import middle
from coordgen_rs.lab.tables import ALL, NOT_POSSIBLE

PLD, SAM, COORDGEN = "prompt-lookup", "sam", "coordgen"
ABLATION = {
    "PLD": PLD,
    "PLD+calibration": "prompt-lookup-calibration",
    "PLD+reuse": "prompt-lookup-reuse",
    "PLD+Ours": "prompt-lookup-coordgen",
    "SAM": SAM,
    "SAM+calibration": "sam-calibration",
    "SAM+reuse": "sam-reuse",
    "SAM+Ours": COORDGEN,
    "coordgen-ours": "coordgen-ours",
}
"""Methods of Table 4 by their names in it, and between them what they are made of."""

_BLOCK_US = 1_000
SUMMARY = "summary"
_UNFRIENDLY = 8
"""Draft lengths below it are the short ones of section 1."""


def scheduling(wanted: Wanted) -> Iterator[Found]:
    """Equations 1 and 2 and Figure 8, by its instance: a load takes as long as two blocks."""
    cost = BlockCost(
        prefill_load_us=0,
        prefill_compute_us=_BLOCK_US,
        prefill_bytes=1,
        decode_load_us=2 * _BLOCK_US,
        decode_compute_us=_BLOCK_US // 8,
        decode_bytes=1,
    )
    plans = {
        name: plan_blocks([cost] * 6, 256, 32, 512, strategy=name, memory_budget=6)
        for name in STRATEGIES
    }
    starts = [one.after_runs for one in plans["greedy"].actions if one.kind == "load"]
    (k,) = {after - before for before, after in pairwise(starts)}
    yield Found("CoordGen Eq. 1", "a load is covered by k blocks", k, "simulated")
    yield Found("CoordGen Eq. 2", "k* of Figure 8", k, "simulated")
    for name, plan in plans.items():
        yield Found("CoordGen Figure 8", name, plan.makespan_us / _BLOCK_US, "simulated")


def breakdown(wanted: Wanted) -> Iterator[Found]:
    """Figures 1, 2 and 13: clocks around the parts of answers."""
    bench = wanted.bench()
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    held = 0
    with ClockedHead(bench.session.device) as head:

        def clocked(name: str) -> ClockedDrafter | None:
            drafter = bench.drafter(name)
            return None if drafter is None else ClockedDrafter(drafter, head)

        for given in bench.answers((PLAIN, COORDGEN), clocked):
            stats, took = given.answered.stats, parts(given.answered, given.drafter)
            held = max(held, 0 if given.drafter is None else given.drafter.memory_bytes())
            took |= {"steps": stats.steps, "prompt": stats.prompt_tokens}
            for task, (part, amount) in product((given.task, ALL), took.items()):
                sums[task, given.method][part] += amount
    plain = {task: of for (task, method), of in sums.items() if method == PLAIN}
    summary = SUMMARY if SUMMARY in plain else ALL
    shares = {task: 100 * of["decode"] / of["total"] for task, of in plain.items()}
    reduced = {
        task: of["decode"] / (sums[task, COORDGEN]["decode"] + sums[task, COORDGEN]["draft"])
        for task, of in plain.items()
    }
    yield Found("CoordGen Figure 1", "decoding, share of inference, %", shares[ALL])
    for task, share in shares.items():
        if task != ALL:
            yield Found("CoordGen Figure 2", f"{task}, decoding, %", share)
    rate = plain[ALL]["prompt"] / plain[ALL]["prefill"]
    yield Found("CoordGen Figure 2", "prefill, tokens/s", rate)
    for name, values in (("decoding of vanilla", shares), ("decoding reduced", reduced)):
        unit = ", %" if values is shares else ""
        yield from spread("CoordGen Figure 13", name, [values[summary]], unit)
    of = sums[summary, COORDGEN]
    calibration = 1e3 * of["calibration"] / of["prompt"]
    named = "calibration, ms per token of the prompt"
    yield Found("CoordGen Figure 13", named, calibration)
    yield Found("CoordGen Figure 13", "drafting, ms per step", 1e3 * of["draft"] / of["steps"])
    algorithm = "CoordGen algorithm of calibration"
    yield Found(algorithm, "ms per token of the prompt", calibration)
    yield Found(algorithm, "memory, MB", held / 1e6, why="all sources of the method")


def spread(
    item: str, name: str, values: Iterable[float], unit: str = "", why: str = ""
) -> Iterator[Found]:
    """The least and the most of values; nothing of none."""
    known = [*values]
    for which, of in (("least", min), ("most", max)) if known else ():
        yield Found(item, f"{name}, {which}{unit}", of(known), why=why)


def draft_lengths(wanted: Wanted) -> Iterator[Found]:
    """Figure 6: the time of a step by its rows, and exact lengths of drafts of prompt lookup."""
    item, bench = "CoordGen Figure 6", wanted.bench(is_free=True)
    num_steps = 50 if wanted.is_full else 10
    times = time_steps(bench.session, bench.settings.prompt_len, num_steps)
    per_row = {rows: float(np.median(taken)) / rows for rows, taken in times.items()}
    for rows in (1, 32):
        yield Found(item, f"step of {_name_of(rows)}, ms/row", per_row.get(rows))
    best = min(per_row, key=lambda rows: per_row[rows])
    for method, bound in ((PLD, "it drafts ten tokens at most"), (SAM, "")):
        drafter = make_drafter(bench.session, method, earlier_requests=False, free_rows=True)
        clocked = ClockedDrafter(drafter, ClockedHead(bench.session.device))
        for prompt in _summaries(bench):
            bench.answer(prompt, clocked)
        lens = clocked.draft_lens
        for name, most in (("8", _UNFRIENDLY), ("the best width", best)):
            below = sum(count for length, count in lens.items() if length < most)
            named = f"{method}, drafts below {name}, %"
            yield Found(item, named, 100 * below / lens.total(), why=bound)


def _summaries(bench: Workbench) -> list[NDArray[np.uint32]]:
    """Prompts of the task that the paper looks into; of the first one, where it is not there."""
    return bench.prompts.get(SUMMARY, next(iter(bench.prompts.values())))


def _name_of(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"


def chunk_size(wanted: Wanted) -> Iterator[Found]:
    """Figure 5: one graph of 32 rows for prefill and decoding."""
    section = measure_chunk_size(wanted.bench())
    named = [column.name for column in section.columns]
    for row in section.rows:
        of = dict(zip(named, row, strict=True))
        for name in ("prefill", "decode") if of["rows"] == 32 else ():
            yield Found("CoordGen Figure 5", f"{name} at chunk 32, ms/token", middle(of[name]))


def graphs(wanted: Wanted) -> Iterator[Found]:
    """Table 3: drafting and switching, each on and off."""
    section = measure_graphs(wanted.bench())
    times = zip(section.column("variant"), section.column("per_token"), strict=True)
    for name, cell in times:
        column = COLUMNS.get(str(name), name)
        yield Found("CoordGen Table 3", f"this processor, {column}", middle(cell))


def ablation(wanted: Wanted) -> Iterator[Found]:
    """Table 4: calibration and reuse beside prompt lookup and SAM; counts."""
    item = "CoordGen Table 4"
    limit = 8 if wanted.is_full else wanted.settings.limit
    tallies = wanted.tallies(ABLATION.values(), repeats=1, is_free=True, limit=limit)
    tasks = dict.fromkeys(task for task, _ in tallies)
    model = wanted.beside({name.rsplit(", ", 1)[1] for name in items()[item].published})
    for task in tasks:
        for name, method in ABLATION.items():
            found = _rate(tallies, task, method)
            why = wanted.lack(method)
            yield Found(item, f"{task}, {name}, {model}", found, "measured", why)
    for base in ("PLD", "SAM"):
        gains = {}
        for task in tasks:
            own = _rate(tallies, task, ABLATION[f"{base}+Ours"])
            alone = _rate(tallies, task, ABLATION[base])
            if own and alone:
                gains[task] = own / alone
        if gains:
            yield Found(f"{item}, gains", f"{base}, all tasks", gains.pop(ALL))
            yield from spread(f"{item}, gains", base, gains.values())
        lacks = wanted.lack(ABLATION[f"{base}+Ours"])
        for name in ("least", "most", "all tasks") if lacks else ():
            yield Found(f"{item}, gains", f"{base}, {name}", None, NOT_POSSIBLE, lacks)


def _rate(tallies: Tallies, task: str, method: str) -> float | None:
    return tallies[task, method][0].tokens_per_step if (task, method) in tallies else None


def latency(wanted: Wanted) -> Iterator[Found]:
    """Figure 10: whole answers, on one processor."""
    item, tallies = "CoordGen Figure 10", wanted.tallies((SAM, COORDGEN))
    for of, over, name in (
        (COORDGEN, PLAIN, "over NPU vanilla"),
        (COORDGEN, SAM, "over SAM"),
        (SAM, PLAIN, "SAM on CPU"),
    ):
        speedups = {task: _speedup(tallies, task, of, over) for task, _ in tallies if task != ALL}
        yield from spread(item, name, speedups.values())
        for task, speedup in speedups.items() if (of, over) == (COORDGEN, PLAIN) else ():
            if f"{task}, {name}, least" in items()[item].published:
                yield from spread(item, f"{task}, {name}", [speedup])
            else:
                yield Found(item, f"{task}, {name}", speedup)


def _speedup(tallies: Tallies, task: str, of: str, over: str) -> float:
    """Of whole answers: the median of the repeats."""
    pairs = zip(tallies[task, over], tallies[task, of], strict=True)
    return float(np.median([slow.total_s / quick.total_s for slow, quick in pairs]))


def energy(wanted: Wanted) -> Iterator[Found]:
    """Figure 11, where there is a meter; elsewhere `phone` has it."""
    item, section = "CoordGen Figure 11", measure_energy(wanted.bench())
    of_plain = dict(zip(section.column("method"), section.column("of_plain"), strict=True))
    if not any(of_plain.values()):
        return
    plain, sam, own = (1 / middle(of_plain[name]) for name in (PLAIN, SAM, COORDGEN))
    yield from spread(item, "over NPU vanilla", [own / plain])
    yield from spread(item, "over SAM", [own / sam])


def memory(wanted: Wanted) -> Iterator[Found]:
    """Figure 12: peaks of processes that have done nothing else."""
    settings = wanted.bench(draft_model=None).settings
    peaks = {
        name: in_own_process(stage_peaks, settings, name)["answering"] for name in (PLAIN, COORDGEN)
    }
    if all(peaks.values()):
        yield Found("CoordGen Figure 12", "ours, CoordGen, GB", peaks[COORDGEN] / 1e9)
        yield Found("CoordGen Figure 12", "ours, vanilla, GB", peaks[PLAIN] / 1e9)
        yield Found(
            "CoordGen Figure 12", "over vanilla, MB", (peaks[COORDGEN] - peaks[PLAIN]) / 1e6
        )


class Watched(WrappedDrafter):
    """A drafter whose drafts are kept: the paths of each tree, and where it began.

    Attributes:
        said: The answer until now, as token ids.
        drafts: For each step the length of the answer before it, and a path to each leaf.
        num_drafted: Tokens of all trees.
    """

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: object, **options: object) -> None:
        """Same as in `Drafter`; what was kept is dropped."""
        self.said: list[int] = []
        self.drafts: list[tuple[int, list[list[int]]]] = []
        self.num_drafted = 0
        super().begin(prompt_ids, *limits, **options)

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        inputs = super().propose(past_len)
        self.num_drafted += inputs.num_nodes - 1
        self.drafts.append((len(self.said), paths_of(*self.drafter.draft)))
        return inputs

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Same as in `Drafter`."""
        accepted = super().accept(logits)
        self.said += accepted.token_ids.tolist()
        return accepted


def paths_of(tokens: NDArray[np.uint32], parents: NDArray[np.uint32]) -> list[list[int]]:
    """The drafts of a tree, one to each leaf; none of a root alone."""
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens[1:].tolist(), parents[1:].tolist(), strict=True):
        paths.append([*paths[parent], token])
    inner = set(parents.tolist())
    return [path for node, path in enumerate(paths) if node not in inner]


_NEAR = 4
"""How far behind its place a rejected segment is looked for."""


def kind_of_rejection(drafted: Sequence[int], said: Sequence[int]) -> str | None:
    """Table 2's case of a draft; None where nothing of it was rejected.

    Args:
        drafted: The draft.
        said: What the target says in its place, and behind it.
    """
    e = next((i for i, (x, z) in enumerate(zip(drafted, said, strict=False)) if x != z), None)
    if e is None:
        return None
    left, right = drafted[e:], said[e:]
    pairs = {tuple(right[at : at + 2]) for at in range(1, 1 + _NEAR)}
    places = [at for at in range(len(left) - 1) if tuple(left[at : at + 2]) in pairs]
    return "redundant" if not places else "missing" if places[0] == 0 else "synonym"


def rejections(wanted: Wanted) -> Iterator[Found]:
    """Table 2 by a rule, where the paper's were labelled by hand: two tokens are said again."""
    bench, cases = wanted.bench(is_free=True), Counter[str]()
    watched = Watched(bench.drafter(SAM))  # type: ignore[arg-type]
    for prompt in _summaries(bench):
        bench.answer(prompt, watched)
        for at, paths in watched.drafts:  # of one, or none
            kinds = (kind_of_rejection(path, watched.said[at:]) for path in paths)
            cases.update(kind for kind in kinds if kind is not None)
    for name in ("missing", "synonym", "redundant") if cases else ():
        share = 100 * cases[name] / cases.total()
        yield Found(
            "CoordGen Table 2", f"{name}, %", share, why=f"of {cases.total()} rejections, by a rule"
        )


_GAP = 0.11


def similarity(wanted: Wanted) -> Iterator[Found]:
    """Figure 3's lexical part: how far summaries are from the nearest stretch of their prompts."""
    bench = wanted.bench()
    far = [
        distance(np.array(bench.answer(prompt, None).tokens), prompt) > _GAP
        for prompt in _summaries(bench)
    ]
    named = "answers with a Levenshtein distance above 0.11, %"
    why = "of tokens, from the nearest stretch of the prompt"
    yield Found("CoordGen Figure 3", named, 100 * float(np.mean(far)), why=why)


def distance(answer: NDArray[np.integer], text: NDArray[np.uint32]) -> float:
    """Edits from the nearest stretch of a text to an answer, over the answer's length."""
    steps = np.arange(len(text) + 1)
    edits = np.zeros(len(text) + 1, np.int64)
    for token in answer:
        apart = np.append(edits[0] + 1, np.minimum(edits[1:] + 1, edits[:-1] + (text != token)))
        edits = np.minimum.accumulate(apart - steps) + steps
    return float(edits.min()) / len(answer)


MEASUREMENTS = (
    Measurement(
        ("CoordGen Eq. 1", "CoordGen Eq. 2", "CoordGen Figure 8"),
        *(scheduling, False, ()),
    ),
    Measurement(
        (
            *("CoordGen Figure 1", "CoordGen Figure 2", "CoordGen Figure 13"),
            "CoordGen algorithm of calibration",
        ),
        breakdown,
    ),
    Measurement(("CoordGen Figure 3",), similarity),
    Measurement(("CoordGen Figure 5",), chunk_size, needs=()),
    Measurement(("CoordGen Figure 6",), draft_lengths),
    Measurement(("CoordGen Table 2",), rejections),
    Measurement(("CoordGen Figure 10",), latency),
    Measurement(("CoordGen Figure 11",), energy),
    Measurement(("CoordGen Figure 12",), memory),
    Measurement(("CoordGen Table 3",), graphs),
    Measurement(("CoordGen Table 4", "CoordGen Table 4, gains"), ablation),
)
