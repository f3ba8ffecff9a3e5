"""The engines that a live comparison has: how each is opened, and what its rows are called.

In: a GGUF file, what is made of it (`weights.py`), bundles, llama.cpp's programs and threads.
Out: engines, ours first, each with its contestants' rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import genai
import ours as our_engine
from live import llama_bench, llama_server

CONTEXT = 8192
"""Tokens that llama.cpp holds, prompt and answer."""


class Row(NamedTuple):
    """A contestant as tables know it.

    Attributes:
        name: Unique among all rows.
        kind: What its engine calls it.
        engine: "coordgen", "llama.cpp" or "GenAI".
        weights: As what they are stored.
        drafts: Whether it drafts.
    """

    name: str
    kind: str
    engine: str
    weights: str
    drafts: bool


@dataclass(frozen=True)
class Engine:
    """What one process runs.

    Attributes:
        rows: Its contestants that are wanted.
        open_engine: A function of a module: options to `Opened`.
        options: Its options.
    """

    rows: list[Row]
    open_engine: Callable
    options: dict


def ours(bundles, threads, stop_at_end):
    """An engine for each bundle or GGUF file."""
    return [
        Engine(
            [
                Row(f"coordgen {name} {kind}", kind, "coordgen", name, drafts)
                for kind, drafts in our_engine.KINDS.items()
            ],
            our_engine.open_engine,
            {"bundle": bundle, "threads": threads, "stop_at_end": stop_at_end},
        )
        for bundle, name in zip(bundles, map(weights_of, bundles), strict=True)
    ]


def weights_of(path):
    """What its weights are called: a bundle's name, or the last part of a file's, such as Q4_1."""
    return path.stem.rpartition(".")[2] if path.suffix == ".gguf" else path.name


def llama_cpp(files, threads, stop_at_end, programs, logs):
    """A server for each setting of each GGUF file, by what its weights are called."""
    engines = []
    for weights, gguf in files.items():
        for kind in llama_server.SETTINGS:
            name = f"llama.cpp {weights} {kind}"
            options = {"gguf": gguf, "kind": kind, "threads": threads, "context": CONTEXT}
            options |= {"stop_at_end": stop_at_end, "programs": programs}
            log = logs / f"server-{name.replace(' ', '-')}-{threads}.log"
            row = Row(name, kind, "llama.cpp", weights, kind != "plain")
            engines.append(Engine([row], llama_server.open_engine, options | {"log": log}))
    return engines


def llama_cpp_benches(files, threads, programs):
    """llama.cpp's own benchmark on each GGUF file; it only reads prompts."""
    return [
        Engine(
            [Row(f"llama.cpp {weights} bench", llama_bench.KIND, "llama.cpp", weights, False)],
            llama_bench.open_engine,
            {"gguf": gguf, "threads": threads, "programs": programs},
        )
        for weights, gguf in files.items()
    ]


def genai_folders(folders, threads, stop_at_end):
    """An engine for each folder of the builder's, by what its weights are called."""
    return [
        Engine(
            [
                Row(
                    name.replace("GenAI", f"GenAI {weights}"),
                    name,
                    "GenAI",
                    weights,
                    bool(settings),
                )
                for name, settings in genai.SETTINGS.items()
            ],
            genai.open_engine,
            {"folder": folder, "threads": threads, "stop_at_end": stop_at_end},
        )
        for weights, folder in folders.items()
    ]


def chosen(engines, is_wanted):
    """The engines with those `Row`s alone that are wanted; one without any is left out."""
    narrowed = [
        replace(engine, rows=[row for row in engine.rows if is_wanted(row)]) for engine in engines
    ]
    return [engine for engine in narrowed if engine.rows]
