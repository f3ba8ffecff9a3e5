"""Recorded answers replayed: our drafter, SAM-Decoding and ArcticInference, under their ceiling.

    python benches/peers/replays.py --data DIR

DIR holds files of records, as for `table.py`, which sets more methods side by side. A file, a
tokenizer or a package that is absent is named and left out.

For each set and budget: tokens a step; ours over SAM-Decoding's; the tokens a step of an oracle
that picks what turns out right among all that any source could have proposed (see `ceiling.py`);
how much of the way from SAM-Decoding to it is gone; and how our steps ended.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.generation.drafting.common_phrases import phrase_table_at
from coordgen_rs.lab.replay.records import tokenized
from coordgen_rs.lab.replay.run import HISTORIES, replay
from recorded import arctic, sets
from recorded.ceiling import Losses, ceiling
from recorded.rule import replay_rule
from support.script import add_counts, add_json, parser_of, reports_errors, run_script, tell
from support.tables import show_rows

COLUMNS = {
    "budget": "{budget}",
    "ours": "{ours:.3f}",
    "SAM": "{sam:.3f}",
    "Arctic": "{arctic:.3f}",
    "ours / SAM": "{ours_of_sam:.3f}",
    "ceiling": "{ceiling:.3f}",
    "% of the way": lambda of: "-" if of["way_gone"] is None else f"{100 * of['way_gone']:.0f}",
    "never seen, % of steps": lambda of: (
        f"{100 * of['steps_ended']['never seen'] / of['steps']:.0f}"
    ),
    "ranked low, tokens a step": lambda of: f"{of['tokens_lost']['ranked low'] / of['steps']:.3f}",
    "cut, tokens a step": lambda of: f"{of['tokens_lost']['cut'] / of['steps']:.3f}",
}


@reports_errors
def main(arguments=None):
    """Print a table a set, or with `--json` one object; 2 where there is nothing to replay."""
    options = _parser().parse_args(arguments)
    sources = sets.chosen_sources(options)
    try:
        arctic.open_rule()
        has_arctic = True
    except ModuleNotFoundError:
        print(f"skipped {arctic.NAME}: no package {arctic.PACKAGE}", file=sys.stderr)
        has_arctic = False
    report = {}
    for name, source in sources.items():
        records, vocab_size = tokenized(source)
        phrases = phrase_table_at(source.tokenizer / "tokenizer.json")
        report[name] = _measured(name, records, vocab_size, phrases, options, has_arctic)
        if not options.json:
            show_rows(f"{name}, {len(records)} records", report[name], COLUMNS)
    tell(report, options.json, lambda report: None)


def _parser():
    parser = parser_of(__doc__)
    sets.add_options(parser)
    add_counts(parser, budgets=([8, 16, 32, 64], "draft tokens per step"))
    parser.add_argument("--history", choices=HISTORIES[:2], default="none")
    add_json(parser)
    return parser


def _measured(name, records, vocab_size, phrases, options, has_arctic):
    """The figures of a set, a dictionary a budget."""
    remembering = options.history == "earlier-requests"
    figures = []
    with progress() as on_progress:
        for done, budget in enumerate(options.budgets):
            on_progress(f"{name}, {budget} draft tokens", done, len(options.budgets))
            losses = Losses(budget, remembering=remembering)
            common = {"budget": budget, "history": options.history, "vocab_size": vocab_size}
            ours = replay(records, phrases=phrases, on_step=losses.step, **common)
            sam = replay(records, drafter="sam", **common)
            rule = arctic.Arctic(remembering) if has_arctic else None
            of_arctic = rule and replay_rule("arctic", records, budget, rule).tokens_per_step
            top = ceiling(records, budget, remembering=remembering)
            figures.append(_figures(budget, ours, sam, of_arctic, top, losses))
    return figures


def _figures(budget, ours, sam, of_arctic, top, losses):
    way = top - sam.tokens_per_step
    return {
        "budget": budget,
        "ours": ours.tokens_per_step,
        "sam": sam.tokens_per_step,
        "arctic": of_arctic,
        "ours_of_sam": ours.tokens_per_step / sam.tokens_per_step,
        "ceiling": top,
        "way_gone": (ours.tokens_per_step - sam.tokens_per_step) / way if way > 0 else None,
        "steps_ended": losses.steps,
        "tokens_lost": losses.tokens,
        "steps": ours.steps,
        "ours_per_task": ours.to_json()["per_task"],
        "sam_per_task": sam.to_json()["per_task"],
    }


if __name__ == "__main__":
    run_script(main)
