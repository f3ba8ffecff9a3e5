"""DIAA's items: look-up tables and dynamic trees, on this processor.

In: what is measured with. Out: figures by item and name. Tables are warmed up with the prompts that
no method answers: of each token they keep what was likeliest after it, and nothing fades. Counts of
drafts are taken as if rows cost nothing, as on the paper's GPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from coordgen_rs._core import PLAIN, Drafter, DynamicTree, LookupTable, StepInputs
from coordgen_rs.generation.drafting.warm_up import save_table, warm_up
from coordgen_rs.lab.bench.energy_and_memory import stage_peaks
from coordgen_rs.lab.bench.latency import ClockedDrafter, ClockedHead
from coordgen_rs.lab.bench.workbench import Tallies, Tally, Workbench, tallied
from coordgen_rs.lab.fleet.tasks import in_own_process
from coordgen_rs.lab.papers.items import Found, Measurement, Wanted
from coordgen_rs.lab.tables import ALL

DIAA, STATIC, TR, SPS, SAM = ("diaa", "diaa-static", "token-recycling", "speculative", "sam")
BASELINES = {"Vanilla": PLAIN, "SpS": SPS, "SAM-D": SAM, "TR": TR, "DIAA": DIAA}
"""Methods of Tables 1 and 2 by their names in them."""
ABLATION = {
    "w/o LUT+DT": (STATIC, False),
    "w/o LUT": (DIAA, False),
    "w/o DT": (STATIC, True),
    "DIAA": (DIAA, True),
}
"""Columns of Table 3: a method, and whether its table was warmed up."""
TASKS = {"summary": "Sum", "math": "Math", "chat": "MT", "qa": "QA", "rag": "RAG"}
TASKS |= {"translation": "Trans", ALL: "Average"}
"""The paper's tasks by their names in files of prompts."""

_MIB = 1 << 20
_UNBOUND = 4
"""A budget of so many times the rows leaves a tree as many nodes as there are rows."""


@contextmanager
def _tables(
    wanted: Wanted, *, is_free: bool, share: slice = slice(None), width: int | None = None
) -> Iterator[tuple[Workbench, Workbench]]:
    """One session with an empty table, and with one that has read other texts (`share` of them)."""
    cold = wanted.bench(is_free=is_free, width=width)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "warm"
        texts, unfading = wanted.other_texts(cold)[share], LookupTable(keep=1.0)
        read = warm_up(cold.session, texts, unfading)
        save_table(read, path, cold.session.bundle)
        settings = replace(cold.settings, lookup_table=path)
        yield cold, Workbench(settings, cold.session, cold.prompts, cold.draft_model)


def methods(wanted: Wanted) -> Iterator[Found]:
    """Tables 1 and 2: whole answers."""
    known = {name: method for name, method in BASELINES.items() if not wanted.lack(method)}
    with _tables(wanted, is_free=False) as (_, warm):
        tallies = tallied(warm.answers([*known.values()], warm.drafter))
    size = wanted.beside(("7B", "3B", "1B"))
    tasks = dict.fromkeys(task for task, _ in tallies)
    for (name, method), task in product(BASELINES.items(), tasks):
        row, lacks = f"{size}, {name}, {TASKS.get(task, task)}", wanted.lack(method)
        rates = [] if lacks else [one.tokens / one.total_s for one in tallies[task, method]]
        rate = float(np.median(rates)) if rates else None
        yield Found("DIAA Table 1", f"{row}, tokens/s", rate, "measured", lacks)
        yield Found("DIAA Table 1", f"{row}, ms", 1e3 / rate if rate else None, why=lacks)
        if not lacks:
            count = tallies[task, method][0].tokens_per_step
            yield Found("DIAA Table 1", f"{row}, tokens per step", count)
        if task == ALL:
            yield Found("DIAA Table 2", f"{name}, {size}", _gain(tallies, method), why=lacks)


def _gain(tallies: Tallies, method: str) -> float | None:
    """The mean over the tasks of how much sooner answers come than by plain decoding."""
    tasks = [task for task, name in tallies if name == method and task != ALL]
    gains = [
        np.median([one.total_s for one in tallies[task, PLAIN]])
        / np.median([one.total_s for one in tallies[task, method]])
        for task in tasks
    ]
    return float(np.mean(gains)) if gains else None


def ablation(wanted: Wanted) -> Iterator[Found]:
    """Table 3: tables and trees, in tokens a second, and in tokens per step."""
    item = "DIAA Table 3"
    lacks = {name: wanted.lack(method) for name, (method, _) in ABLATION.items()}
    with _tables(wanted, is_free=True) as (cold, warm):
        known = [name for name, why in lacks.items() if not why]
        given = cold.answers(
            known, lambda name: (cold, warm)[ABLATION[name][1]].drafter(ABLATION[name][0])
        )
        tallies = tallied(given)
    tasks = dict.fromkeys(task for task, _ in tallies)
    for task, (name, why) in product(tasks, lacks.items()):
        rates = [one.tokens / one.total_s for one in tallies.get((task, name), [])]
        rate = float(np.median(rates)) if rates else None
        row = f"{TASKS.get(task, task)}, {name}"
        yield Found(item, f"{row}, tokens/s", rate, "measured", why)
        if rates:
            yield Found(item, f"{row}, tokens per step", tallies[task, name][0].tokens_per_step)


