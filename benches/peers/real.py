"""A real model, live: coordgen beside llama.cpp and ONNX Runtime GenAI, on the same token ids.

    python benches/peers/real.py MODEL.gguf
    python benches/peers/real.py MODEL.Q4_K_M.gguf --peers llama.cpp --json figures.json

coordgen and llama.cpp run MODEL.gguf as it is, and GenAI's folders are made of it (in `--work`,
once). BUNDLEs are run in place of it where they are given; they are of the same model (`coordgen
export MODEL.gguf BUNDLE --context 8192` has room for longer prompts than a file that is opened as
it is). Every engine has a process of its own and answers in turns; decoding is greedy, and end
tokens are forbidden, as by llama.cpp's `--ignore-eos`, so that all answers have the same length.
Then those that decode plainly read prompts of the lengths of `--read`, in turns, too. An engine
that is absent or fails is named, and the others are still reported.

Needs `make peers`, which builds llama.cpp for this machine, and `pip install --group peers`.
"""

import json
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from contest import ContestantFailedError
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import OptionError
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.text.tokenizer import Tokenizer
from live import engines, llama_build, report
from live.prompts import (
    chat_template,
    check_room,
    encode,
    of_lengths,
    read_conversations,
    read_recorded,
    shorter,
)
from live.run import measure
from live.weights import PRECISIONS, Weights
from support.script import (
    PROMPTS,
    add_counts,
    add_json,
    add_llama_cpp,
    parser_of,
    reports_errors,
    run_script,
)

PEERS = ("llama.cpp", "GenAI")


@reports_errors
def main(arguments=None):
    """Measure and print; 1 where an engine failed, 2 where nothing could be measured."""
    options = _parser().parse_args(arguments)
    weights = Weights(options.model, options.work)
    options.bundles = options.bundles or [options.model]
    prompts, pieces = _prompts(options, _opened(options.bundles))
    files, failures = _peers(options, weights)
    runs = []
    for threads in options.threads:
        answering, reading = _engines(options, files, threads)
        run = _measured(options, answering, threads, prompts, options.max_new_tokens)
        read = _measured(options, reading if pieces else [], threads, pieces, 1)
        run.failures.update(failures | read.failures)
        runs.append(report.run_document(run, prompts, report.reading_rows(read, pieces)))
        report.show(runs[-1], sum(map(len, prompts.values())))
        if options.json:  # after each run, for the next one may take an hour
            asked = report.head(report.SCHEMA_VERSION, weights, prompts, _asked(options))
            options.json.write_text(json.dumps(asked | {"runs": runs}), encoding="utf-8")
    return 1 if any(run["failures"] for run in runs) else 0


def _opened(bundles):
    """The bundles; a GGUF file is converted, if that was not done before."""
    with progress() as on_progress:
        return [open_bundle(path, on_progress=on_progress) for path in bundles]


def _measured(options, chosen, threads, prompts, max_new_tokens):
    with progress() as on_progress:
        return measure(
            chosen,
            threads,
            prompts,
            rounds=options.rounds,
            max_new_tokens=max_new_tokens,
            logs=options.work / "logs",
            limit_s=options.limit_s,
            on_progress=on_progress,
        )


def _prompts(options, bundles):
    """Prompts by task, and pieces of them by length.

    Raises CoordgenError or OSError where there are none that can be used.
    """
    texts = {bundle.file(bundle.manifest.tokenizer).read_bytes() for bundle in bundles}
    if len(texts) > 1:
        raise OptionError("the bundles have different tokenizers: they are not of one model")
    read, folder = read_conversations, options.prompts
    if options.data:
        read, folder = read_recorded, options.data
    tokenizer = Tokenizer.of(bundles[0])
    template = chat_template(options.model)
    prompts = encode(read(folder, options.limit), template, tokenizer)
    prompts = shorter(prompts, options.max_prompt_tokens)
    smallest = min(bundles, key=lambda bundle: bundle.manifest.context)
    context = min(smallest.manifest.context, engines.CONTEXT)
    remedy = f"give --max-prompt-tokens, or export {smallest.path} with --context"
    check_room(prompts, context - options.max_new_tokens, remedy)
    if not options.read:
        return prompts, {}
    pieces = of_lengths(encode(read(folder), template, tokenizer), options.read)
    remedy = f"give a shorter --read, or export {smallest.path} with --context"
    check_room(pieces, context - 1, remedy)
    return prompts, pieces


def _peers(options, weights):
    """The files of the peers that were asked for, by what their weights are called; and failures.

    A form that cannot be made fails alone.
    """
    files, failures = {peer: {} for peer in PEERS}, {}
    if "llama.cpp" in options.peers:
        try:
            llama_build.program(options.llama_cpp, "llama-server")
        except llama_build.NotBuiltError as error:
            failures["llama.cpp"] = str(error)
        else:
            files["llama.cpp"][engines.weights_of(options.model)] = options.model
    if "GenAI" in options.peers:
        for name in PRECISIONS:
            try:
                files["GenAI"][name] = weights.genai(name)
            except ContestantFailedError as error:
                failures[f"GenAI {name}"] = str(error)
    return files, failures


def _engines(options, files, threads):
    """Those that answer and those that read, narrowed to the rows that were asked for."""
    programs, logs = options.llama_cpp, options.work / "logs"
    stop = options.stop_at_end
    every = [
        *engines.ours(options.bundles, threads, stop),
        *engines.llama_cpp(files["llama.cpp"], threads, stop, programs, logs),
        *engines.genai_folders(files["GenAI"], threads, stop),
    ]
    readers = [*every, *engines.llama_cpp_benches(files["llama.cpp"], threads, programs)]

    def is_asked(row):
        return options.rows is None or options.rows.search(row.name)

    return (
        engines.chosen(every, is_asked),
        engines.chosen(readers, lambda row: is_asked(row) and not row.drafts),
    )


def _asked(options):
    names = ("max_new_tokens", "rounds", "limit", "max_prompt_tokens", "stop_at_end", "read")
    return {name: getattr(options, name) for name in names} | {
        "bundles": [bundle.name for bundle in options.bundles],
        "rows": options.rows and options.rows.pattern,
        "context": engines.CONTEXT,
    }


def _parser():
    parser = parser_of(__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument(
        "bundles", type=Path, nargs="*", metavar="BUNDLE", help="run these in place of MODEL.gguf"
    )
    parser.add_argument(
        "--prompts", type=Path, default=PROMPTS, metavar="DIR", help="default %(default)s"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="recorded requests, instead")
    add_counts(
        parser,
        limit=(None, "only N prompts a task"),
        max_prompt_tokens=(None, "leave longer prompts out"),
        threads=([1, 2], "compute threads"),
        rounds=(3, "answers to each prompt"),
        max_new_tokens=(64, "tokens of an answer"),
        read=([512, 4000], "lengths of prompts that are only read"),
        limit_s=(1800, "seconds for one answer"),
    )
    parser.add_argument("--stop-at-end", action="store_true", help="let answers end by themselves")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument(
        "--rows", type=_pattern, metavar="REGEX", help="only rows whose names match"
    )
    add_llama_cpp(parser, "llama-server and llama-bench")
    add_json(parser, to_file=True)
    return parser


def _pattern(typed):
    try:
        return re.compile(typed)
    except re.error as error:
        raise OptionError(f"--rows {typed!r} is no regular expression: {error}") from error


if __name__ == "__main__":
    run_script(main)
