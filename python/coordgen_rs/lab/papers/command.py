"""The command `coordgen papers`: measures what the papers publish, and sets it beside.

In: a model, and perhaps a draft model and prompts. Out: a table a paper on stdout; and, as asked
for, `papers.json` and the page. With `--table`, what is measured is kept, so that a run that was
interrupted goes on.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs, text
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.errors.extras import package_version
from coordgen_rs.errors.json_text import parse_json
from coordgen_rs.lab.bench.condition import commit_of
from coordgen_rs.lab.papers import coordgen, diaa, edgellm, phone
from coordgen_rs.lab.papers.critique import remarks
from coordgen_rs.lab.papers.items import PAPERS, Found, Measurement, Wanted, items, rows_of
from coordgen_rs.lab.papers.page import check_page, critique_of, draw, tables_of, write_page
from coordgen_rs.lab.replay.cells import CELL, TABLE, TableFile, key_of, open_table, sha256_of
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import bundle_facts, machine_facts

MEASUREMENTS = (
    *(*coordgen.MEASUREMENTS, *phone.MEASUREMENTS),
    *(*edgellm.MEASUREMENTS, *diaa.MEASUREMENTS),
)
BUILT = Path("build/papers")
"""Where `make papers` puts the embedded model, its draft model and prompts."""

SCHEMA_VERSION = 1
_SHOWN_DIGITS = 7
_WRITTEN = ("json", "page", "table")

EXAMPLES = """\
Without MODEL, the embedded model is taken, as `make papers` lays it out in build/papers.

examples:
  coordgen papers
  coordgen papers --only "DIAA Figure 7"
  coordgen papers big-bundle --draft-model small-bundle --data prompts.jsonl --full \\
      --table kept.json --json papers.json --page papers.md
