"""The engines that a live comparison has: how each is opened, and what its rows are called.

In: a GGUF file and the files made of it (`weights.py`), bundles, and threads. Out: engines, ours
first, each with its contestants' rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import genai
from live import coordgen, genai_folder, llama_loop, llama_server

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
    """An engine for each bundle."""
    return [
        Engine(
            [
                Row(f"coordgen {bundle.name} {kind}", kind, "coordgen", bundle.name, drafts)
                for kind, drafts in coordgen.KINDS.items()
            ],
            coordgen.open_engine,
            {"bundle": bundle, "threads": threads, "stop_at_end": stop_at_end},
        )
        for bundle in bundles
    ]


def llama_cpp(files, threads, stop_at_end):
    """For each GGUF file, by what its weights are called: the loop, and a server for each type."""
    engines = []
    for weights, gguf in files.items():
        options = {"gguf": gguf, "threads": threads, "context": CONTEXT, "stop_at_end": stop_at_end}
        row = Row(f"llama.cpp loop {weights} plain", "plain", "llama.cpp", weights, False)
        engines.append(Engine([row], llama_loop.open_engine, options))
        for kind in llama_server.TYPES:
            name = f"llama.cpp {weights} {kind}"
            row = Row(name, kind, "llama.cpp", weights, kind != "plain")
            engines.append(Engine([row], llama_server.open_engine, options | {"kind": kind}))
    return engines


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
            genai_folder.open_engine,
            {"folder": folder, "threads": threads, "stop_at_end": stop_at_end},
        )
        for weights, folder in folders.items()
    ]


def chosen(engines, pattern):
    """The engines with those rows alone whose names match; one without any is left out.

    Args:
        engines: All.
        pattern: A regular expression, searched in the names; None for all rows.
    """
    if pattern is None:
        return engines
    narrowed = [
        replace(engine, rows=[row for row in engine.rows if pattern.search(row.name)])
        for engine in engines
    ]
    return [engine for engine in narrowed if engine.rows]
