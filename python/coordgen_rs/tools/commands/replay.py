"""The command `coordgen replay`: its options, and what it prints."""

import argparse
import json
from itertools import product
from typing import Any

from coordgen_rs.cli.terminal import values
from coordgen_rs.errors import OptionError
from coordgen_rs.tools.commands import ray_option, table_option
from coordgen_rs.tools.evaluation.replayed import Replayed, Source
from coordgen_rs.tools.replay.records import read_records
from coordgen_rs.tools.replay.run import DRAFTERS, HISTORIES, MOST_BUDGET, replay
from coordgen_rs.tools.replay.templates import TEMPLATES, open_tokenizer, tokenize

EXAMPLES = """\
A recorded answer plays the target. With --commit compact, a step yields the accepted draft tokens
and the target's own next token, as in the literature. With --commit canonical, the default of
`coordgen generate`, tokens accepted on a side branch are fed again in the next step, along with new
drafts.

examples:
  coordgen replay specbench.jsonl --tokenizer llama2 --template vicuna --drafter prompt-lookup
  coordgen replay summaries.jsonl --tokenizer llama3 --template llama3 \\
      --output-of Llama-3.2-1B-Instruct --budget 32 --json
  coordgen replay actions.jsonl --tokenizer qwen2.5 --template qwen2.5 --history earlier-requests
  coordgen replay mails.jsonl records.jsonl --tokenizer qwen2.5 --template qwen2.5 \\
      --drafter coordgen,sam --budget 8,16 --table results.json --ray local
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "data",
        type=values.path("DATA"),
        nargs="+",
        metavar="DATA",
        help="records, one JSON object per line",
    )
    parser.add_argument(
        "--tokenizer",
        type=values.path("--tokenizer"),
        required=True,
        metavar="DIR",
        help="directory with the tokenizer.json of the model that answered",
    )
    parser.add_argument(
        "--template", choices=list(TEMPLATES), required=True, help="chat format of that model"
    )
    parser.add_argument(
        "--output-of",
        type=values.text("--output-of", may_be_empty=False),
        metavar="MODEL",
        help="use the answers of this model; default: the field `output`",
    )
    parser.add_argument(
        "--drafter",
        type=values.several(values.one_of("--drafter", DRAFTERS)),
        default="auto",
        metavar="NAME,..",
        help=f"the method to measure, of {', '.join(DRAFTERS)}; default %(default)s",
    )
    parser.add_argument(
        "--budget",
        type=values.several(values.count("--budget", most=MOST_BUDGET)),
        default="16",
        metavar="B,..",
        help="draft tokens per step; default 16",
    )
    parser.add_argument(
        "--history",
        type=values.several(values.one_of("--history", HISTORIES)),
        default="none",
        metavar="NAME,..",
        help="earlier-requests: methods that can also draft from earlier records; default none",
    )
    parser.add_argument(
        "--commit",
        type=values.several(values.one_of("--commit", ("compact", "canonical"))),
        default="compact",
        metavar="NAME,..",
        help="compact or canonical; default compact",
    )
    parser.add_argument(
        "--limit", type=values.count("--limit"), metavar="N", help="only the first N records"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    table_option.add_argument(parser)
    ray_option.add_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Replay the file and print the figures, or fill a table of all files and settings.

    Raises:
        OptionError: An option would be ignored, or there is no table for several figures.
    """
    settings = list(product(options.drafter, options.budget, options.history, options.commit))
    if options.table is not None:
        values.refuse(options, ["json"], "is for one file and setting, not for --table")
        return table_option.fill(options, _cells(options, settings))
    values.refuse(options, ["ray"], "needs --table")
    if len(options.data) * len(settings) > 1:
        raise OptionError("several files or settings need --table FILE")
    ((drafter, budget, history, commit),) = settings
    template = TEMPLATES[options.template]
    tokenizer = open_tokenizer(options.tokenizer, template)
    records = read_records(options.data[0], output_of=options.output_of, limit=options.limit)
    result = replay(
        [tokenize(record, template, tokenizer) for record in records],
        drafter=drafter,
        budget=budget,
        history=history,
        commit=commit,
        vocab_size=tokenizer.vocab_size,
    )
    figures = result.to_json()
    print(json.dumps(figures) if options.json else _table(figures))
    return 0


def _cells(
    options: argparse.Namespace, settings: list[tuple[str, int, str, str]]
) -> list[Replayed]:
    sources = [
        Source(
            path.absolute(),
            options.tokenizer.absolute(),
            options.template,
            options.output_of,
            options.limit,
        )
        for path in options.data
    ]
    return [Replayed(source, *chosen) for source in sources for chosen in settings]


def _table(figures: dict[str, Any]) -> str:
    lines = [
        f"{figures['drafter']}, {figures['budget']} draft tokens: "
        f"{figures['tokens']} tokens of {figures['records']} records in {figures['steps']} steps",
        f"tokens_per_step  {figures['tokens_per_step']:.3f}",
        *(f"  {task:14} {value:.3f}" for task, value in figures["per_task"].items()),
        *(
            f"{call} p50 / p99  {figures[f'{call}_us']['p50']} / {figures[f'{call}_us']['p99']} us"
            for call in ("propose", "accept")
        ),
        f"memory  {figures['memory_bytes'] / 1e6:.1f} MB",
    ]
    return "\n".join(lines)
