"""A long life in one process: requests of all kinds, and what each leaves behind.

    PYTHONMALLOC=malloc python tests/support/soak.py BUNDLE DRAFT_BUNDLE [--requests 2000]

Fails where an answer differs from plain decoding, where memory grows by more than 2 % after the
first three hundred requests, or where a file descriptor or a thread is left over. Models, histories
and prompts are the same throughout, so that what grows is kept by mistake. The random choices are
drawn from a seed: every run makes the same requests.

Memory is measured every hundred requests, when all models have just answered the same prompts, the
history has just been opened, and what a model remembers of earlier requests has been dropped: a
model that streams its weights holds other blocks after each request, 5 % of all memory more or
less. What counts is what the allocator has given out. Resident memory is printed beside it; it
moves by 4 % either way, without growing, as holes come and go.
"""

import argparse
import ctypes
import gc
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from coordgen_rs import Model, open_session
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import OptionError, PromptTooLongError, SessionClosedError
from coordgen_rs.generation.drafting.drafter import Drafters
from coordgen_rs.loading.options import open_options
from coordgen_rs.runtime.machine import resident_bytes
from corpus import HELD_OUT_SEEDS, TASKS, example

WARM_UP = 300
"""Requests after which little should grow: 0.1 % in a hundred still comes, and 0.7 % at the
thousandth alone, of what is not known. Each model by itself, and requests that fail, keep 50 to 300
bytes a request."""

_IN_TURN = 100
"""Requests, the first ones, in which each model meets each kind in turn."""

GROWTH = 1.02
_HISTORY_TOKENS = 20_000
_PROMPTS = 24
_REOPENED = 36
"""Requests, the first ones, in which models are closed and opened again, each twice. After them
they stay: a model that has just been opened takes more when it meets further kinds of requests, and
the tokenizers package leaves 33 KB behind of each tokenizer that has encoded a text."""

_REOPEN_EVERY = 3
"""Of these requests."""

_MEASURE_EVERY = 100
"""Requests from one measurement to the next. Before each, what is meant to grow, up to limits that
few runs reach, is dropped: the history is opened again, so that what it holds in memory of new
requests, up to 65,536 tokens of them, goes to its index; and the model that remembers requests, 3
KB for each of all these up to 26 MB, forgets them."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.2, "seed": 2, "top_k": 40},
    {"temperature": 1.2, "seed": 3, "top_p": 0.9},
    {"stop": "."},
)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    )


@dataclass(frozen=True)
class Memory:
    """What the process holds.

    Attributes:
        resident: Bytes, as the system counts them: with the allocator's holes, and without what
            was asked for and never touched.
        in_use: Bytes that were asked for and not given back, Python's objects among them where it
            runs with PYTHONMALLOC=malloc; `resident` where the C library does not tell.
    """

    resident: int
    in_use: int

    @classmethod
    def now(cls) -> "Memory":
        """Measure it."""
        gc.collect()
        resident = resident_bytes()
        mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if mallinfo2 is None:
            return cls(resident, resident)
        mallinfo2.restype = _MallocInfo
        info = mallinfo2()
        return cls(resident, info.uordblks + info.hblkhd)


@dataclass
class Findings:
    """What a run saw.

    Attributes:
        seconds: What each request took, by kind, in the order in which they were made.
        memory: When the warm-up was over, and then every hundred requests.
        left: File descriptors and threads before anything was opened, and after all was closed.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: list[Memory] = field(default_factory=list)
    left: list[tuple[int, int]] = field(default_factory=list)