"""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.path("model MODEL", nargs="?").help("a bundle; default: the embedded model"),
        option.path("--draft-model BUNDLE").help("the draft model, for EdgeLLM's items"),
        option.path("--data FILE").help("prompts, one JSON object per line, as for `bench`"),
        option.flag("--full").help("all items, repeats and longer answers: an hour"),
        option.word("--only ITEM", action="append").help(
            "only this item, such as 'CoordGen Table 4', or paper; may be repeated"
        ),
        option.path("--json FILE").help("write all rows to FILE"),
        option.path("--page FILE").help("write the tables into a page, and pictures beside it"),
        TABLE,
        option.THREADS,
    )


@dataclass(frozen=True)
class PapersCell:
    """A cell: what one measurement finds with these models and prompts."""

    wanted: Wanted
    measurement: Measurement

    def settings(self) -> dict[str, Any]:
        """Same as in `Cell`."""
        wanted = self.wanted
        row: dict[str, Any] = {"command": "papers", "measures": self.measurement.name}
        row["model"] = wanted.model.resolve().name  # whose size says what it stands beside
        for name in ("model", "draft_model"):
            path = getattr(wanted, name)
            row[f"{name}_sha256"] = path and bundle_facts(open_bundle(path))["manifest_sha256"]
        row["data_sha256"] = wanted.data and sha256_of(wanted.data)
        row |= {"is_full": wanted.is_full, "threads": wanted.threads}
        return row | {"measured_at": commit_of(Path(__file__)) or package_version()}

    def measure(self) -> list[dict[str, Any]]:
        """Same as in `Cell`."""
        return [one._asdict() for one in self.measurement.find(self.wanted)]


def run(options: argparse.Namespace) -> int:
    """Measure what was asked for, print it and write it; 1 where a measurement failed.

    Raises:
        OptionError: An item is unknown, or there is no model.
        BundleError: A model cannot be used.
        NotWrittenError: A result cannot be written; the message says where it is.
    """
    chosen, wanted = _chosen(options.only), _wanted(options)
    names = [open_bundle(path).path.name for path in (wanted.model, wanted.draft_model) if path]
    for name in _WRITTEN:
        if getattr(options, name) is not None:
            outputs.check_file(f"--{name}", getattr(options, name))
    outputs.check_apart(**{name: getattr(options, name) for name in ("data", *_WRITTEN)})
    if options.page is not None:
        is_whole = set(options.only or ()) <= {*PAPERS}
        check_page(options.page, {name.split()[0] for name in chosen}, is_whole=is_whole)
    at = _measured_at(wanted.is_full, names)
    with (
        TemporaryDirectory() as folder,
        open_table(options.table or Path(folder) / "cells.json") as table,
    ):
        found, whys, failed = _found(wanted, chosen, table)
    rows = [row for name in chosen for row in rows_of(name, found[name], whys.get(name, ""))]
    for paper in PAPERS:
        own = [row for row in rows if row.paper == paper]
        if own:
            print(f"{tables_of(paper, own)}\n")
    said = [] if options.only else remarks()
    if said:
        print(f"{critique_of(said)}\n")
    print(f"measured at {at}")
    document = {
        "schema_version": SCHEMA_VERSION,
        "mode": "full" if wanted.is_full else "quick",
        "condition": machine_facts() | {"commit": commit_of(Path(__file__))},
        "models": names,
        "rows": [row.to_json() for row in rows],
        "why": [
            {"paper": row.paper, "item": row.item, "name": row.name, "why": row.why}
            for row in rows
            if row.why
        ],
    }
    if options.json is not None:
        told = json.dumps(document, indent=1)
        outputs.write(options.json, lambda path: path.write_text(f"{told}\n", "utf-8"))
    if options.page is not None and failed:
        text.tell(f"{options.page} stays as it is: not all could be measured")
    elif options.page is not None:
        write_page(options.page, rows, at, "coordgen papers", said)
        try:
            draw(options.page, rows)
        except OptionError as error:
            text.tell(f"no pictures: {error}")
    return 1 if failed else 0


def _wanted(options: argparse.Namespace) -> Wanted:
    """The options as what is measured with.

    Raises:
        OptionError: There is no model.
    """
    models = (options.model, options.draft_model, options.data)
    if options.model is None:
        option.refuse(options, ("draft_model", "data"), "needs MODEL, too")
        models = (BUILT / "embedded", BUILT / "draft", BUILT / "prompts.jsonl")
        for path in models:
            if not path.exists():
                raise OptionError(f"there is no {path}: give MODEL, or run `make papers`")
    elif options.data is not None and not options.data.is_file():
        raise OptionError(f"--data {options.data}: there is no such file")
    return Wanted(*models, is_full=options.full, threads=options.threads)


def _chosen(only: Sequence[str] | None) -> list[str]:
    """The items that were asked for, in their order.

    Raises:
        OptionError: One is unknown.
    """
    for name in only or ():
        if name not in items() and name not in PAPERS:
            known = next((of for of in items() if of.startswith(name)), "CoordGen Table 4")
            raise OptionError(f"--only {name!r} is no item of the papers, such as {known!r}")
    return [name for name in items() if not only or name in only or name.split()[0] in only]


def _measured_at(is_full: bool, models: Sequence[str]) -> str:
    """Commit, machine, mode and models, as below a table of the documents."""
    commit, facts = commit_of(Path(__file__)), machine_facts()
    changed = ", with uncommitted changes" if commit is not None and commit.endswith("+") else ""
    mode = "full" if is_full else "quick"
    where = f"{facts['cpu']}, {facts['cores']} cores"
    shown = "an unknown commit" if commit is None else commit[:_SHOWN_DIGITS]
    return f"{shown}{changed}, on {where}: {mode}, {' and '.join(models)}"


def _found(
    wanted: Wanted, chosen: Sequence[str], table: TableFile
) -> tuple[dict[str, list[Found]], dict[str, str], bool]:
    """What the measurements of items find, and why others find nothing; whether one failed."""
    found: dict[str, list[Found]] = {name: [] for name in items()}
    whys: dict[str, str] = {}
    failed = False
    for measurement in MEASUREMENTS:
        if not set(measurement.items) & set(chosen):
            continue
        why = measurement.lack(wanted)
        if not why:
            start, cell = time.perf_counter(), PapersCell(wanted, measurement)
            try:
                key = key_of(cell)
                if key not in table.cells:
                    table.add({CELL: key} | row for row in cell.measure())
                for one in _kept(table, key):
                    found[one.item].append(one)
            except (CoordgenError, OSError) as error:
                why, failed = f"failed: {error}", True
                text.tell(f"coordgen: error: {measurement.name}: {error}")
            text.tell(f"{measurement.name}: {time.perf_counter() - start:.0f} s")
        if why:
            whys |= {name: why for name in measurement.items if name not in whys}
    return found, whys, failed


def _kept(table: TableFile, key: str) -> list[Found]:
    """What a table holds of a cell.

    Raises:
        OptionError: Its rows are not those of this command.
    """
    rows = [row for row in table.rows if row[CELL] == key]
    for row in rows:
        if not {*Found._fields} <= row.keys() or row["item"] not in items():
            raise OptionError(f"{table.path} has rows that are none of `papers`")
    return [Found(*(row[name] for name in Found._fields)) for row in rows]


def schema() -> dict[str, Any]:
    """The JSON schema of `papers.json`."""
    read = resources.files(__package__).joinpath("schema.json").read_bytes()
    parsed: dict[str, Any] = parse_json(read, "schema.json")
    return parsed
