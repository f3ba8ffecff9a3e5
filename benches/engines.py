"""Our drafts in other engines, beside each engine's own n-gram drafting, on a real model.

    python benches/engines.py MODEL.gguf

In: a GGUF file; Q4_0, GenAI's int4 folder and a Hugging Face directory are made of it (in `--work`,
once). Out: a table: tokens a step, speed against the engine's plain decoding, and answers that are
not its plain ones. Engines have a process each and answer in turns; one that is absent is named and
left out.

Needs `pip install --group peers`; MLX `pip install mlx-lm 'mlx[cpu]'`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from contest import ContestantFailedError, hold
from coordgen_rs.cli import values
from coordgen_rs.cli.progress import progress
from coordgen_rs.errors import CoordgenError
from coordgen_rs.text.tokenizer import Tokenizer
from live import genai_folder, hosted, llama_loop, llama_server
from live.process import EngineProcess
from live.prompts import chat_template, encode, read_conversations, read_recorded
from live.weights import Weights

PROMPTS = Path(__file__).parent / "prompts"
CONTEXT = 4096
ENGINES = ("llama.cpp", "transformers", "GenAI", "MLX")
OURS = ("plain", *hosted.KINDS)


class Process(NamedTuple):
    """What is opened in one process: a function, its options, and the contestants wanted of it."""

    open_engine: object
    options: dict
    kinds: tuple


def main(arguments=None):
    """Measure and print; 1 where an engine failed."""
    options = _parser().parse_args(arguments)
    try:
        weights = Weights(options.model, options.work)
        folder = weights.hugging_face()
        config = json.loads((folder / "config.json").read_text())
        read, place = (
            (read_recorded, options.data) if options.data else (read_conversations, PROMPTS)
        )
        conversations = read(place, options.limit)
        tokenizer = Tokenizer(folder / "tokenizer.json")
        prompts = encode(conversations, chat_template(options.model), tokenizer)
        ids = {task: [prompt.token_ids for prompt in of] for task, of in prompts.items()}
    except (CoordgenError, ContestantFailedError, OSError) as error:
        print(f"engines.py: {error}", file=sys.stderr)
        return 2
    documents, failures = [], {}
    for engine in options.engines:
        for weights_name, processes in _processes(engine, options, weights, folder, config):
            document = _measured(engine, weights_name, processes, ids, options, failures)
            if document:
                documents.append(document)
                show(document)
            if options.json:
                told = {"runs": documents, "failures": failures}
                options.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    for name, why in failures.items():
        print(f"{name}: {why}", file=sys.stderr)
    return 1 if failures else 0


def _processes(engine, options, weights, folder, config):
    """The weights of an engine, and what is to be opened of each; ours and plain come first."""
    common = {"threads": options.threads, "stop_at_end": options.stop_at_end}
    ends = config["eos_token_id"]
    shape = {
        "vocab_size": config["vocab_size"],
        "context": CONTEXT,
        "end_token_ids": ends if isinstance(ends, list) else [ends],
    }
    if engine == "llama.cpp":
        files = {options.model.stem.rpartition(".")[2]: options.model, "Q4_0": weights.q4_0()}
        for name, gguf in files.items():
            opened = {"gguf": gguf, "context": CONTEXT, **common}
            servers = [
                Process(llama_server.open_engine, opened | {"kind": kind}, (kind,))
                for kind in llama_server.TYPES
                if kind != "plain"
            ]
            loop = Process(llama_loop.open_engine, opened, ("plain",))
            yield name, [loop, Process(hosted.open_llama, opened, tuple(hosted.KINDS)), *servers]
    elif engine == "transformers":
        opened = {"folder": folder, **common}
        kinds = (*OURS, *(f"prompt lookup {count}" for count in hosted.LOOKUPS))
        yield "float32", [Process(hosted.open_transformers, opened, kinds)]
    elif engine == "GenAI":
        made = weights.genai("int4")
        own = Process(
            genai_folder.open_engine, {"folder": made, **common}, tuple(genai_folder.SETTINGS)
        )
        ours = Process(hosted.open_genai, {"folder": made, **shape, **common}, tuple(hosted.KINDS))
        yield "int4", [own, ours]
    else:
        yield "float32", [Process(hosted.open_mlx, {"folder": folder, **shape, **common}, OURS)]


def _measured(engine, weights, processes, prompts, options, failures):
    """Figures of an engine with some weights; None where nothing of it can be opened."""
    opened, contestants, facts = [], [], {}
    logs = options.work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        for number, process in enumerate(processes):
            log = logs / f"engines-{engine}-{weights}-{number}.log"
            log.write_bytes(b"")
            name = f"{engine} {weights} {process.kinds[0]}"
            try:
                running = EngineProcess(process.open_engine, process.options, log, options.limit_s)
            except ContestantFailedError as error:
                failures[name] = str(error)
                continue
            opened.append(running)
            facts |= running.facts
            contestants += [running.contestant(kind, kind) for kind in process.kinds]
        if not contestants:
            return None
        with progress() as on_progress:
            asked = (prompts, options.rounds, options.max_new_tokens, on_progress)
            contest = hold(contestants, *asked)
    finally:
        for running in opened:
            running.close()
    failures |= {f"{engine} {weights} {name}": why for name, why in contest.failures.items()}
    return _document(engine, weights, contest, [*prompts], facts)


def _document(engine, weights, contest, tasks, facts):
    plain = next(iter(contest.answers))
    speed = contest.figures(plain, tasks).tokens_per_s
    rows = {}
    for name in contest.answers:
        figures = contest.figures(name, tasks)
        by_task = {task: contest.figures(name, [task]) for task in tasks}
        rows[name] = {
            "tokens_per_step": {task: of.tokens_per_step for task, of in by_task.items()}
            | {"all": figures.tokens_per_step},
            "tokens_per_s": figures.tokens_per_s,
            "speedup": figures.tokens_per_s / speed,
            "different": figures.different,
        }
    num_prompts = sum(len(of) for of in contest.answers[plain].values())
    facts = {key: value for key, value in facts.items() if key != "name"}
    return {
        "engine": engine,
        "weights": weights,
        "prompts": num_prompts,
        "rows": rows,
        "facts": facts,
    }


def show(document):
    """Print a table."""
    print(f"\n{document['engine']}, {document['weights']}, {document['prompts']} prompts")
    tasks = [*next(iter(document["rows"].values()))["tokens_per_step"]]
    heads = "".join(f"{task:>9}" for task in tasks)
    print(f"{'':26}{heads}{'tokens/s':>10}{'x plain':>9}{'different':>11}")
    for name, row in document["rows"].items():
        cells = "".join(f"{row['tokens_per_step'][task]:9.2f}" for task in tasks)
        speed = f"{row['tokens_per_s']:10.1f}{row['speedup']:9.2f}"
        print(f"{name:26}{cells}{speed}{row['different']:11}")
    sys.stdout.flush()


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def add_count(option, default, help):
        told = help if default is None else f"{help}, default %(default)s"
        parser.add_argument(
            option, type=values.count(option), default=default, metavar="N", help=told
        )

    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--data", type=Path, metavar="DIR", help="recorded requests, instead")
    add_count("--limit", None, "only N prompts a task")
    add_count("--threads", 1, "compute threads")
    add_count("--rounds", 3, "answers to each prompt")
    add_count("--max-new-tokens", 64, "tokens of an answer")
    parser.add_argument("--stop-at-end", action="store_true", help="let answers end by themselves")
    add_count("--limit-s", 1800, "seconds for one answer")
    parser.add_argument(
        "--work", type=Path, default=Path("build/peers"), help="for files that are made"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
