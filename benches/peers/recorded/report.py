"""The tables of recorded replays: Markdown, ready for the documents.

In: the figures of all cells. Out: what is printed. A cell that was not measured is `-`.
"""

import statistics
from dataclasses import dataclass, field
from functools import partial

from coordgen_rs.cli.terminal.printable import printable
from coordgen_rs.lab.tables import ALL, show_table

EARLIER = "earlier-requests"
_ABSENT = "-"
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
    rows = [[column(method) for column in columns.values()] for method in methods]
    measured = [
        (method, row) for method, row in zip(methods, rows, strict=True) if row != [None] * len(row)
    ]
    cells = [
        [
            method.name,
            method.shape,
            *(_ABSENT if value is None else f"{value:.{digits}f}" for value in row),
        ]
        for method, row in measured
    ]
    if cells:
        show_table(title, ["method", "drafts a", *columns], cells, num_words=2)
