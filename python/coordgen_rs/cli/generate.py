"""`coordgen generate`: answer a prompt, text streaming."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordgen_rs._core import PLAIN, Sampling, draft_methods, draft_sources, strategies
from coordgen_rs.cli import history as history_command
from coordgen_rs.cli import provider_options, warm_up
from coordgen_rs.cli.opening import opened
from coordgen_rs.draft_model import DraftModel
from coordgen_rs.drafting import make_drafter
from coordgen_rs.generate import Step, generate, plain
from coordgen_rs.profile.file import Profile
from coordgen_rs.stats import Stats
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.text.byte_size import parse_bytes
from coordgen_rs.text.tokenizer import Tokenizer

ABOUT = "answer a prompt, text streaming"
EXAMPLES = """\
examples:
  coordgen generate --model bundle --prompt "Once upon a time" --max-new-tokens 64
  coordgen generate --model bundle --prompt-file question.txt --compare
  cat question.txt | coordgen generate --model bundle - --draft prompt-lookup --json
  coordgen generate --model bundle --prompt-file mail.txt --history answers --namespace mail/alice
"""

_DRAFTED, _RESET = "\x1b[32m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--model", required=True, type=Path, metavar="BUNDLE")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="a UTF-8 text file")
    prompt.add_argument("stdin", nargs="?", choices=["-"], help="read the prompt from stdin")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    drafts = parser.add_mutually_exclusive_group()
    drafts.add_argument(
        "--draft",
        choices=[*(method.name for method in draft_methods()), PLAIN],
        default="auto",
        help="how to draft: auto (default), a published method, or plain for none at all; "
        "docs/sources-and-methods.md tells what each is",
    )
    drafts.add_argument(
        "--sources",
        type=lambda names: names.split(","),
        metavar="NAME,..",
        help=f"exactly these sources, of {', '.join(source.name for source in draft_sources())}",
    )
    parser.add_argument(
        "--draft-model",
        type=Path,
        metavar="BUNDLE",
        help="a smaller model with the same tokenizer, which drafts too; needed by --draft edgellm",
    )
    parser.add_argument(
        "--lookup-table",
        type=Path,
        metavar="FILE",
        help="a table that `coordgen warm-up` wrote, for --draft diaa and blend",
    )
    parser.add_argument(
        "--budget", type=int, metavar="N", help="verify at most N draft tokens a step"
    )
    parser.add_argument(
        "--commit",
        choices=["canonical", "compact"],
        default="canonical",
        help="canonical is exact everywhere; compact is exact only where `coordgen check` says so",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0,
        metavar="T",
        help="draw tokens at this temperature; 0, the default, takes the likeliest",
    )
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="default: all tokens")
    parser.add_argument("--top-p", type=float, default=1, metavar="P", help="default: all tokens")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same tokens"
    )
    history_command.add_generate_arguments(parser)
    parser.add_argument(
        "--switch",
        choices=list(strategies()),
        default="auto",
        help="when the graphs for the prompt give way to those for the answer; default %(default)s",
    )
    parser.add_argument(
        "--memory-budget",
        metavar="BYTES",
        help="most that the graphs of the blocks may hold (500M, 2G); what does not fit is loaded "
        "anew in every pass, while others compute",
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="what the blocks cost here, from `coordgen profile`, for --switch and --memory-budget",
    )
    provider_options.add_arguments(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")
    parser.add_argument(
        "--compare", action="store_true", help="decode again without drafts, and compare"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    """Answer the prompt, and report what it cost."""
    if options.prompt is not None:
        text = options.prompt
    else:
        text = sys.stdin.read() if options.stdin else options.prompt_file.read_text("utf-8")
    width = None if options.budget is None else options.budget + 1  # the root takes a row
    session = opened(
        options,
        options.model,
        width=width,
        switch=options.switch,
        memory_budget=parse_bytes(options.memory_budget) if options.memory_budget else None,
        profile=Profile.find(options.profile) if options.profile else None,
    )
    tokenizer = Tokenizer.of(session.bundle)
    prompt = tokenizer.encode(text)
    stats = Stats()
    request = {
        "max_new_tokens": options.max_new_tokens,
        "sampling": _sampling(options),
    }
    with history_command.opened(options, session.bundle) as history:
        if options.draft == PLAIN:
            steps = plain(session, prompt, stats=stats, **request)
        else:
            drafter = make_drafter(
                session,
                options.sources or options.draft,
                options.commit,
                history,
                lookup_table=warm_up.opened(options.lookup_table, session),
                draft_model=_draft_model(options.draft_model, session),
            )
            steps = generate(
                session, prompt, drafter=drafter, history=history, stats=stats, **request
            )
        tokens = _collect(steps) if options.json else _show(steps, tokenizer)
    report = {"text": tokenizer.decode(tokens), "token_ids": tokens} | stats.to_json()
    report |= {"commit": options.commit, "provider": session.device.provider}
    if options.compare:
        report |= _compare(session, prompt, tokens, request)
    print(json.dumps(report) if options.json else _closing_line(report), file=_report_to(options))
    return 0


def _draft_model(path: Path | None, target: OrtSession) -> DraftModel | None:
    return None if path is None else DraftModel.open(path, target)


def _sampling(options: argparse.Namespace) -> Sampling | None:
    if options.temperature == 0:
        return None
    return Sampling(
        options.temperature, top_k=options.top_k, top_p=options.top_p, seed=options.seed
    )


def _report_to(options: argparse.Namespace) -> Any:
    return sys.stdout if options.json else sys.stderr


def _collect(steps: Iterator[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


def _show(steps: Iterator[Step], tokenizer: Tokenizer) -> list[int]:
    """Print the text as it comes; on a terminal what drafts foretold is green."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    tokens: list[int] = []
    piece = tokenizer.stream()
    for step in steps:
        for index, token in enumerate(step.token_ids):
            text = piece(token)
            drafted = colour and index < step.accept_len
            print(f"{_DRAFTED}{text}{_RESET}" if drafted else text, end="", flush=True)
        tokens += step.token_ids
    print(flush=True)
    return tokens


def _compare(
    session: OrtSession, prompt: Any, tokens: list[int], request: dict[str, Any]
) -> dict[str, Any]:
    stats = Stats()
    expected = _collect(plain(session, prompt, stats=stats, **request))
    return {"plain_tokens_per_s": stats.to_json()["tokens_per_s"], "identical": tokens == expected}


def _closing_line(report: dict[str, Any]) -> str:
    line = (
        f"{report['new_tokens']} tokens in {report['steps']} steps, "
        f"{report['tokens_per_step']:.2f} tokens_per_step, "
        f"{report['tokens_per_s']:.0f} tokens/s"
    )
    if "identical" in report:
        same = "the same tokens" if report["identical"] else "OTHER TOKENS"
        line += f" with drafting, {report['plain_tokens_per_s']:.0f} without: {same}"
    return line
