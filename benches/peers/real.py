"""A real model, live: coordgen beside llama.cpp and ONNX Runtime GenAI, on the same token ids.

    python benches/peers/real.py MODEL.gguf BUNDLE..

MODEL.gguf is what llama.cpp runs, and a Q4_0 file and GenAI's folders are made of it (in `--work`,
once); BUNDLEs are of the same model (`coordgen export MODEL.gguf BUNDLE --context 8192`). Every
engine has a process of its own and answers in turns; decoding is greedy, and end tokens are
forbidden, as by llama.cpp's `--ignore-eos`, so that all answers have the same length. An engine
that is absent or fails is named, and the others are still reported.

Needs `pip install --group peers`.
"""

import argparse
import json
import re
import sys
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from contest import ContestantFailedError
from coordgen_rs.cli.options import option
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.opening.costs import machine_facts
from coordgen_rs.opening.directory import open_bundle
from coordgen_rs.text.tokenizer import Tokenizer
from coordgen_rs.tools.bench.reporting.condition import commit_of
from live import engines, report
from live.prompts import (
    chat_template,
    check_room,
    digest,
    encode,
    read_conversations,
    read_recorded,
    shorter,
)
from live.run import measure
from live.weights import PRECISIONS, Weights
from support.script import run_script

PROMPTS = Path(__file__).parents[1] / "prompts"
PEERS = ("llama.cpp", "GenAI")


def main(arguments=None):
    """Measure and print; 1 where an engine failed, 2 where nothing could be measured."""
    try:
        options = _parser().parse_args(arguments)
        weights = Weights(options.model, options.work)
        bundles = [open_bundle(bundle) for bundle in options.bundles]
        prompts = _prompts(options, bundles)
        files, failures = _peers(options, weights)
    except (CoordgenError, OSError) as error:
        print(f"real.py: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"real.py: no module named {error.name}: pip install --group peers", file=sys.stderr)
        return 2
    runs = []
    for threads in options.threads:
        with progress() as on_progress:
            run = measure(
                _engines(options, files, threads),
                threads,
                prompts,
                rounds=options.rounds,
                max_new_tokens=options.max_new_tokens,
                logs=options.work / "logs",
                limit_s=options.limit_s,
                on_progress=on_progress,
            )
        run.failures.update(failures)
        runs.append(report.run_document(run, prompts))
        report.show(runs[-1], sum(map(len, prompts.values())))
        if options.json:  # after each run, for the next one may take an hour
            document = _document(options, weights, prompts, runs)
            options.json.write_text(json.dumps(document), encoding="utf-8")
    return 1 if any(run["failures"] for run in runs) else 0


def _prompts(options, bundles):
    """Prompts by task; raises CoordgenError or OSError where there are none that can be used."""
    texts = {bundle.file(bundle.manifest.tokenizer).read_bytes() for bundle in bundles}
    if len(texts) > 1:
        raise OptionError("the bundles have different tokenizers: they are not of one model")
    read, folder = read_conversations, options.prompts
    if options.data:
        read, folder = read_recorded, options.data
    tokenizer = Tokenizer.of(bundles[0])
    prompts = encode(read(folder, options.limit), chat_template(options.model), tokenizer)
    if options.max_prompt_tokens is not None:
        prompts, num_left_out = shorter(prompts, options.max_prompt_tokens)
        if num_left_out:
            print(f"{num_left_out} longer prompts are left out", file=sys.stderr)
    smallest = min(bundles, key=lambda bundle: bundle.manifest.context)
    context = min(smallest.manifest.context, engines.CONTEXT)
    remedy = f"give --max-prompt-tokens, or export {smallest.path} with --context"
    check_room(prompts, context - options.max_new_tokens, remedy)
    return prompts


def _peers(options, weights):
    """The files of the peers that were asked for, by what their weights are called; and failures.

    A form that cannot be made fails alone.
    """
    files, failures = {peer: {} for peer in PEERS}, {}
    if "llama.cpp" in options.peers:
        files["llama.cpp"][_type_of(options.model)] = options.model
        _add(files["llama.cpp"], "Q4_0", failures, "llama.cpp Q4_0", weights.q4_0)
    if "GenAI" in options.peers:
        for name in PRECISIONS:
            _add(files["GenAI"], name, failures, f"GenAI {name}", weights.genai, name)
    return files, failures


def _engines(options, files, threads):
    """All engines, narrowed to the rows that were asked for."""
    return engines.chosen(
        [
            *engines.ours(options.bundles, threads, options.stop_at_end),
            *engines.llama_cpp(files["llama.cpp"], threads, options.stop_at_end),
            *engines.genai_folders(files["GenAI"], threads, options.stop_at_end),
        ],
        options.rows,
    )


def _add(files, weights, failures, name, make, *arguments):
    if weights in files:
        return
    try:
        files[weights] = make(*arguments)
    except ContestantFailedError as error:
        failures[name] = str(error)


def _type_of(gguf):
    """What a file's weights are called: the last part of its name, such as Q4_1."""
    return gguf.stem.rpartition(".")[2]


def _document(options, weights, prompts, runs):
    return {
        "schema_version": report.SCHEMA_VERSION,
        "machine": machine_facts(),
        "software": {
            "coordgen_rs": metadata.version("coordgen-rs"),
            "python": sys.version.split()[0],
        },
        "commit": commit_of(Path(__file__)),
        "model": {"name": options.model.name, "sha256": weights.sha256},
        "options": {
            "bundles": [bundle.name for bundle in options.bundles],
            "max_new_tokens": options.max_new_tokens,
            "rounds": options.rounds,
            "limit": options.limit,
            "max_prompt_tokens": options.max_prompt_tokens,
            "stop_at_end": options.stop_at_end,
            "rows": options.rows and options.rows.pattern,
            "context": engines.CONTEXT,
        },
        "prompts": {
            "sha256": digest(prompts),
            "lengths": {task: [len(p.token_ids) for p in of] for task, of in prompts.items()},
        },
        "runs": runs,
    }


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def add_count(name, default, help):
        told = help if default is None else f"{help}, default %(default)s"
        option.count(f"{name} N", default=default).help(told).add_to(parser)

    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument(
        "--prompts", type=Path, default=PROMPTS, metavar="DIR", help="default %(default)s"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="recorded requests, instead")
    add_count("--limit", None, "only N prompts a task")
    add_count("--max-prompt-tokens", None, "leave longer prompts out")
    option.count("--threads N", nargs="+", default=[1, 2]).add_to(parser)
    add_count("--rounds", 3, "answers to each prompt")
    add_count("--max-new-tokens", 64, "tokens of an answer")
    parser.add_argument("--stop-at-end", action="store_true", help="let answers end by themselves")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument(
        "--rows", type=_pattern, metavar="REGEX", help="only rows whose names match"
    )
    add_count("--limit-s", 1800, "seconds for one answer")
    parser.add_argument(
        "--work", type=Path, default=Path("build/peers"), help="for files that are made"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
    return parser


def _pattern(typed):
    try:
        return re.compile(typed)
    except re.error as error:
        raise OptionError(f"--rows {typed!r} is no regular expression: {error}") from error


if __name__ == "__main__":
    run_script(main)
