"""The command `coordgen bench`: one of several benches on a real model."""

import argparse
from pathlib import Path

from coordgen_rs import provider_cli
from coordgen_rs.bench import ablation_cli, methods_cli, switch_cli

ABOUT = "measure drafting, or the switching of graphs, with a real model"
EXAMPLES = f"""\
--ablation: what each source of drafts adds. {ablation_cli.NOTE}
--methods: published methods and ours side by side, on the same prompts.
--switch: all strategies of loading graphs while a prompt is read, each answer from all blocks on
their prefill graphs, outputs compared. On few cores leave one to the loader: --threads 1 of two.

examples:
  coordgen bench bundle prompts.jsonl --ablation
  coordgen bench bundle prompts.jsonl --ablation --limit 20 --json
  coordgen bench bundle prompts.jsonl --methods plain,sam,diaa,coordgen
  coordgen bench bundle prompts.jsonl --methods all --draft-model small-bundle --json
  coordgen bench bundle prompts.jsonl --methods coordgen,blend --costs measured
  coordgen bench bundle prompts.jsonl --methods plain,chain,edgellm --draft-model small-bundle \\
      --memory-budget 400M --costs measured
  coordgen bench bundle --switch --threads 1 --load-delay 0.5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of all benches."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--ablation",
        dest="bench",
        action="store_const",
        const=ablation_cli.run,
        help="prompt lookup, automaton and history, each with calibration and reuse on and off",
    )
    which.add_argument(
        "--methods",
        type=methods_cli.parse_names,
        metavar="NAME,..",
        help=f"tokens a step, speed and memory of some of {', '.join(methods_cli.KNOWN)}; or all",
    )
    which.add_argument(
        "--switch",
        dest="bench",
        action="store_const",
        const=switch_cli.run,
        help="time to the first token, exposed loads and memory of every strategy",
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="default: 96, or 8")
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    provider_cli.add_arguments(parser)
    ablation_cli.add_arguments(parser)
    methods_cli.add_arguments(parser)
    switch_cli.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the bench that was asked for."""
    if options.methods is not None:
        return methods_cli.run(options)
    code: int = options.bench(options)
    return code
