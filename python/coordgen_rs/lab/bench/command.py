"""The command `coordgen bench`: its options, and what it prints and writes."""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coordgen_rs._core import PLAIN, draft_method
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.generation.drafting.drafter import METHODS, READS_TABLE
from coordgen_rs.lab.bench.condition import Condition
from coordgen_rs.lab.bench.drafting import measure_methods
from coordgen_rs.lab.bench.recorder import recorded
from coordgen_rs.lab.bench.sections import SECTIONS, chosen_sections, document
from coordgen_rs.lab.bench.workbench import STRATEGIES, Settings, Workbench
from coordgen_rs.lab.fleet.tasks import RAY, in_own_process
from coordgen_rs.lab.plots import check_matplotlib, plot_section
from coordgen_rs.lab.replay.cells import TABLE, Row, fill, flattened, sha256_of
from coordgen_rs.lab.tables import Section
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import Profile, device_facts

_MOST_LOAD_DELAY_S = 3_600.0

_ABOUT_SECTIONS = "\n".join(f"  {name:14}{entry.about}" for name, entry in SECTIONS.items())
EXAMPLES = f"""\
DATA has one JSON object per line, with `task` and `prompt`. Methods take turns on the same prompts,
and all answers are compared. Each figure is a median, with the lowest and highest repeat.

sections:
{_ABOUT_SECTIONS}

examples:
  coordgen bench bundle prompts.jsonl --json bench.json --plots plots
  coordgen bench bundle prompts.jsonl --quick
  coordgen bench bundle prompts.jsonl --sections methods,sources --limit 20
  coordgen bench bundle prompts.jsonl --sections methods --methods all --draft-model small-bundle \\
      --costs free
  coordgen bench bundle prompts.jsonl --sections edgellm --draft-model small-bundle \\
      --memory-budget 400M --load-delay 0.05
  coordgen bench bundle prompts.jsonl --sections methods --and-data mails.jsonl \\
      --and-bundle small-bundle --table results.json
  coordgen bench bundle --sections switching --threads 1 --load-delay 0.5
  coordgen bench bundle prompts.jsonl --records records.jsonl --methods auto,diaa --costs free
"""
_STDOUT = Path("-")

_DRAFTING = ("methods", "graphs", "breakdown", "latency", "energy")
_STREAMING = ("methods", "edgellm", "sources", "breakdown", "latency", "energy")
_READ_BY = {
    "methods": ("methods",),
    "draft_model": (*_DRAFTING, "edgellm"),
    "lookup_table": (*_DRAFTING, "memory"),
    "profile": ("switching",),
    "strategies": ("switching",),
    "load_delay": ("switching", *_STREAMING),
    "pin_loads": _STREAMING,
}
"""Options and the sections that read them."""

QUICK: dict[str, int] = {"repeats": 2, "limit": 2, "max_new_tokens": 40, "prompt_len": 256}
"""What `--quick` sets, unless an option says otherwise."""

_AS_GIVEN = (
    *("bundle", "data", "draft_model", "lookup_table", "ignore_eos", "width", "threads"),
    *("memory_budget", "kv_cache", "pin_loads"),
)
"""Options that are settings as they are."""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.EXPORTED_BUNDLE,
        option.path("data DATA", nargs="?").help("prompts, one JSON object per line"),
        option.several(option.one_of("--sections NAME,..", [*SECTIONS])).help(
            "only these sections; default: all"
        ),
        option.flag("--quick").help(
            "take a few minutes: "
            + ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in QUICK.items())
        ),
        option.path("--json FILE").help(
            "write all figures and conditions to FILE; - prints them instead of tables"
        ),
        option.path("--records FILE").help(
            "measure nothing: write the target's answers to FILE, with what it held likely behind "
            "each token, and behind the drafts of --methods, for `coordgen replay`"
        ),
        TABLE,
        *(
            option.path(f"--and-{name.lower()} {name}", action="append").help(
                f"with --table: a further {name}, combined with the others; may be repeated"
            )
            for name in ("BUNDLE", "DATA")
        ),
        RAY,
        option.path("--plots DIR").help("draw each section as PNG and SVG"),
        option.count("--repeats N").help("repeats of each measurement; default 5"),
        option.count("--limit N").help("only the first N prompts of each task"),
        option.count("--max-new-tokens N").help("most tokens per answer; default 96"),
        option.flag("--ignore-eos").help(
            "go on behind end tokens: all answers have --max-new-tokens"
        ),
        option.THREADS,
        option.count("--width N").help("most rows per step"),
        option.KV_CACHE,
        *option.PROVIDER,
    )
    parser.declare_group(
        "options of sections that draft",
        option.Option("--methods NAME,..", _methods).help(
            f"any of {', '.join(METHODS)}; or all; default: those that can run"
        ),
        option.path("--draft-model BUNDLE").help("the draft model, for methods that need one"),
        option.path("--lookup-table FILE").help(
            "initial table of the methods diaa, diaa-ours and blend, from `coordgen warm-up`"
        ),
        option.choice("--history", ["none", "earlier-requests"], default="earlier-requests").help(
            "whether methods may draft from earlier prompts of a task; default %(default)s"
        ),
        option.choice("--costs", ["free", "measured"], default="measured").help(
            "measured: draft only where it pays on this machine; free: rows cost nothing, as on "
            "an NPU, and every step is as wide as possible; default %(default)s"
        ),
    )
    parser.declare_group(
        "options for switching and streaming",
        option.size("--memory-budget SIZE").help(
            "most memory for the target's graphs and experts, e.g. 800M; blocks that do not fit "
            "are streamed"
        ),
        option.path("--profile FILE").help(
            "a profile from `coordgen profile`; default: measured now"
        ),
        option.count("--prompt-len L", least=2).help(
            "length of made-up prompts in tokens; default 512"
        ),
        option.several(option.one_of("--strategies NAME,..", STRATEGIES)).help(
            "strategies for the section switching; default: all"
        ),
        option.number("--load-delay SECONDS", least=0, most=_MOST_LOAD_DELAY_S).help(
            "delay added to each load of a block, as by a slower disk: in the section switching, "
            "and with --memory-budget in all that stream"
        ),
        option.flag("--pin-loads").help(
            "with --memory-budget: give loads a core of their own, and all else the others"
        ),
    )


