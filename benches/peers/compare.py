"""coordgen and its peers in one run and one table, on the same weights and prompts.

    python benches/peers/compare.py BUNDLE DATA

DATA is lines with `task` and `prompt` (`python models/corpus.py --jsonl N`), BUNDLE is float32. Two
kinds of rows: engines answer end to end, in turns, and their tokens must be those of plain
decoding; drafting rules replay those answers. A peer whose package is absent is named and
left out; `pip install --group peers` installs them, and `make table` builds ArcticInference.
"""

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
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.generation.drafting.common_phrases import phrase_table_at
from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.lab.replay.records import TokenizedRecord
from coordgen_rs.lab.replay.run import replay
from genai_model import export_genai
from recorded import arctic, transformers_lookup
from recorded.rule import replay_rule
from support.script import add_counts, add_json, parser_of, reports_errors, run_script, tell
from support.tables import show_rows

RULES = (arctic, transformers_lookup)


@reports_errors
def main(arguments=None):
    """Measure, and print the table or JSON; 1 where an engine gave other tokens than plain did."""
    options = _parser().parse_args(arguments)
    session = open_session(options.bundle, threads=options.threads)
    prompts = encode_prompts(
        session, read_prompts(options.data, limit=options.limit), options.max_new_tokens
    )
    versions, contestants = {}, ours.contestants(session)
    with tempfile.TemporaryDirectory() as directory, progress() as on_progress:
        asked = session.bundle, options.threads, Path(directory)
        contestants += _opened(genai, versions, _genai, *asked) or []
        held = contest.hold(
            contestants, prompts, options.rounds, options.max_new_tokens, on_progress
        )
    replayed = _replayed(session, prompts, held, options.budget, versions)
    report = _report(held, replayed, prompts, options, versions)
    tell(report, options.json, _show)
    return 0 if report["identical"] else 1


def _parser():
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path)
    add_counts(
        parser,
        threads=(1, ""),
        rounds=(3, ""),
        max_new_tokens=(96, ""),
        budget=(16, "draft tokens of replayed rules"),
        limit=(None, "only the first N lines"),
    )
    add_json(parser)
    return parser


def _genai(bundle, threads, place):
    import onnxruntime_genai  # noqa: F401 (before anything is written)

    export_genai(bundle, place, threads)
    return [*genai.open_engine(place, threads, stop_at_end=True).contestants.values()]


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
    phrases = phrase_table_at(session.bundle.file(session.bundle.manifest.tokenizer))
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
    tasks, threads = [*report["num_prompts"], "all"], f"{report['threads']} threads"
    engines = {name: of["per_task"] | {"all": of["all"]} for name, of in report["engines"].items()}
    plain = next(iter(engines.values()))
    for figures in engines.values():
        for task in tasks:
            speedup = figures[task]["tokens_per_s"] / plain[task]["tokens_per_s"]
            figures[task] = figures[task] | {"speedup": speedup}
    steps = engines | {
        f"replay: {name}": {
            task: {"tokens_per_step": of["per_task"].get(task, of["tokens_per_step"])}
            for task in tasks
        }
        for name, of in report["replayed"].items()
    }

    def show(title, rows, what, digits):
        columns = {task: f"{{of[{task}][{what}]:.{digits}f}}" for task in tasks}
        _table(title, rows, columns)

    show("tokens per step", steps, "tokens_per_step", 2)
    show(f"decoding, tokens/s, {threads}", engines, "tokens_per_s", 0)
    show(f"decoding, speedup over plain, {threads}", engines, "speedup", 2)
    columns = {
        "tokens/s, prefill included": "{of[all][whole_tokens_per_s]:.0f}",
        "answers unlike plain": "{of[all][different]}",
    }
    _table("whole answers", engines, columns)
    columns = {
        "propose, us": "{of[propose_us][p50]:.1f}",
        "accept, us": "{of[accept_us][p50]:.1f}",
    }
    _table("drafting a step in a replay, median", report["replayed"], columns)
    print(f"identical to plain decoding: {'yes' if report['identical'] else 'NO'}")
    for package, version in report["versions"].items():
        print(f"{package} {version}")


def _table(title, figures, columns):
    rows = [{"name": name, "of": of} for name, of in figures.items()]
    show_rows(title, rows, {"": "{name}"} | columns)


if __name__ == "__main__":
    run_script(main)
