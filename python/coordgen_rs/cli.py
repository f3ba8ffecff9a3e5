"""The command `coordgen`: parse, call, print. Errors are one line on stderr and exit code 2."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coordgen_rs import (
    compile_cli,
    export_cli,
    history_cli,
    plan_cli,
    profile_cli,
    provider_cli,
    warm_up_cli,
)
from coordgen_rs._core import Sampling
from coordgen_rs.bench import cli as bench_cli
from coordgen_rs.bench import replay_cli
from coordgen_rs.bundle import Bundle
from coordgen_rs.byte_size import parse_bytes
from coordgen_rs.draft_model import DraftModel
from coordgen_rs.errors import CoordgenError
from coordgen_rs.generate import DRAFT_SOURCES, Step, generate, make_drafter, plain
from coordgen_rs.plan import STRATEGIES
from coordgen_rs.profile_file import Profile
from coordgen_rs.progress import progress
from coordgen_rs.self_test import open_session
from coordgen_rs.session import OrtSession
from coordgen_rs.stats import Stats
from coordgen_rs.tokenizer import Tokenizer

_DRAFTED, _RESET = "\x1b[32m", "\x1b[0m"
_CHECK_PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps."

_GENERATE_EXAMPLES = """\
examples:
  coordgen generate --model bundle --prompt "Once upon a time" --max-new-tokens 64
  coordgen generate --model bundle --prompt-file question.txt --compare
  cat question.txt | coordgen generate --model bundle - --draft lookup --json
  coordgen generate --model bundle --prompt-file mail.txt --history answers --namespace mail/alice
