"""One table of all lossless methods that draft from text, on recorded answers.

    python benches/peers/table.py --data DIR

DIR holds files of records as `coordgen replay` takes them; `recorded/sets.toml` says what goes
with which tokenizer and template, a line a set. Recorded answers play the target: counted are the
tokens that a verification gives out and the rows that it computes for them; timed is drafting
alone. Methods of other engines run by their own code, which `make table` builds. A set or an engine
that is absent is named and left out.

Every set, method and number of draft tokens is a cell, kept in a file: what is there already is not
measured again, so a table that was interrupted goes on where it was. Figures of ours and of
SAM-Decoding are those of `coordgen replay --half 1`: of the half on which nothing was tuned.
"""

import os
import sys
from itertools import product
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from coordgen_rs.cli import option
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.lab.fleet.tasks import Processes
from coordgen_rs.lab.replay.cells import CELL, evaluate, key_of, open_table
from coordgen_rs.lab.replay.run import MOST_BUDGET
from recorded import report, sets
from recorded.methods import METHODS, versions
from support import picture
from support.script import ROOT, add_counts, parser_of, reports_errors, run_script

KEPT = ROOT / "build" / "table.json"
BUDGETS = [4, 8, 16, 32, 64]
_QUICK_LIMIT, _QUICK_BUDGETS = 40, [16]


@reports_errors
def main(arguments=None):
    """Measure what is not there yet, and print all; 1 where a cell failed, 2 for a wrong option."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options.limit, options.budgets = _QUICK_LIMIT, _QUICK_BUDGETS
    if options.picture is not None:
        picture.check(options.picture)
    figures, cells = _planned(sets.chosen_sources(options), options.budgets)
    failed = _measure(options.table, cells, figures, options.processes)
    report.show(figures)
    for version in versions(figures.methods):
        print(f"Peer: {version}")
    if options.picture is not None:
        report.draw(figures, options.picture)
    return 1 if failed else 0


def _parser():
    parser = parser_of(__doc__)
    sets.add_options(parser)
    option.count("--budgets", nargs="+", most=MOST_BUDGET, default=BUDGETS).help(
        "draft tokens per step; default 4 8 16 32 64"
    ).add_to(parser)
    parser.add_argument(
        "--quick", action="store_true", help="the first 40 lines of a file, 16 draft tokens"
    )
    parser.add_argument(
        "--table", type=Path, default=KEPT, metavar="FILE", help="where cells are kept"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE.svg")
    add_counts(parser, processes=(os.cpu_count() or 1, "cells measured at once"))
    return parser


def _planned(sources, budgets):
    """What the tables show, and its cells by set, method, budget and history."""
    methods = [method for method in METHODS if _is_there(method, max(budgets))]
    figures = report.Figures(list(sources), methods, budgets)
    asked = [(method, budget, "none") for method in methods for budget in budgets]
    asked += [(method, figures.middle, report.EARLIER) for method in methods if method.remembers]
    cells = {
        (name, method.name, budget, history): method.cell(source, budget, history)
        for (name, source), (method, budget, history) in product(sources.items(), asked)
    }
    return figures, cells


def _is_there(method, budget):
    try:
        method.open(budget)
    except (ImportError, OSError) as error:
        print(f"skipped {method.name}: {error}", file=sys.stderr)
        return False
    return True


def _measure(table_file, cells, figures, num_processes):
    """Fill the file with the cells that it lacks, and the figures from it; which failed."""
    table_file.parent.mkdir(parents=True, exist_ok=True)
    with open_table(table_file) as table, progress() as on_progress:
        done = evaluate(list(cells.values()), table, Processes(num_processes), on_progress)
        by_key = {}
        for row in table.rows:
            by_key.setdefault(row[CELL], {})[row["task"]] = row
    figures.rows |= {
        named: by_key[key] for named, cell in cells.items() if (key := key_of(cell)) in by_key
    }
    for failed in done.failed:
        print(f"table.py: {failed}", file=sys.stderr)
    return done.failed


if __name__ == "__main__":
    run_script(main)
