"""A device's process that drafts from a fleet's index while that is replaced."""

import warnings
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from coordgen_rs import History
from coordgen_rs.bundle.directory import Bundle
from drafts import drafted_after


def draft_while_swapped(
    fleet: Path, bundle: Path, texts: list[list[int]], told: Connection, done: Event
) -> None:
    """Ask for drafts after both texts again and again; tell which are known when that changes."""
    warnings.simplefilter("error")
    named = list(zip(("first", "second"), texts, strict=True))
    with History.of(
        None, Bundle.open(bundle), namespace="mail", fleet=fleet, keep=False
    ) as history:
        told.send("ready")
        before = known(history, named)
        while not done.is_set():
            history.refresh()
            now = known(history, named)
            if now != before:
                told.send(now)
                before = now


def known(history: History, named: list[tuple[str, list[int]]]) -> list[str]:
    """The names of the texts that are drafted right."""
    arrays = [(name, np.asarray(text, np.uint32)) for name, text in named]
    return [
        name
        for name, text in arrays
        if drafted_after(history, text[:20], 8) == text[20:28].tolist()
    ]