class House:
    """Models over one bundle, each opened in another way, and the requests that they answer."""

    def __init__(self, bundle: Path, draft_bundle: Path, scratch: Path, seed: int = 0) -> None:
        self._random = random.Random(seed)
        blocks = Bundle.open(bundle).manifest
        sizes = [blocks.files[block.weights].num_bytes for block in blocks.blocks]
        within_two_blocks = {"memory_budget": 2 * max(sizes), "remember": False}
        beyond_one = {"memory_budget": sum(sizes) + max(sizes), "remember": False}
        self._remembering: Drafters  # of the only model that remembers requests
        self._open: dict[str, Callable[[], Model]] = {
            "lookups": lambda: self._with_memory(bundle),
            "history": lambda: _with_history(bundle, scratch),
            "switching": lambda: Model.open(bundle, **beyond_one),
            "streaming": lambda: Model.open(bundle, **within_two_blocks),
            "draft model": lambda: Model.open(bundle, draft_model=draft_bundle, remember=False),
            "table": lambda: Model.open(bundle, draft="diaa"),
        }
        self._models = {name: opened() for name, opened in self._open.items()}
        self._requests = (
            self.answer,
            self.answer_with_prediction,
            self.cancel,
            self.fail,
            self.two_at_once,
        )
        self._options = cycle(_OPTIONS)
        self._plain: dict[tuple[object, ...], str] = {}

    def request(self, number: int) -> str:
        """Make one request; returns its kind."""
        if number < _REOPENED and number % _REOPEN_EVERY == 0:
            self._open_again(list(self._open)[number // _REOPEN_EVERY % len(self._open)])
        name, request = self._chosen(number)
        request(self._models[name])
        return f"{request.__name__.replace('_', ' ')}: {name}"

    def _chosen(self, number: int) -> tuple[str, Callable[[Model], None]]:
        """A model and a kind of request: in turn at first, at random after that."""
        names = list(self._open)
        if number >= _IN_TURN:
            return self._random.choice(names), self._random.choice(self._requests)
        turn, model = divmod(number, len(names))
        return names[model], self._requests[turn % len(self._requests)]

    def measured(self) -> Memory:
        """Memory when every model has done the same."""
        self._open_again("history")
        self._remembering.close()  # it makes new drafters for the next request
        for model in self._models.values():
            for prompt in 0, 1:  # whatever was asked before, the second follows the first
                model.generate(_prompt(prompt), max_new_tokens=24)
        return Memory.now()

    def _with_memory(self, bundle: Path) -> Model:
        session = open_session(bundle)
        self._remembering = Drafters(session, open_options("soak", {}))
        return Model(session, self._remembering)

    def _open_again(self, name: str) -> None:
        self._models.pop(name).close()
        self._models[name] = self._open[name]()

    def answer(self, model: Model) -> None:
        prompt, options = self._drawn()
        assert model.generate(_prompt(prompt), **options).text == self._expected(prompt, options)

    def answer_with_prediction(self, model: Model) -> None:
        prompt, options = self._drawn()
        expected = self._expected(prompt, options)
        guess = expected[: len(expected) // 2] + " or not"
        assert model.generate(_prompt(prompt), prediction=guess, **options).text == expected

    def cancel(self, model: Model) -> None:
        prompt, options = self._drawn()
        expected = self._expected(prompt, options)
        with model.stream(_prompt(prompt), **options) as stream:
            for _ in range(self._random.randrange(4)):
                next(stream, None)
        assert expected.startswith(stream.answer.text)

    def fail(self, model: Model) -> None:
        _refuses(PromptTooLongError, lambda: model.generate("word " * 20_000))
        _refuses(OptionError, lambda: model.generate("a", temperature=1, top_p=-1))
        with model.stream(_prompt(0), on_read=_fail, reuse_prefix=False) as stream:
            _refuses(ZeroDivisionError, lambda: next(stream))
        with model.stream(_prompt(0)) as stream:
            next(stream)
            assert model.generate("a", max_new_tokens=1).token_ids

    def two_at_once(self, model: Model) -> None:
        drawn = [self._drawn() for _ in range(2)]
        expected = [self._expected(*one) for one in drawn]
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda one: model.generate(_prompt(one[0]), **one[1]).text, drawn)
            assert list(found) == expected

    def close(self) -> None:
        for model in self._models.values():
            model.close()
            _refuses(SessionClosedError, lambda model=model: model.generate("a"))
        self._models.clear()
        del self._remembering

    def _drawn(self) -> tuple[int, dict[str, Any]]:
        return self._random.randrange(_PROMPTS), {**next(self._options), "max_new_tokens": 24}

    def _expected(self, prompt: int, options: dict[str, Any]) -> str:
        """The answer of plain decoding."""
        key = (prompt, *options.items())
        if key not in self._plain:
            answer = self._models["lookups"].generate(_prompt(prompt), drafts=False, **options)
            self._plain[key] = answer.text
        return self._plain[key]


def soak(
    bundle: Path,
    draft_bundle: Path,
    requests: int,
    on_measured: Callable[[int, Memory], None] = lambda number, memory: None,
) -> Findings:
    """Make so many requests; `on_measured` is called with the number of requests and the memory."""
    found = Findings()
    with Model.open(bundle) as model:  # starts what the process keeps: ONNX Runtime's threads, and
        _refuses(PromptTooLongError, lambda: model.generate("word " * 20_000))  # the tokenizer's
    found.left.append(_handles())
    with tempfile.TemporaryDirectory() as scratch:
        house = House(bundle, draft_bundle, Path(scratch))
        for number in range(requests):
            started = perf_counter()
            kind = house.request(number)
            found.seconds[kind].append(perf_counter() - started)
            if number + 1 >= WARM_UP and (number + 1 - WARM_UP) % _MEASURE_EVERY == 0:
                found.memory.append(house.measured())
                on_measured(number + 1, found.memory[-1])
        house.close()
    found.left.append(_handles())
    return found


def _with_history(bundle: Path, directory: Path) -> Model:
    session = open_session(bundle)
    memory = {"history": directory, "history_max_tokens": _HISTORY_TOKENS}
    drafters = Drafters(session, open_options("soak", memory))
    return Model(session, drafters)


@cache
def _prompt(index: int) -> str:
    return example(TASKS[index % len(TASKS)], HELD_OUT_SEEDS[index]).prompt


def _fail(_: int) -> None:
    raise ZeroDivisionError


def _refuses(error: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def _handles() -> tuple[int, int]:
    """Open file descriptors and living threads."""
    gc.collect()
    gc.collect()  # what generators held that the first one closed
    return tuple(len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task"))


def growth(sizes: list[int]) -> float:
    """The largest size over the first."""
    return max(sizes) / sizes[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("draft_bundle", type=Path)
    parser.add_argument("--requests", type=int, default=2_000)
    options = parser.parse_args()
    least = WARM_UP + 3 * _MEASURE_EVERY
    if options.requests < least:
        parser.error(f"--requests: at least {least}, so that growth can be seen")

    def show(number: int, memory: Memory) -> None:
        in_use, resident = memory.in_use / 1e6, memory.resident / 1e6
        print(f"{number:6} requests: {in_use:6.1f} MB in use, {resident:.1f} resident", flush=True)

    found = soak(options.bundle, options.draft_bundle, options.requests, show)
    print(f"\n{'kind':36}{'requests':>9}{'first tenth':>13}{'last tenth':>12}  (median, ms)")
    for kind, seconds in sorted(found.seconds.items()):
        tenth = max(1, len(seconds) // 10)
        first, last = (1e3 * median(part) for part in (seconds[:tenth], seconds[-tenth:]))
        print(f"{kind:36}{len(seconds):9}{first:13.1f}{last:12.1f}")
    grown = growth([memory.in_use for memory in found.memory])
    print(f"\nmemory in use: {grown:.4f} x after the first {WARM_UP} requests")
    print(f"(file descriptors, threads): {found.left[0]} before, {found.left[1]} after")
    if grown > GROWTH:
        sys.exit("memory grows")
    if found.left[1] != found.left[0]:
        sys.exit("something is left over")


if __name__ == "__main__":
    main()