def table_memory(wanted: Wanted) -> Iterator[Found]:
    """Table 4: tables that have seen each token."""
    rng = np.random.default_rng(0)
    for size in (32_000, 128_256) if wanted.is_full else (32_000,):
        table, logits = LookupTable(), rng.normal(size=(64, size)).astype(np.float32)
        for first in range(0, size, 64):
            seen = np.arange(first, min(size, first + 64), dtype=np.uint32)
            table.learn(seen, logits[: len(seen)])
        name, both = f"vocabulary of {size:,}, MB", table.memory_of_tables()
        yield Found("DIAA Table 4, both tables", name, sum(both) / _MIB)
        for of, num_bytes in zip(("t-LUT", "p-LUT"), both, strict=True):
            yield Found("DIAA Table 4", f"{of}, {name}", num_bytes / _MIB)


FIGURE_7 = {0: {1: 0.5, 2: 0.3, 3: 0.1}, 1: {11: 0.6, 12: 0.3, 13: 0.005}, 2: {21: 0.9}}
"""Figure 7 as far as the text tells it: the order of the tokens, and that t13 is pruned."""


def tree(wanted: Wanted) -> Iterator[Found]:
    """Equations 1 and 2 and Figure 7, by its instance; the probabilities are made up."""
    depths, products = tree_of(FIGURE_7, DynamicTree(6))
    yield Found("DIAA Figure 7", "C(T)", sum(depths.values()))
    yield Found("DIAA Figure 7", "nodes", len(products))
    utility = sum(products[leaf] for leaf in depths)
    made_up = "of probabilities that are made up"
    yield Found("DIAA Eq. 1", "U(T) of Figure 7's tree", utility, why=made_up)
    state = DynamicTree(6).__getnewargs_ex__()[1]
    for symbol, name in (("delta", "depth_decay"), ("alpha", "width_decay"), ("tau", "threshold")):
        default = round(float(state[name]), 6)
        yield Found("DIAA Eq. 2", symbol, default, why="the default of the method `diaa`")


def tree_of(
    table: dict[int, dict[int, float]], options: DynamicTree
) -> tuple[dict[int, int], dict[int, float]]:
    """A tree that grows from a table: the depth of each leaf, the path's product of each node.

    Args:
        table: The likeliest tokens after a token, and their probabilities; 0 is the root's.
        options: What bounds the tree.
    """
    rows, size = 16, 1024
    known = LookupTable(3)
    for context, likely in table.items():
        rest = (1 - sum(likely.values())) / (size - len(likely))
        logits = np.full((1, size), np.log(rest), np.float32)
        logits[0, [*likely]] = np.log([*likely.values()])
        known.learn(np.array([context], np.uint32), logits)
    ids, mask = np.zeros(rows, np.int64), np.zeros((rows, rows), np.float32)
    inputs = StepInputs(ids, ids.copy(), mask)
    drafter = Drafter([inputs], size, sources=["diaa-table"], lookup_table=known, tree=options)
    drafter.begin(np.zeros(1, np.uint32), rows)
    drafter.propose(0)
    tokens, parents = (array.tolist() for array in drafter.draft)
    depths, products = {0: 0}, {0: 1.0}
    for node, parent in enumerate(parents[1:], 1):
        depths[node] = depths[parent] + 1
        products[node] = products[parent] * table[tokens[parent]][tokens[node]]
    del products[0]
    return {node: depths[node] for node in products.keys() - {*parents}}, products


def sizes(wanted: Wanted) -> Iterator[Found]:
    """Figures 3 and 4: static and dynamic trees of as many nodes, without a bound on C(T)."""
    for rows in (4, 8, 16, 32) if wanted.is_full else (8, 32):
        kinds = {"dynamic": f"{DIAA}:budget={_UNBOUND * rows}", "static": STATIC}
        with _tables(wanted, is_free=True, width=rows) as (_, warm):
            tallies = tallied(warm.answers([*kinds.values()], warm.drafter, repeats=1))
        sums = {kind: tallies[ALL, method][0] for kind, method in kinds.items()}
        rates = {kind: one.tokens_per_step for kind, one in sums.items()}
        for kind, rate in rates.items():
            yield Found("DIAA Figure 3", f"{rows} rows, {kind}, tokens per step", rate)
            nodes = sums[kind].proposed / sums[kind].steps
            yield Found("DIAA Figure 3", f"{rows} rows, {kind}, nodes per step", nodes)
        gain = rates["dynamic"] / rates["static"]
        yield Found("DIAA Figure 3", "dynamic over static", gain, why=f"at {rows} rows")
        for task, (kind, method) in product(dict.fromkeys(t for t, _ in tallies), kinds.items()):
            one = tallies[task, method][0]
            name = f"{TASKS.get(task, task)}, {rows} rows, {kind}, accepted, %"
            share = 100 * one.accepted / max(1, one.proposed)
            yield Found("DIAA Figure 4", name, share)
            if (task, kind) == (ALL, "dynamic"):
                yield Found("DIAA Figure 4", "accepted, %", share, why=f"at {rows} rows")


