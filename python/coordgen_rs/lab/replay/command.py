"""The command `coordgen replay`: its options, what it prints, and the cells of its table.

In: files of records and settings. Out: tokens and steps of each task, and of all; no model runs.
"""

import argparse
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.text import printable
from coordgen_rs.errors import OptionError
from coordgen_rs.generation.drafting.common_phrases import phrase_table_at
from coordgen_rs.lab.fleet.tasks import RAY
from coordgen_rs.lab.replay.cells import TABLE, Row, fill, flattened
from coordgen_rs.lab.replay.records import TEMPLATES, Source, tokenized
from coordgen_rs.lab.replay.run import (
    DRAFTERS,
    HISTORIES,
    MOST_BUDGET,
    ROW_DRAFTERS,
    ReplayResult,
    replay,
)
from coordgen_rs.lab.tables import ALL, tell

EXAMPLES = """\
A recorded answer plays the target. With --commit compact, a step yields the accepted draft tokens
and the target's own next token, as in the literature and in `coordgen generate` where side branches
are exact. With --commit canonical, as elsewhere, tokens accepted on a side branch are fed again in
the next step, along with new drafts.

examples:
  coordgen replay specbench.jsonl --tokenizer llama2 --template vicuna --drafter prompt-lookup
  coordgen replay summaries.jsonl --tokenizer llama3 --template llama3 \\
      --output-of Llama-3.2-1B-Instruct --budget 32 --json
  coordgen replay actions.jsonl --tokenizer qwen2.5 --template qwen2.5 --history earlier-requests
  coordgen replay mails.jsonl records.jsonl --tokenizer qwen2.5 --template qwen2.5 \\
      --drafter coordgen-ours,sam --budget 8,16 --table results.json --ray local
"""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.path("data DATA", nargs="+").help("records, one JSON object per line"),
        option.path("--tokenizer DIR", required=True).help(
            "directory with the tokenizer.json of the model that answered"
        ),
        option.choice("--template", list(TEMPLATES)).help(
            "chat format of that model; needed unless the records have tokens"
        ),
        option.text("--output-of MODEL", may_be_empty=False).help(
            "use the answers of this model; default: the field `output`"
        ),
        option.several(option.one_of("--drafter NAME,..", ROW_DRAFTERS, default="auto")).help(
            f"the method to measure, of {', '.join(DRAFTERS)}; of records with rows also "
            f"{', '.join(ROW_DRAFTERS[len(DRAFTERS) :])}; default %(default)s"
        ),
        option.several(option.count("--budget B,..", most=MOST_BUDGET, default="16")).help(
            "draft tokens per step; default 16"
        ),
        option.several(option.one_of("--history NAME,..", HISTORIES, default="none")).help(
            "which earlier records methods may also draft from: earlier-requests (all), by-task "
            "(of the same task), nearest (of the task that the prompt is most like); default none"
        ),
        option.several(
            option.one_of("--commit NAME,..", ("compact", "canonical"), default="compact")
        ).help("compact or canonical; default compact"),
        option.count("--limit N").help("only the first N records"),
        option.count("--half H", least=0, most=1).help(
            "behind --limit: only every other record, from the first (0) or the second (1) on"
        ),
        option.JSON,
        TABLE,
        RAY,
    )


@dataclass(frozen=True)
class ReplayCell:
    """A cell; see `replay` for its settings."""

    source: Source
    drafter: str
    budget: int
    history: str
    commit: str

    def settings(self) -> Row:
        """Same as in `Cell`."""
        own = {name: value for name, value in vars(self).items() if name != "source"}
        return {"command": "replay", **self.source.settings(), **own}

    def measure(self) -> list[Row]:
        """Same as in `Cell`."""
        return rows_of(self.result())

    def result(self) -> ReplayResult:
        """The figures; raises as `read_records`, `open_tokenizer` and `replay`."""
        records, vocab_size = tokenized(self.source)
        return replay(
            records,
            drafter=self.drafter,
            budget=self.budget,
            history=self.history,
            commit=self.commit,
            vocab_size=vocab_size,
            phrases=phrase_table_at(self.source.tokenizer / "tokenizer.json"),
        )


def rows_of(result: ReplayResult) -> list[Row]:
    """A row for each task, and one for all."""
    figures = result.to_json()
    for name in ("drafter", "budget", "per_task"):
        del figures[name]
    rows = [
        {"task": task, "tokens": tokens, "steps": steps, "tokens_per_step": tokens / steps}
        for task, (tokens, steps) in sorted(result.per_task.items())
    ]
    return [*rows, {"task": ALL} | flattened(figures)]


def run(options: argparse.Namespace) -> int:
    """Replay the file and print the figures, or fill a table of all files and settings.

    Raises:
        OptionError: An option would be ignored, or there is no table for several figures.
    """
    settings = product(options.drafter, options.budget, options.history, options.commit)
    read = (options.template, options.output_of, options.limit, options.half)
    # A worker of Ray has another working directory.
    sources = [
        Source(path.absolute(), options.tokenizer.absolute(), *read) for path in options.data
    ]
    cells = [ReplayCell(source, *chosen) for source, chosen in product(sources, settings)]
    if options.table is not None:
        option.refuse(options, ["json"], "is for one file and setting, not for --table")
        return fill(options, cells)
    option.refuse(options, ["ray"], "needs --table")
    if len(cells) > 1:
        raise OptionError("several files or settings need --table FILE")
    source = Source(options.data[0], options.tokenizer, *read)
    figures = replace(cells[0], source=source).result().to_json()
    tell(options.json, figures, lambda: print(_table(figures)))
    return 0


def _table(figures: dict[str, Any]) -> str:
    lines = [
        f"{figures['drafter']}, {figures['budget']} draft tokens: "
        f"{figures['tokens']} tokens of {figures['records']} records in {figures['steps']} steps",
        f"tokens_per_step  {figures['tokens_per_step']:.3f}",
        *(f"  {printable(task):14} {value:.3f}" for task, value in figures["per_task"].items()),
        f"rows_per_token   {figures['rows_per_token']:.3f}",
        *(
            [f"known rows       {figures['known_rows']:.3f}"]
            if figures["known_rows"] is not None
            else []
        ),
        *(
            f"{call} p50 / p99  {figures[f'{call}_us']['p50']} / {figures[f'{call}_us']['p99']} us"
            for call in ("propose", "accept", "step")
        ),
        f"memory  {figures['memory_bytes'] / 1e6:.1f} MB",
    ]
    return "\n".join(lines)
