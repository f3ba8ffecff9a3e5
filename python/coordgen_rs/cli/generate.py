"""`coordgen generate`: answer a prompt, printing text as it comes."""

import argparse
import json
import sys
from typing import Any

from coordgen_rs._core import PLAIN, draft_methods, draft_sources, strategies
from coordgen_rs.answer import Answer, Stream
from coordgen_rs.cli import history as history_command
from coordgen_rs.cli import provider_options, text, values
from coordgen_rs.cli.colours import SourceColours, wants_colours
from coordgen_rs.cli.compare import compare
from coordgen_rs.cli.progress import progress
from coordgen_rs.cli.warned import warnings_told
from coordgen_rs.errors import OptionError
from coordgen_rs.model import Model

ABOUT = "answer a prompt, printing text as it comes"
EXAMPLES = """\
On a terminal, the answer is coloured by source, with a legend below it; uncoloured text comes from
the model without a draft. NO_COLOR=1 turns colours off, FORCE_COLOR=1 turns them on.

examples:
  coordgen generate --model bundle --prompt "Once upon a time" --max-new-tokens 64
  coordgen generate --model bundle --prompt-file question.txt --compare
  cat question.txt | coordgen generate --model bundle - --draft prompt-lookup --json
  coordgen generate --model bundle --prompt-file mail.txt --history answers --namespace mail/alice
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--model",
        required=True,
        type=values.path("--model"),
        metavar="BUNDLE",
        help="from `coordgen export`",
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt", type=values.text("--prompt"), metavar="TEXT", help="the prompt itself"
    )
    prompt.add_argument(
        "--prompt-file",
        type=values.path("--prompt-file"),
        metavar="FILE",
        help="a UTF-8 text file with the prompt",
    )
    prompt.add_argument("stdin", nargs="?", choices=["-"], help="read the prompt from stdin")
    parser.add_argument(
        "--max-new-tokens",
        type=values.count("--max-new-tokens"),
        default=256,
        metavar="N",
        help="most tokens of the answer; default %(default)s",
    )
    parser.add_argument(
        "--stop",
        type=values.text("--stop", may_be_empty=False),
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before this text; can be given more than once",
    )
    drafts = parser.add_mutually_exclusive_group()
    drafts.add_argument(
        "--draft",
        choices=[*(method.name for method in draft_methods()), PLAIN],
        default="auto",
        help="how to draft: auto (default), another method, or plain for no drafts; see "
        "docs/sources-and-methods.md",
    )
    drafts.add_argument(
        "--sources",
        type=values.names("--sources"),
        metavar="NAME,..",
        help="draft from these sources only: "
        + ", ".join(source.name for source in draft_sources() if source.can_be_asked_for),
    )
    parser.add_argument(
        "--draft-model",
        type=values.path("--draft-model"),
        metavar="BUNDLE",
        help="a smaller model with the same tokenizer that also drafts; edgellm needs it",
    )
    parser.add_argument(
        "--lookup-table",
        type=values.path("--lookup-table"),
        metavar="FILE",
        help="a table written by `coordgen warm-up`, for --draft diaa and blend",
    )
    parser.add_argument(
        "--budget",
        type=values.count("--budget"),
        metavar="N",
        help="verify at most N draft tokens per step",
    )
    parser.add_argument(
        "--commit",
        choices=["canonical", "compact"],
        default="canonical",
        help="canonical (default) is always exact; compact only where `coordgen check` says so",
    )
    parser.add_argument(
        "--temperature",
        type=values.number("--temperature", least=0),
        default=0,
        metavar="T",
        help="sample at this temperature; 0 (default) always takes the most likely token",
    )
    parser.add_argument(
        "--top-k",
        type=values.count("--top-k", least=0),
        default=0,
        metavar="K",
        help="sample from the K most likely tokens; default: all",
    )
    parser.add_argument(
        "--top-p",
        type=values.number("--top-p", least=0, most=1),
        default=1,
        metavar="P",
        help="sample from the fewest tokens whose probabilities add up to P; default: all",
    )
    parser.add_argument(
        "--seed",
        type=values.count("--seed", least=0, most=2**64 - 1),
        default=0,
        metavar="N",
        help="the same seed gives the same tokens",
    )
    history_command.add_generate_arguments(parser)
    parser.add_argument(
        "--switch",
        choices=list(strategies()),
        default="auto",
        help="when to switch from the prefill graphs to the decode graphs; default %(default)s",
    )
    parser.add_argument(
        "--memory-budget",
        type=values.size("--memory-budget"),
        metavar="BYTES",
        help="most memory for the blocks' graphs (500M, 2G); blocks that do not fit are loaded "
        "again in every pass, while others compute",
    )
    parser.add_argument(
        "--profile",
        type=values.path("--profile"),
        metavar="FILE",
        help="a profile from `coordgen profile`, for --switch and --memory-budget",
    )
    provider_options.add_arguments(parser)
    parser.add_argument(
        "--threads",
        type=values.count("--threads"),
        metavar="N",
        help="compute threads; default: one per core",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also decode without drafts, and compare; a short answer is repeated in turns, and "
        "tokens/s are medians",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    """Answer the prompt, and print what it took; exit code 1 if `--compare` finds a difference.

    Raises:
        OptionError: An option would be ignored.
    """
    if options.draft == PLAIN and options.budget is not None:
        raise OptionError(f"--budget is for drafts, but --draft is {PLAIN}")
    prompt = _prompt(options)
    request = {
        "max_new_tokens": options.max_new_tokens,
        "stop": options.stop,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "seed": options.seed,
    }
    with warnings_told(), _opened(options) as model:
        if options.json:
            answer = model.generate(prompt, **request)
        else:
            answer = _show(model.stream(prompt, **request))
        report = _report(answer) | {"commit": options.commit, "provider": model.provider}
        if options.compare:
            compared = compare(
                answer,
                lambda drafts: model.generate(prompt, drafts=drafts, **request),
                is_stored=options.history is not None,
            )
            report |= compared.to_json()
    if options.json:
        print(json.dumps(report))
    else:
        print(_closing_line(report), file=sys.stderr)
    return 0 if report.get("identical", True) else 1


def _prompt(options: argparse.Namespace) -> str:
    if options.prompt is not None:
        return str(options.prompt)
    return text.read_stdin() if options.stdin else text.read_file(options.prompt_file)


def _opened(options: argparse.Namespace) -> Model:
    with progress() as on_progress:
        return Model.open(
            options.model,
            threads=options.threads,
            width=None if options.budget is None else options.budget + 1,  # the root takes a row
            draft=options.sources or options.draft,
            commit=options.commit,
            history=options.history,
            namespace=options.namespace,
            history_max_tokens=options.history_max_tokens,
            draft_model=options.draft_model,
            lookup_table=options.lookup_table,
            switch=options.switch,
            memory_budget=options.memory_budget,
            profile=options.profile,
            provider=provider_options.chosen(options),
            on_progress=on_progress,
        )


def _show(stream: Stream) -> Answer:
    """Print the text as it comes, coloured by source on a terminal."""
    colours = SourceColours() if wants_colours(sys.stdout) else None
    with stream:
        for piece in stream:
            shown = piece.text if colours is None else colours.painted(piece)
            print(shown, end="", flush=True)
    print(flush=True)
    answer = stream.answer
    if colours is not None:
        print(colours.legend(answer.sources, painted=wants_colours(sys.stderr)), file=sys.stderr)
    return answer


def _report(answer: Answer) -> dict[str, Any]:
    spans = [span._asdict() for span in answer.spans]
    told = {"text": answer.text, "token_ids": answer.token_ids, "spans": spans}
    return told | answer.stats.to_json()


def _closing_line(report: dict[str, Any]) -> str:
    line = (
        f"{report['new_tokens']} tokens in {report['steps']} steps, "
        f"{report['tokens_per_step']:.2f} tokens_per_step, "
        f"{report['tokens_per_s']:.0f} tokens/s"
    )
    if "identical" in report:
        same = "the same tokens" if report["identical"] else "DIFFERENT TOKENS"
        line += f" with drafting, {report['plain_tokens_per_s']:.0f} without: {same}"
        if report["compare_rounds"] > 1:
            line += f" (medians of {report['compare_rounds']} rounds)"
    return line