def _methods(name: str, typed: str) -> list[str]:
    if typed == "all":
        return [*METHODS]
    return [arguments.one_of(name, one, METHODS) for one in option.parse_names(name, typed)]


def run(options: argparse.Namespace) -> int:
    """Measure, print, write and draw; what was measured before an error is kept.

    Raises:
        OptionError: An option is outside its range, or would be ignored.
        NotWrittenError: The figures cannot be written to FILE; the message says where they are.
    """
    settings = settings_of(options)
    to_file = None if options.json in (None, _STDOUT) else options.json
    outputs.check_apart(
        DATA=options.data, records=options.records, json=to_file, table=options.table
    )
    if options.records is not None:
        return _record(options, settings)
    names = chosen_sections(options.sections, settings)
    _check_used(options, settings, names)
    if options.table is not None:
        return _fill(options, settings, names)
    option.refuse(options, ["and_bundle", "and_data", "ray"], "needs --table")
    if to_file is not None:
        outputs.check_file("--json", to_file)
    if options.profile is not None:
        Profile.find(str(options.profile))
    if options.plots is not None:
        check_matplotlib()
        outputs.check_directory("--plots", options.plots)
    with progress() as on_progress:
        bench = Workbench.open(settings, on_progress)
    condition = Condition.of(bench.session, settings.data, bench.num_prompts, _asked(settings))
    caption = condition.caption()
    measured: list[Section] = []
    try:
        for name in names:
            with progress() as bench.on_progress:
                measured.append(SECTIONS[name].measure(bench))
            if options.json != _STDOUT:
                measured[-1].show(caption)
            if options.plots is not None:
                plot_section(measured[-1], caption, options.plots)
    finally:
        if options.json is not None:
            report = document(condition, measured, is_complete=len(measured) == len(names))
            text = json.dumps(report, indent=1)
            if to_file is None:
                print(text)
            else:
                outputs.write(to_file, lambda path: path.write_text(f"{text}\n", "utf-8"))
    return 0


def _record(options: argparse.Namespace, settings: Settings) -> int:
    """Write the records of all prompts.

    Raises:
        OptionError: An option would be ignored, or there are no prompts.
    """
    if settings.data is None:
        raise OptionError("--records needs DATA, a file of prompts")
    elsewhere = ("sections", "table", "json", "plots", "repeats", "ray", "and_bundle", "and_data")
    sections = [name for name, readers in _READ_BY.items() if "methods" not in readers]
    option.refuse(options, (*elsewhere, *sections), "does nothing with --records")
    outputs.check_file("--records", options.records)
    with progress() as on_progress:
        bench = Workbench.open(settings, on_progress)
        lines = [json.dumps(record) for record in recorded(bench, settings.methods)]
    text = "".join(f"{line}\n" for line in lines)
    outputs.write(options.records, lambda path: path.write_text(text, "utf-8"))
    return 0


def _fill(options: argparse.Namespace, settings: Settings, sections: Sequence[str]) -> int:
    """Measure the section `methods` of all bundles and prompts into a table.

    Raises:
        OptionError: An option would be ignored, or Ray would not know what a cell needs.
    """
    if list(sections) != ["methods"]:
        raise OptionError("--table is for --sections methods")
    option.refuse(options, ["json", "plots"], "is not written with --table")
    if options.ray is not None and settings.threads is None:
        raise OptionError("--ray needs --threads, as many cores as each cell is to have")
    cells = []
    for bundle in (settings.bundle, *(options.and_bundle or ())):
        for data in (settings.data, *(options.and_data or ())):
            paths = {"bundle": bundle.absolute(), "data": data and data.absolute()}
            cells.append(BenchCell(replace(settings, **paths)))
    return fill(options, cells, cores=settings.threads or 1)


