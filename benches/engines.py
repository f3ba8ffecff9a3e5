"""Our drafts in other engines, beside each engine's own n-gram drafting, on a real model.

    python benches/engines.py MODEL.gguf
    python benches/engines.py MODEL.gguf --equal 50 --data RECORDED

In: a GGUF file; Q4_0, GenAI's int4 folder and a Hugging Face directory are made of it (in `--work`,
once). Out: a table for each engine: tokens a step and speed against its own plain decoding,
by task. With `--equal N`: whether its answers to N prompts are its own plain ones, the first place
where one is not, and the scores there. Engines have a process each and answer in turns; one that is
absent is named and left out. What is done is kept in `--work`: the same command goes on after it.

Needs `pip install --group peers`; llama.cpp's own n-grams need `make peers`, and MLX
`pip install mlx-lm 'mlx[cpu]'`.
"""

import json
import shutil
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from contest import ContestantFailedError
from coordgen_rs.lab.bench.condition import commit_of
from coordgen_rs.text.tokenizer import Tokenizer
from live import adapted, adapted_report, llama_build
from live.kept import Kept, key_of
from live.prompts import chat_template, encode, read_conversations, read_recorded, shorter, spread
from live.run import Running
from live.weights import Weights
from support.script import (
    PROMPTS,
    add_counts,
    add_json,
    add_llama_cpp,
    parser_of,
    reports_errors,
    run_script,
)

MAX_NEW_TOKENS, EQUAL_NEW_TOKENS = 64, 32


@reports_errors
def main(arguments=None):
    """Measure and print; 1 where an engine failed."""
    options = _parser().parse_args(arguments)
    weights = Weights(options.model, options.work)
    prompts = _prompts(options, weights)
    asked = adapted.Asked(
        options.threads,
        options.rounds,
        options.max_new_tokens or (EQUAL_NEW_TOKENS if options.equal else MAX_NEW_TOKENS),
        stop_at_end=options.stop_at_end or bool(options.equal),
        is_equality=bool(options.equal),
        is_cpu_time=options.cpu_time,
    )
    commit, slots = commit_of(Path(__file__)), options.work / "slots"
    documents, failures = [], {}
    places = adapted.Places(slots, _programs(options, failures), options.work / "logs")
    for name in options.engines:
        for engine in adapted.engines(name, options.model, weights, asked, places, failures):
            with _emptied(slots):
                document = _measured(engine, prompts, asked, commit, options, failures)
            if document is None:
                continue
            documents.append(document)
            adapted_report.show(document)
            if options.json:
                told = {"commit": commit, "runs": documents, "failures": failures}
                options.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    for name, why in failures.items():
        print(f"{name}: {why}", file=sys.stderr)
    return 1 if failures else 0


def _programs(options, failures):
    """Where llama-server is; None, and a failure, where it is needed and absent."""
    if "llama.cpp" in options.engines and not options.equal:
        try:
            llama_build.program(options.llama_cpp, "llama-server")
        except llama_build.NotBuiltError as error:
            failures["llama.cpp's server"] = str(error)
            return None
    return options.llama_cpp


def _prompts(options, weights):
    """Token ids by task; raises CoordgenError, ContestantFailedError or OSError."""
    read, place = (read_recorded, options.data) if options.data else (read_conversations, PROMPTS)
    tokenizer = Tokenizer(weights.hugging_face() / "tokenizer.json")
    conversations = read(place)
    by_task = {}
    for each in conversations:
        by_task.setdefault(each.task, []).append(each)
    limit = -(-options.equal // len(by_task)) if options.equal else options.limit
    few = [each for of in by_task.values() for each in spread(of, limit and 8 * limit)]
    encoded = encode(few, chat_template(options.model), tokenizer)
    prompts = shorter(encoded, options.max_prompt_tokens)
    if not prompts:
        raise ContestantFailedError(f"no prompt has at most {options.max_prompt_tokens} tokens")
    if options.equal:
        limit = -(-options.equal // len(prompts))
    prompts = {task: spread(of, limit) for task, of in prompts.items()}
    return {task: [prompt.token_ids for prompt in of] for task, of in prompts.items()}


def _measured(engine, prompts, asked, commit, options, failures):
    """The document of an engine; parts that are kept are not measured again."""
    kept = Kept(options.work / "engines" / f"{engine.name}-{engine.weights}.jsonl")
    label, parts = f"engines-{engine.name}-{engine.weights}", []
    how = {"is_cpu_time": asked.is_cpu_time}
    with Running(engine.processes, options.work / "logs", label, options.limit_s, **how) as running:
        all_parts = list(adapted.parts(prompts, asked))
        for number, (task, token_ids) in enumerate(all_parts, 1):
            settings = asked._asdict() | {"commit": commit, "kinds": engine.kinds}
            key = key_of(task=task, prompts=[ids.tolist() for ids in token_ids], **settings)
            if (part := kept.find(key)) is None:
                place = f"part {number} of {len(all_parts)}, "
                part = adapted.measure(
                    engine, running, task, token_ids, asked, partial(_tell, place)
                )
                contest = None if part is None else part[0]
                failed = running.failures | ({} if part is None else contest.failures)
                failures |= {
                    f"{engine.name} {engine.weights} {one}": why for one, why in failed.items()
                }
                if part is None or engine.kinds[0] not in contest.answers:
                    return None
                if not contest.failures:
                    kept.add(key, *part)
            parts.append(part)
            if not asked.is_equality:
                adapted_report.show_task(engine, task, part[0])
    return adapted_report.document(engine, parts, asked, commit)


@contextmanager
def _emptied(folder):
    """A folder whose files of 10 MB a prompt last as long as the block."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # another run may share it


def _tell(place, what):
    print(f"{place}{what}", file=sys.stderr, flush=True)


def _parser():
    parser = parser_of(__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument(
        "--engines", nargs="+", choices=adapted.ENGINES, default=list(adapted.ENGINES)
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="recorded requests, instead")
    add_counts(
        parser,
        equal=(None, "compare answers to N prompts alone, to their ends"),
        limit=(None, "only N prompts a task"),
        max_prompt_tokens=(1000, "leave out longer prompts"),
        threads=(1, "compute threads"),
        rounds=(1, "answers to each prompt"),
        max_new_tokens=(
            None,
            f"of an answer, default {MAX_NEW_TOKENS}, {EQUAL_NEW_TOKENS} with --equal",
        ),
        limit_s=(1800, "seconds for one answer"),
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="by the clock of the cores, where others use them"
    )
    parser.add_argument("--stop-at-end", action="store_true", help="let answers end by themselves")
    add_llama_cpp(parser)
    add_json(parser, to_file=True)
    return parser


if __name__ == "__main__":
    run_script(main)
