"""Engines with our drafts: what is opened of each, and parts of a comparison, one after the other.

In: a GGUF file's forms, prompts, and what is asked. Out: answers of all contestants of an engine,
task by task (for equality prompt by prompt), and why answers are not the engine's own.
"""

import json
import time
from pathlib import Path
from typing import NamedTuple

import genai
from contest import ContestantFailedError, hold
from live import hosted, llama_loop, llama_server
from live.engines import Engine as Process
from live.engines import Row

CONTEXT = 4096
ENGINES = ("llama.cpp", "transformers", "GenAI", "MLX")
OURS = tuple(hosted.KINDS)
SERVER_PLAIN = "server, plain"
"""llama.cpp's n-grams are its server's, which is another build than cyllama."""
WIDEST = OURS[1:]
"""For equality: where steps are widest, their arithmetic is furthest from that of one row."""


class Asked(NamedTuple):
    """What is asked of every engine."""

    threads: int
    rounds: int
    max_new_tokens: int
    stop_at_end: bool
    is_equality: bool
    is_cpu_time: bool


class Places(NamedTuple):
    """Folders.

    Attributes:
        slots: Through which llama.cpp's servers share what they have read.
        programs: Where llama-server is; None to leave it out.
        logs: For what the servers print.
    """

    slots: Path
    programs: Path | None
    logs: Path


class Engine(NamedTuple):
    """An engine with some weights; the first contestant is its own plain decoding."""

    name: str
    weights: str
    processes: list

    @property
    def kinds(self):
        """Its contestants."""
        return [row.name for process in self.processes for row in process.rows]


def process(kinds, open_engine, options):
    """What one process runs: its contestants, a function that opens them, and its options."""
    rows = [Row(kind, kind, "", "", kind != "plain") for kind in kinds]
    return Process(rows, open_engine, options)


def engines(name, gguf, weights, asked, places, failures):
    """An engine with each of its weights; a form that cannot be made fails alone.

    Args:
        name: One of `ENGINES`.
        gguf: The file.
        weights: Its `Weights`.
        asked: An `Asked`.
        places: `Places`.
        failures: Gets why it cannot be made.
    """
    try:
        yield from _engines(name, gguf, weights, asked, places)
    except ContestantFailedError as error:
        failures[name] = str(error)


def _engines(name, gguf, weights, asked, places):
    common = {"threads": asked.threads, "stop_at_end": asked.stop_at_end}
    if name == "llama.cpp":
        given = gguf.stem.rpartition(".")[2]
        yield _llama(given, gguf, asked, common, places)
        if given != "Q4_0":
            yield _llama("Q4_0", weights.q4_0(), asked, common, places)
        return
    folder = weights.hugging_face()
    config = json.loads((folder / "config.json").read_text())
    ends = config["eos_token_id"]
    shape = {
        "vocab_size": config["vocab_size"],
        "context": CONTEXT,
        "end_token_ids": ends if isinstance(ends, list) else [ends],
    }
    if name == "transformers":
        lookups = () if asked.is_equality else tuple(hosted.LOOKUPS)
        options = {"folder": folder, **common}
        kinds = ("plain", *_ours(asked), *(f"prompt lookup {count}" for count in lookups))
        yield Engine(name, "float32", [process(kinds, hosted.open_transformers, options)])
    elif name == "GenAI":
        made = weights.genai("int4")
        own = ("GenAI plain",) if asked.is_equality else tuple(genai.SETTINGS)
        processes = [
            process(own, genai.open_engine, {"folder": made, **common}),
            process(_ours(asked), hosted.open_genai, {"folder": made, **shape, **common}),
        ]
        yield Engine(name, "int4", processes)
    else:
        options = {"folder": folder, **shape, **common}
        yield Engine(name, "float32", [process(("plain", *_ours(asked)), hosted.open_mlx, options)])


def _ours(asked):
    return WIDEST if asked.is_equality else OURS


def _llama(weights, gguf, asked, common, places):
    opened = {"gguf": gguf, "context": CONTEXT, **common}
    processes = [
        process(("plain",), llama_loop.open_engine, opened),
        process(_ours(asked), hosted.open_llama, opened),
    ]
    if asked.is_equality or places.programs is None:
        return Engine("llama.cpp", weights, processes)
    shared = opened | {"slots": places.slots.absolute(), "programs": places.programs}
    shared["is_cpu_time"] = asked.is_cpu_time
    for kind in llama_server.SETTINGS:
        name = SERVER_PLAIN if kind == "plain" else kind
        log = places.logs / f"engines-server-{weights}-{kind.replace(' ', '-')}.log"
        options = shared | {"kind": kind, "name": name, "log": log}
        processes.append(process((name,), llama_server.open_engine, options))
    return Engine("llama.cpp", weights, processes)


def parts(prompts, asked):
    """Task and prompts of each part: a task's drafters learn from prompt to prompt."""
    for task, token_ids in prompts.items():
        if asked.is_equality:
            yield from ((task, [each]) for each in token_ids)
        else:
            yield task, token_ids


def measure(engine, running, task, token_ids, asked, tell):
    """A `Contest` over one part, and facts; None where the engine's own decoding is missing."""
    contestants = {contestant.name: contestant for contestant in running.contestants}
    if engine.kinds[0] not in contestants:
        return None
    start = time.monotonic()

    def on_progress(what, done, total):
        took = time.monotonic() - start
        tell(f"{engine.name} {engine.weights} {what}: {done} of {total} prompts, {took:.0f} s")

    contest = hold(
        list(contestants.values()),
        {task: token_ids},
        asked.rounds,
        asked.max_new_tokens,
        on_progress,
    )
    peers = dict.fromkeys(facts.get("about") for facts in running.facts.values())
    facts = {name: it for facts in running.facts.values() for name, it in facts.items()}
    told = {"facts": facts | {"peers": [*filter(None, peers)]}}
    if asked.is_equality and engine.kinds[0] in contest.answers:
        told["reasons"] = _reasons(contest, contestants, task, token_ids[0], asked)
    return contest, told


def _reasons(contest, contestants, task, prompt, asked):
    """By contestant whose answer is not the engine's own: where, and the scores there."""
    plain, *others = contest.answers
    expected = contest.answers[plain][task][0][0].tokens
    reasons = {}
    for name in others:
        said = contest.answers[name][task][0][0].tokens
        if said == expected:
            continue
        place = first_difference(said, expected)
        asked_of = (prompt, place, asked.max_new_tokens)
        found = contest.ask(contestants[name], contestants[name].explain, *asked_of)
        reasons[name] = {"position": place, "tokens": [expected[place:][:1], said[place:][:1]]}
        reasons[name] |= found or {}
    return reasons


def first_difference(said, expected):
    """The position of the first token that is not as expected, or at which one answer ends."""
    for place, (ours, theirs) in enumerate(zip(said, expected, strict=False)):
        if ours != theirs:
            return place
    return min(len(said), len(expected))