def settings_of(options: argparse.Namespace) -> Settings:
    """The options as settings; those of `--quick` unless an option says otherwise.

    Raises:
        OptionError: An option is outside its range.
    """
    given: dict[str, Any] = {name: getattr(options, name) for name in _AS_GIVEN}
    for name in QUICK:
        value = getattr(options, name)
        if value is None and options.quick:
            value = QUICK[name]
        if value is not None:
            given[name] = value
    if options.strategies is not None:
        given["strategies"] = tuple(options.strategies)
    return Settings(
        methods=tuple(options.methods or ()),
        remembering=options.history == "earlier-requests",
        is_free=options.costs == "free",
        provider=option.chosen_provider(options),
        load_delay_s=options.load_delay or 0.0,
        profile=None if options.profile is None else str(options.profile),
        **given,
    )


def _check_used(options: argparse.Namespace, settings: Settings, sections: Sequence[str]) -> None:
    """Refuse options that no section to be measured reads.

    Raises:
        OptionError: There is one; the message names it.
    """
    for name, readers in _READ_BY.items():
        if not set(readers) & set(sections):
            option.refuse(options, [name], f"is only for the sections {', '.join(readers)}")
    if settings.memory_budget is None:
        why = "is only for targets that are streamed: give --memory-budget"
        option.refuse(options, ["pin_loads"], why)
        if "switching" not in sections:
            option.refuse(options, ["load_delay"], why)
    if settings.methods:
        used = {source for name in settings.methods for source in _sources(name, settings)}
        asked = ", ".join(settings.methods)
        for name, source in (("draft_model", ("draft-model",)), ("lookup_table", READS_TABLE)):
            if used.isdisjoint(source) and {"methods"} >= {*_READ_BY[name]} & {*sections}:
                option.refuse(options, [name], f"is not used by --methods {asked}")


def _sources(method: str, settings: Settings) -> list[str]:
    """What a method drafts from; none for one that is unknown, or lacks what it needs."""
    if method == PLAIN:
        return []
    try:
        return draft_method(method).sources(
            free_rows=settings.is_free, draft_model=settings.draft_model is not None
        )
    except OptionError:  # `Workbench.open` says what is wrong
        return []


def _asked(settings: Settings) -> dict[str, object]:
    """The settings that change figures, as JSON types, without those in the condition."""
    elsewhere = {"bundle", "data", "threads", "provider", "power_root"}
    shown = {name: value for name, value in asdict(settings).items() if name not in elsewhere}
    return {name: value.name if isinstance(value, Path) else value for name, value in shown.items()}


_UNUSED = ("prompt_len", "strategies", "profile", "power_root")
"""Settings that only other sections read."""


@dataclass(frozen=True)
class BenchCell:
    """A cell: what `coordgen bench --sections methods` measures with these settings."""

    wanted: Settings

    def settings(self) -> Row:
        """Same as in `Cell`.

        Raises:
            OptionError: There are no prompts.
            BundleError: A bundle cannot be used.
        """
        wanted = self.wanted
        if wanted.data is None:
            raise OptionError("section 'methods' needs DATA, a file of prompts")
        row: Row = {
            "command": "bench methods",
            "data": wanted.data.name,
            "data_sha256": sha256_of(wanted.data),
        }
        for name in ("bundle", "draft_model"):
            path = getattr(wanted, name)
            row[name] = None if path is None else path.name
            row[f"{name}_sha256"] = None if path is None else _identity(path)
        table = wanted.lookup_table
        row["lookup_table_sha256"] = None if table is None else sha256_of(table)
        left = asdict(wanted)
        for name in (*_UNUSED, "bundle", "data", "draft_model", "lookup_table"):
            del left[name]
        return row | {name: _cell(value) for name, value in left.items()}

    def measure(self) -> list[Row]:
        """Same as in `Cell`."""
        rows: list[Row] = in_own_process(_rows, self.wanted)
        return rows


def _rows(wanted: Settings) -> list[Row]:
    bench = Workbench.open(wanted)
    device = flattened({"device": device_facts(bench.session.bundle, bench.session.threads)})
    return [flattened(row) | device for row in measure_methods(bench).to_json()["rows"]]


def _identity(path: Path) -> str:
    return hashlib.sha256(open_bundle(path).identity()).hexdigest()


def _cell(value: Any) -> Any:
    """A setting as a word, a number or None."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={inner}" for name, inner in value.items() if inner is not None)
    return ",".join(value) if isinstance(value, tuple) else value
