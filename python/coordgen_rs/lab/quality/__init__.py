"""`coordgen quality`: what each kind of weights of a checkpoint costs, in bytes and in fidelity."""

import argparse
from typing import TYPE_CHECKING

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.lab.tables import Column, show_table, tell

if TYPE_CHECKING:
    from coordgen_rs.lab.quality.weights import QualityReport

EXAMPLES = """\
examples:
  coordgen quality Qwen2.5-0.5B-Instruct --text prompts.jsonl
  coordgen quality SmolLM2-135M-Instruct.Q4_1.gguf --weights int4,keep --text prompts.jsonl
  coordgen quality Qwen2.5-0.5B-Instruct --weights int4 --calibration mails.jsonl
  coordgen quality SmolLM2-135M-Instruct --soc 8-elite --calibration chats.jsonl --text more.jsonl
  coordgen quality SmolLM2-135M-Instruct --bundle for-my-phone --text prompts.jsonl
"""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.path("checkpoint CHECKPOINT").help("same as in `coordgen export`"),
        option.word("--weights KIND,..").help(
            "some of the kinds of `coordgen export --weights`; default: all, fp32 in any case"
        ),
        option.path("--text FILE").help(
            "what is read: UTF-8, or JSON lines (.jsonl); default: every fourth piece of the "
            "calibration file, which is not calibrated on, or else four short English texts, too "
            "few for more than a first look"
        ),
        option.path("--calibration FILE").help(
            "same as in `coordgen export`; int4 is then listed with and without it"
        ),
        option.word("--soc NAME").help(
            "compare the kinds for QNN on this chip; their graphs run on the CPU"
        ),
        option.choice("--kv-cache", ["uint8", "uint16"]).help(
            "type of cached keys and values for QNN; default: uint8"
        ),
        option.path("--bundle DIR", action="append").help(
            "compare this bundle of the checkpoint instead; may be repeated"
        ),
        option.count("--tokens N", least=2, default=2048).help(
            "most tokens of the text; default %(default)s"
        ),
        option.THREADS,
        option.JSON,
    )


def run(options: argparse.Namespace) -> int:
    """Print a row for each kind of weights.

    Raises:
        OptionError: Two options exclude each other, or a package is missing.
    """
    if options.bundle and (options.soc or options.weights):
        raise OptionError("--bundle excludes --soc and --weights: a bundle has both already")
    if options.kv_cache and not options.soc:
        raise OptionError("--kv-cache needs --soc NAME, the chip")
    try:
        from coordgen_rs.lab.quality.weights import compare_weights
    except ModuleNotFoundError as error:
        raise OptionError(f"comparing needs {error.name}: {how_to_install('export')}") from error
    with progress() as on_progress:
        report = compare_weights(
            options.checkpoint,
            weights=options.weights and options.weights.split(","),
            text=options.text,
            calibration=options.calibration,
            most_tokens=options.tokens,
            threads=options.threads,
            soc=options.soc,
            cache_type=options.kv_cache or "uint8",
            bundles=options.bundle or (),
            on_progress=on_progress,
        )
    tell(options.json, report.to_json(), lambda: _show(report))
    return 0


def _show(report: "QualityReport") -> None:
    columns = (
        Column("weights"),
        Column("MB", digits=1),
        Column("perplexity", digits=3),
        Column("same next token"),
        Column("divergence", digits=4),
    )
    rows = []
    for row in report.rows:
        kind = "" if row.cache_type is None else f", {row.cache_type} cache"
        if row.is_calibrated and row.cache_type is None:
            kind = ", calibrated"
        agreement = f"{100 * row.agreement:.1f} %"
        figures = (row.num_bytes / 1e6, row.perplexity, agreement, row.divergence)
        rows.append((f"{row.weights}{kind}", *figures))
    title = f"{report.num_tokens} tokens; divergence from fp32 in nats a token"
    show_table(title, columns, rows)