"""
_CHECK_EXAMPLES = """\
examples:
  coordgen check bundle
  coordgen check bundle --prompt-file question.txt --json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0; 1 where `check` finds a bundle not lossless; 2 after an error or an interruption, told
        in one line on stderr.
    """
    options = make_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (CoordgenError, UnicodeDecodeError) as error:
        return _fail(str(error))
    return code


def _fail(message: str) -> int:
    print(f"coordgen: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; each command sets `run`."""
    parser = argparse.ArgumentParser(
        prog="coordgen",
        description="Text generation on device, faster without changing one token.",
    )
    parser.add_argument("--version", action="version", version=version("coordgen-rs"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    export_cli.add_arguments(
        _command(commands, "export", export_cli.run, export_cli.ABOUT, export_cli.EXAMPLES)
    )
    _add_check(commands)
    _add_info(commands)
    compile_cli.add_arguments(
        _command(commands, "compile", compile_cli.run, compile_cli.ABOUT, compile_cli.EXAMPLES)
    )
    about = "list, export, import and clear finished requests"
    history = _command(commands, "history", history_cli.run, about, history_cli.EXAMPLES)
    history_cli.add_arguments(history)
    replay_cli.add_arguments(
        _command(commands, "replay", replay_cli.run, replay_cli.ABOUT, replay_cli.EXAMPLES)
    )
    profile_cli.add_arguments(
        _command(commands, "profile", profile_cli.run, profile_cli.ABOUT, profile_cli.EXAMPLES)
    )
    bench_cli.add_arguments(
        _command(commands, "bench", bench_cli.run, bench_cli.ABOUT, bench_cli.EXAMPLES)
    )
    warm_up_cli.add_arguments(
        _command(commands, "warm-up", warm_up_cli.run, warm_up_cli.ABOUT, warm_up_cli.EXAMPLES)
    )
    plan_cli.add_arguments(
        _command(commands, "plan", plan_cli.run, plan_cli.ABOUT, plan_cli.EXAMPLES)
    )
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], about: str, examples: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _add_generate(commands: Any) -> None:
    parser = _command(
        commands, "generate", _generate, "answer a prompt, text streaming", _GENERATE_EXAMPLES
    )
    parser.add_argument("--model", required=True, type=Path, metavar="BUNDLE")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="a UTF-8 text file")
    prompt.add_argument("stdin", nargs="?", choices=["-"], help="read the prompt from stdin")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    drafts = parser.add_mutually_exclusive_group()
    drafts.add_argument(
        "--draft",
        choices=[*DRAFT_SOURCES, "off"],
        default="auto",
        help="where drafts come from: automaton (all repeats within the request), lookup (prompt "
        "lookup by n-gram), sam, token-recycling, diaa and edgellm (as their papers have it), "
        "blend (everything), off (plain decoding); default %(default)s",
    )
    drafts.add_argument(
        "--sources",
        type=lambda names: names.split(","),
        metavar="NAME,..",
        help="exactly these sources: automaton, lookup, calibration (what the model expected while "
        "it read the prompt), reuse (parts of rejected drafts), lookup-table (what it held likely "
        "after each token)",
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
    history_cli.add_generate_arguments(parser)
    parser.add_argument(
        "--switch",
        choices=STRATEGIES,
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
    provider_cli.add_arguments(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")
    parser.add_argument(
        "--compare", action="store_true", help="decode again without drafts, and compare"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def _add_check(commands: Any) -> None:
    parser = _command(
        commands,
        "check",
        _check,
        "verify a bundle's files and its exactness on this machine",
        _CHECK_EXAMPLES,
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--prompt-file", type=Path, metavar="FILE", help="a UTF-8 text file")
    provider_cli.add_arguments(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def _add_info(commands: Any) -> None:
    parser = _command(
        commands, "info", _info, "describe a bundle", "example:\n  coordgen info bundle\n"
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--json", action="store_true", help="print the manifest instead")


def _generate(options: argparse.Namespace) -> int:
    if options.prompt is not None:
        text = options.prompt
    else:
        text = sys.stdin.read() if options.stdin else options.prompt_file.read_text("utf-8")
    width = None if options.budget is None else options.budget + 1  # the root takes a row
    session = _open(
        options,
        options.model,
        width=width,
        memory_budget=parse_bytes(options.memory_budget) if options.memory_budget else None,
        profile=Profile.find(options.profile) if options.profile else None,
    )
    tokenizer = Tokenizer.of(session.bundle)
    prompt = tokenizer.encode(text)
    stats = Stats()
    request = {
        "max_new_tokens": options.max_new_tokens,
        "sampling": _sampling(options),
        "switch": options.switch,
    }
    with history_cli.opened(options, session.bundle) as history:
        if options.draft == "off":
            steps = plain(session, prompt, stats=stats, **request)
        else:
            drafter = make_drafter(
                session,
                options.sources or options.draft,
                options.commit,
                history,
                lookup_table=warm_up_cli.opened(options.lookup_table, session),
                draft_model=_draft_model(options.draft_model, session),
            )
            steps = generate(
                session, prompt, drafter=drafter, history=history, stats=stats, **request
            )
        tokens = _collect(steps) if options.json else _show(steps, tokenizer)
    report = {"text": tokenizer.decode(tokens), "token_ids": tokens} | stats.to_json()
    report |= {"commit": options.commit, "provider": session.provider}
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


def _open(options: argparse.Namespace, bundle: Path, **more: Any) -> OrtSession:
    with progress() as on_progress:
        return open_session(
            bundle,
            threads=options.threads,
            provider=provider_cli.chosen(options),
            on_progress=on_progress,
            **more,
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


def _check(options: argparse.Namespace) -> int:
    from coordgen_rs.check import check

    session = _open(options, options.bundle)
    with progress() as on_progress:
        session.bundle.verify(on_progress)
    text = options.prompt_file.read_text("utf-8") if options.prompt_file else _CHECK_PROMPT
    prompt = Tokenizer.of(session.bundle).encode(text)
    report = check(session, prompt[: session.capacity // 2])
    if options.json:
        print(json.dumps(report.to_json()))
    else:
        print(f"files: {len(session.bundle.manifest.files)}, all sums right")
        for item in report.comparisons:
            by = "" if item.largest_difference is None else f" (by {item.largest_difference:.1e})"
            print(f"{item.what}: {'identical' if item.identical else f'different{by}'}")
        print(f"exact under commit: {', '.join(report.exact_commits) or 'none'}")
    return 0 if report.lossless else 1


def _info(options: argparse.Namespace) -> int:
    manifest = Bundle.open(options.bundle).manifest
    if options.json:
        print(manifest.to_json(), end="")
        return 0
    model, blocks = manifest.model, manifest.blocks
    num_bytes = sum(record.num_bytes for record in manifest.files.values())
    print(
        f"model: {model.family}, {model.num_layers} layers, hidden {model.hidden_size}, "
        f"FFN {model.ffn_size}, {model.num_heads} heads, {model.num_kv_heads} KV heads, "
        f"vocabulary {model.vocab_size}"
    )
    chip = f", {manifest.qnn.soc}" if manifest.qnn else ""
    print(f"provider: {manifest.provider}{chip}")
    print(f"weights: {manifest.weights}, {num_bytes / 1e6:.1f} MB in {len(manifest.files)} files")
    print(f"blocks: {len(blocks)}, widths: {', '.join(map(str, manifest.widths))}")
    print(f"context: {manifest.context} tokens")
    print(f"written by: {manifest.tool}")
    return 0
