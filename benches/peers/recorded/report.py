"""The tables of recorded replays, and their picture.

In: the figures of all cells. Out: what is printed, and an SVG file with a panel a set of records.
"""

import statistics
from dataclasses import dataclass, field
from functools import partial

from coordgen_rs.cli.terminal.text import printable
from coordgen_rs.lab.tables import ALL
from recorded.methods import CHAIN
from support import picture
from support.tables import show_rows

EARLIER = "earlier-requests"
_MIDDLE = 16


@dataclass
class Figures:
    """What was measured.

    Attributes:
        sets: Names of the record sets.
        methods: The methods, as in `methods.py`.
        budgets: Draft tokens a step.
        rows: By set, method's name, budget and history: the rows of a cell by their task.
    """

    sets: list[str]
    methods: list
    budgets: list[int]
    rows: dict[tuple[str, str, int, str], dict[str, dict]] = field(default_factory=dict)

    @property
    def middle(self):
        """The draft tokens a step of the tables that show one number of them."""
        return _MIDDLE if _MIDDLE in self.budgets else self.budgets[-1]

    @property
    def tasks(self):
        """Set and task, for the sets with several tasks."""
        found = {}
        for (one_set, *_), of_task in self.rows.items():
            found.setdefault(one_set, {}).update(dict.fromkeys(of_task))
        return [
            (one_set, task)
            for one_set in self.sets
            for task in sorted(found.get(one_set, {}))
            if task != ALL and len(found[one_set]) > 2
        ]

    def on(self, one_set, column, budget, history, method, task=ALL):
        """A figure of a method on a set; None where it was not measured."""
        rows = self.rows.get((one_set, method.name, budget, history), {})
        return rows.get(task, {}).get(column)

    def over(self, summary, column, budget, history, method):
        """A summary of a figure over all sets; None where one was not measured."""
        values = [self.on(one_set, column, budget, history, method) for one_set in self.sets]
        return None if None in values else summary(values)


def show(figures):
    """Print all tables."""
    middle = figures.middle
    mean = partial(figures.over, statistics.fmean)

    def by_set(history):
        columns = {
            of: partial(figures.on, of, "tokens_per_step", middle, history) for of in figures.sets
        }
        return columns | {"mean": partial(mean, "tokens_per_step", middle, history)}

    def by_budget(column):
        return {f"{budget}": partial(mean, column, budget, "none") for budget in figures.budgets}

    _table(f"tokens per step with {middle} draft tokens", figures.methods, by_set("none"))
    _table(
        "tokens per step by draft tokens",
        figures.methods,
        by_budget("tokens_per_step"),
    )
    _table(
        "rows per token by draft tokens",
        figures.methods,
        by_budget("rows_per_token"),
    )
    by_task = {
        printable(f"{of}: {task}"): partial(
            figures.on, of, "tokens_per_step", middle, "none", task=task
        )
        for of, task in figures.tasks
    }
    _table(f"tokens per step by task with {middle} draft tokens", figures.methods, by_task)
    costs = {
        "reading a prompt, us": partial(mean, "begin_us_p50", middle, "none"),
        "median, us": partial(mean, "step_us_p50", middle, "none"),
        "99th percentile, us": partial(figures.over, max, "step_us_p99", middle, "none"),
        "memory, MB": partial(_megabytes, figures, middle),
    }
    _table(f"drafting a step of {middle} draft tokens", figures.methods, costs, digits=1)
    remembering = [method for method in figures.methods if method.remembers]
    _table(
        f"tokens per step with earlier requests and {middle} draft tokens",
        remembering,
        by_set(EARLIER),
    )


def _megabytes(figures, budget, method):
    """Of the set that takes most."""
    most = figures.over(max, "memory_bytes", budget, "none", method)
    return None if most is None else most / 1e6


def _table(title, methods, columns, *, digits=2):
    """A table with a row a method, unless there is nothing in it; columns are functions of it."""
    rows = [
        {"method": method, "figures": [column(method) for column in columns.values()]}
        for method in methods
    ]
    measured = [row for row in rows if row["figures"] != [None] * len(columns)]
    heads = {"method": "{method.name}", "drafts a": "{method.shape}"}
    heads |= {head: f"{{figures[{at}]:.{digits}f}}" for at, head in enumerate(columns)}
    if measured:
        show_rows(title, measured, heads, num_words=2)


def draw(figures, path):
    """Draw the best of every engine, by draft tokens; raises OSError."""
    methods = {method.name: method for method in best_of_each_engine(figures)}

    def reached(one_set, line):
        method = methods[line.label]
        return [
            figures.on(one_set, "tokens_per_step", budget, "none", method)
            for budget in figures.budgets
        ]

    picture.draw(
        path,
        {one_set: partial(reached, one_set) for one_set in figures.sets},
        [
            picture.Line(name, name.startswith("coordgen"), method.shape == CHAIN)
            for name, method in methods.items()
        ],
        figures.budgets,
        columns=3,
        size=(3.4, 2.9),
        bottom=1,  # plain decoding
        label=("draft tokens per step", "tokens per step"),
    )


def best_of_each_engine(figures):
    """Of every engine, and of ours, the method with the most tokens a step; in their order."""
    best = {}
    for method in figures.methods:
        reached = figures.over(sum, "tokens_per_step", figures.middle, "none", method)
        engine = getattr(method, "package", method.name.partition(" ")[0])
        if reached is not None and reached > best.get(engine, (0.0, None))[0]:
            best[engine] = reached, method
    chosen = {method.name for _, method in best.values()}
    return [method for method in figures.methods if method.name in chosen]
