"""Requests that are interrupted at a given point, or by real signals, and what must hold then.

In: a model's options. Out: the points that requests meet in the main thread, requests that are
interrupted at one of them, and whether the next are answered as ever.
"""

import contextlib
import sys
import threading
import time
from functools import cache
from pathlib import Path

import coordgen_rs
from coordgen_rs import JsonSchema, Model

PACKAGE = str(Path(coordgen_rs.__file__).parent)
TEXTS = [f"{'A rather long beginning that is kept. ' * 4}{end}" for end in ("One", "Two", "Three")]
SCHEMA = JsonSchema({"type": "array", "items": {"enum": ["red", "green", 7]}, "maxItems": 3})
ASKED = (
    (TEXTS[0], {}),
    (TEXTS[1], {"namespace": "other"}),
    (TEXTS[2], {"temperature": 0.8, "seed": 3}),
    (TEXTS[0], {"grammar": SCHEMA}),
    (TEXTS[1], {"stop": "e"}),
)
"""Requests; the beginning of each is kept by another, or was overwritten by one."""
OPTIONS = {"max_new_tokens": 6}


def asked(model, number):
    """One of the requests: the answer's tokens."""
    text, options = ASKED[number]
    return model.generate(text, **OPTIONS, **options).token_ids


def together(model):
    """Streams that one thread reads, each to its end; one of them is left half-way."""
    streams = [model.stream(text, **OPTIONS, **options) for text, options in ASKED]
    with model.stream(TEXTS[2], **OPTIONS) as left:
        next(left)
        if model.parallel > 1:
            for stream in streams[1:3]:
                next(stream)
    for stream in streams:
        for _ in stream:
            pass
    return [stream.answer.token_ids for stream in streams]


@cache
def _is_followed(name):
    """Whether a file is the package's, or one of Python's that wait and leave blocks."""
    return name.startswith(PACKAGE) or name in (threading.__file__, contextlib.__file__)


class Tracer:
    """Raises KeyboardInterrupt once in the main thread, where a signal could: at a point.

    That is the beginning of a function of Python's, or the end of one of C's. Nowhere else, but at
    a jump back, does Python look for signals: not between the end of a `try` and the first call of
    its `finally`.

    Args:
        point: Where to raise it; None for never.

    Attributes:
        points: All points that were met, in order.
        is_done: Whether it was raised.
    """

    def __init__(self, point=None):
        self.points, self.is_done, self._point = {}, False, point

    def _meets(self, *point):
        self.points[point] = None
        if point == self._point and not self.is_done:
            self.is_done = True
            raise KeyboardInterrupt

    def _profile(self, frame, event, arg):
        code = frame.f_code
        if _is_followed(code.co_filename):
            if event == "call":
                self._meets("begins", code.co_filename, code.co_firstlineno)
            elif event == "c_return":
                self._meets("ends", code.co_filename, frame.f_lineno, arg.__qualname__)

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


def num_threads():
    """How many threads the process has, those of the system's own call included."""
    tasks = Path("/proc/self/task")
    return len([*tasks.iterdir()]) if tasks.exists() else threading.active_count()


def num_idle():
    """How many threads there are once what was asked for is done; those of libraries stay."""

    def looked():
        time.sleep(0.01)
        return num_threads()

    return min(looked() for _ in range(30))


def threads_end(num_before):
    """Whether there are soon no more threads than before."""
    until_s = time.monotonic() + 120
    while num_threads() > num_before and time.monotonic() < until_s:
        time.sleep(0.001)
    return num_threads() <= num_before


def open_model(bundle, path, parallel):
    """A model that keeps prefixes in memory or on disk, and a history."""
    kept = {"prefix_memory": 1 << 26} if parallel > 1 else {"prefix_store": path / "prefixes"}
    return Model.open(bundle, parallel=parallel, history=path / "history", **kept)