def budgets(wanted: Wanted) -> Iterator[Found]:
    """Figure 8: the budget of a tree, and how many steps its shape is kept for."""
    most, every = ((7, 15, 31), (1, 2, 4)) if wanted.is_full else ((7, 31), (1, 4))
    named = {
        f"B {nodes}, N {steps}": f"{DIAA}:budget={nodes}:update_interval={steps}"
        for nodes, steps in product(most, every)
    }
    name = "tokens per step by nodes and interval"
    yield from _compared(wanted, "DIAA Figure 8", name, named)


def _compared(wanted: Wanted, item: str, whole: str, named: dict[str, str]) -> Iterator[Found]:
    """Tokens per step of methods, by their names in an item."""
    with _tables(wanted, is_free=True) as (_, warm):
        tallies = tallied(warm.answers([*named.values()], warm.drafter, repeats=1))
    sums = {name: tallies[ALL, method][0] for name, method in named.items()}
    rates = {name: one.tokens_per_step for name, one in sums.items()}
    yield Found(item, whole, max(rates.values()), why=f"best: {max(rates, key=lambda n: rates[n])}")
    for name, one in sums.items():
        yield Found(item, f"{name}, nodes per step", one.proposed / one.steps)
        yield Found(item, f"{name}, tokens per step", one.tokens_per_step)
        yield Found(item, f"{name}, tokens/s", one.tokens / one.total_s)


def initial_tables(wanted: Wanted) -> Iterator[Found]:
    """Figure 9: an empty table, and tables that have read each half of the other texts."""
    item, sums = "DIAA Figure 9", dict[str, Tally]()
    for name, share in (("first half", slice(0, None, 2)), ("second half", slice(1, None, 2))):
        with _tables(wanted, is_free=True, share=share) as (cold, warm):
            for named, bench in (("empty", cold), (name, warm)):
                tallies = tallied(bench.answers((PLAIN, DIAA), bench.drafter, repeats=1))
                sums[named] = tallies[ALL, DIAA][0]
    for name, one in sums.items():
        yield Found(item, f"{name}, tokens per step", one.tokens_per_step)
        yield Found(item, f"{name}, tokens/s", one.tokens / one.total_s)
    warm_rates = [one.tokens_per_step for name, one in sums.items() if name != "empty"]
    named = "tokens per step by the table's first texts"
    yield Found(item, named, float(np.mean(warm_rates)), why="mean of the warmed-up tables")


def shares(wanted: Wanted) -> Iterator[Found]:
    """Figure 10, and what an overlap could hide at most: clocks around propose and accept."""
    took = np.zeros(3)
    with _tables(wanted, is_free=True) as (_, warm):
        drafter = warm.drafter(DIAA)
        clocked = ClockedDrafter(drafter, ClockedHead(warm.session.device))  # type: ignore[arg-type]
        for prompt in (prompt for prompts in warm.prompts.values() for prompt in prompts):
            warm.answer(prompt, clocked)
            took += (clocked.verify_s, clocked.propose_s, clocked.accept_s)
    forward, of_tree, of_tables = 100 * took / took.sum()
    item, walk = "DIAA Figure 10", "with the walk that verifies"
    yield Found(item, "forward, %", forward)
    yield Found(item, "update of the tree, %", of_tree)
    yield Found(item, "update of the tables, %", of_tables, why=walk)
    item = "DIAA overlap of computation"
    yield Found(item, "share that a perfect overlap could hide, %", of_tree + of_tables)


def memory(wanted: Wanted) -> Iterator[Found]:
    """Figure 2: the peak of a process with a draft model, over one without."""
    settings = wanted.bench().settings
    peaks: Sequence[int] = [
        in_own_process(stage_peaks, replace(settings, draft_model=model), method)["answering"]
        for model, method in ((None, PLAIN), (settings.draft_model, SPS))
    ]
    if all(peaks):
        yield Found("DIAA Figure 2", "a draft model's memory, GB", (peaks[1] - peaks[0]) / 1e9)


MEASUREMENTS = (
    Measurement(("DIAA Figure 7", "DIAA Eq. 1", "DIAA Eq. 2"), tree, needs=()),
    Measurement(("DIAA Figure 2",), memory, needs=("data", "draft_model")),
    Measurement(("DIAA Figure 3", "DIAA Figure 4"), sizes),
    Measurement(("DIAA Table 1", "DIAA Table 2"), methods),
    Measurement(("DIAA Table 3",), ablation),
    Measurement(("DIAA Table 4", "DIAA Table 4, both tables"), table_memory, needs=()),
    Measurement(("DIAA Figure 8",), budgets),
    Measurement(("DIAA Figure 10", "DIAA overlap of computation"), shares),
    Measurement(("DIAA Figure 9",), initial_tables, only_full=True),
)
