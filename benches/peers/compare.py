"""coordgen and its peers in one run and one table, on the same weights and prompts.

    python benches/peers/compare.py BUNDLE DATA

DATA is lines with `task` and `prompt` (`python models/corpus.py --jsonl N`), BUNDLE is float32. Two
kinds of rows: engines answer end to end, in turns, and their tokens must be those of plain
decoding; drafting rules replay those answers. A peer whose package is absent is named and
left out; `pip install --group peers` installs them, and `make table` builds ArcticInference.
"""

import argparse
import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np

import contest
import genai
import ours
from coordgen_rs import open_session
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.drafting.common_phrases import phrase_table_of
from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.replay.records import TokenizedRecord
from coordgen_rs.lab.replay.run import replay
from coordgen_rs.lab.tables import show_table
from recorded import arctic, transformers_lookup
from recorded.rule import replay_rule
from support.script import run_script

ENGINES = (genai,)
RULES = (arctic, transformers_lookup)


def main(arguments=None):
    """Measure, and print the table or JSON; 1 where an engine gave other tokens than plain did."""
    options = _parser().parse_args(arguments)
    session = open_session(options.bundle, threads=options.threads)
    prompts = encode_prompts(
        session, read_prompts(options.data, limit=options.limit), options.max_new_tokens
    )
    versions, contestants = {}, ours.contestants(session)
    with tempfile.TemporaryDirectory() as directory, progress() as on_progress:
        for engine in ENGINES:
            place = Path(directory) / engine.PACKAGE
            opened = _opened(
                engine, versions, engine.contestants, session.bundle, options.threads, place
            )
            contestants += opened or []
        held = contest.hold(
            contestants, prompts, options.rounds, options.max_new_tokens, on_progress
        )
    replayed = _replayed(session, prompts, held, options.budget, versions)
    report = _report(held, replayed, prompts, options, versions)
    if options.json:
        print(json.dumps(report))
    else:
        _show(report)
    return 0 if report["identical"] else 1


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--budget", type=int, default=16, help="draft tokens of replayed rules")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N lines")
    parser.add_argument("--json", action="store_true")
    return parser


def _opened(peer, versions, open_peer, *arguments):
    """What the peer's function gives; None, and a line on stderr, where its package is absent."""
    try:
        opened = open_peer(*arguments)
    except ModuleNotFoundError as error:
        print(f"skipped {peer.PACKAGE}: no module {error.name}", file=sys.stderr)
        return None
    versions[peer.PACKAGE] = _version(peer.PACKAGE)
    return opened


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"  # a part of it that was built alone


def _replayed(session, prompts, held, budget, versions):
    """The rules on the answers of plain decoding, ours first; by name."""
    flat = [prompt for of_task in prompts.values() for prompt in of_task]
    records = [
        TokenizedRecord(task, prompt, np.array(answer.tokens, np.uint32))
        for prompt, (task, answer) in zip(flat, held.recorded(), strict=True)
    ]
    phrases = phrase_table_of(session.bundle)
    ours = replay(records, budget=budget, vocab_size=session.vocab_size, phrases=phrases)
    results = {"auto": ours}
    for peer in RULES:
        rule = _opened(peer, versions, peer.open_rule)
        if rule is not None:
            results[peer.NAME] = replay_rule(peer.NAME, records, budget, rule)
    return {name: result.to_json() for name, result in results.items()}


def _report(held, replayed, prompts, options, versions):
    tasks = list(prompts)
    engines = {
        name: {"all": held.figures(name, tasks)._asdict()}
        | {"per_task": {task: held.figures(name, [task])._asdict() for task in tasks}}
        for name in held.answers
    }
    return {
        "threads": options.threads,
        "rounds": options.rounds,
        "budget": options.budget,
        "num_prompts": {task: len(of_task) for task, of_task in prompts.items()},
        "versions": versions,
        "engines": engines,
        "replayed": replayed,
        "identical": all(figures["all"]["different"] == 0 for figures in engines.values()),
    }


def _show(report):
    tasks = list(report["num_prompts"])
    engines = {
        name: [*(figures["per_task"][task] for task in tasks), figures["all"]]
        for name, figures in report["engines"].items()
    }
    plain = next(iter(engines.values()))
    steps = [
        [name, *(f"{of['tokens_per_step']:.2f}" for of in figures)]
        for name, figures in engines.items()
    ]
    for name, figures in report["replayed"].items():
        cells = [*(figures["per_task"][task] for task in tasks), figures["tokens_per_step"]]
        steps.append([f"replay: {name}", *(f"{cell:.2f}" for cell in cells)])
    speeds = [
        [name, *(f"{of['tokens_per_s']:.0f}" for of in figures)]
        for name, figures in engines.items()
    ]
    speedups = [
        [
            name,
            *(
                f"{of['tokens_per_s'] / base['tokens_per_s']:.2f}"
                for of, base in zip(figures, plain, strict=True)
            ),
        ]
        for name, figures in engines.items()
    ]
    threads = f"{report['threads']} threads"
    show_table("tokens per step", ["", *tasks, "all"], steps)
    show_table(f"decoding, tokens/s, {threads}", ["", *tasks, "all"], speeds)
    show_table(f"decoding, speedup over plain, {threads}", ["", *tasks, "all"], speedups)
    show_table(
        "whole answers",
        ["", "tokens/s, prefill included", "answers unlike plain"],
        [
            [name, f"{whole['whole_tokens_per_s']:.0f}", str(whole["different"])]
            for name, (*_, whole) in engines.items()
        ],
    )
    show_table(
        "drafting a step in a replay, median",
        ["", "propose, us", "accept, us"],
        [
            [name, *(f"{figures[call]['p50']:.1f}" for call in ("propose_us", "accept_us"))]
            for name, figures in report["replayed"].items()
        ],
    )
    print(f"identical to plain decoding: {'yes' if report['identical'] else 'NO'}")
    for package, version in report["versions"].items():
        print(f"{package} {version}")


if __name__ == "__main__":
    run_script(main)
