"""Many clients at once at a server of its own: every answer is checked, and what it leaves behind.

In: a bundle. Out: figures on stdout; exit code 1 if an answer is not its plain one, one is missing
or refused by another status than 429, or memory, threads or files grew. A quarter of the requests
go away at a random moment, some in the midst of a stream, and a tenth of them are read slowly. It
needs httpx, and reads what the server has in /proc.

    python benches/server_load.py build/embedded-fp32 --clients 64 --requests 20 --max-queue 64
"""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from support.script import add_counts, parser_of, run_script

PROMPTS = sorted((Path(__file__).parents[1] / "models" / "prompts").glob("*.txt"))
LENGTHS = (1, 8, 40)
GROWTH = 1.03
"""How much resident memory may grow, from a quarter of the requests to the end."""
_ROUNDS = 4
_LEAVING, _CUT, _SLOW = 0.15, 0.25, 0.35
"""Which part of the requests go away, are cut in the midst of a stream, and are read slowly: each
bound is the sum of the parts."""
_MOST_WAIT_S = 0.5
"""Of a client that was refused: the server's own advice is in whole seconds."""
_POOLED = 6
"""Threads that the server's pools begin when they are first needed."""
_SETTLED_S = 20
"""How long a server may take to close what its clients have left."""


class Held(NamedTuple):
    """What a process has.

    Attributes:
        resident_mb: Memory.
        threads: How many there are.
        files: Descriptors, sockets included.
    """

    resident_mb: float
    threads: int
    files: int


@contextmanager
def server(bundle, max_queue, threads, *more):
    """A server and its address; ended at the end."""
    command = [sys.executable, "-m", "coordgen_rs", "serve", bundle, "--port", "0", "--name", "m"]
    command += ["--max-queue", str(max_queue), "--threads", str(threads), "--grace", "1"]
    command += more
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if ready := re.search(r"serving .* on (\S+) ", line):
                break
        else:
            raise SystemExit("the server ended")
        try:
            yield process.pid, ready[1]
        finally:
            process.terminate()


def held_by(pid):
    """What a process has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    of = {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmRSS", "Threads")}
    return Held(of["VmRSS"] / 1000, of["Threads"], len([*Path(f"/proc/{pid}/fd").iterdir()]))


class Load:
    """Clients that ask, are refused, ask again, and sometimes go away."""

    def __init__(self, http, seed):
        self.http, self.seed = http, seed
        self.ended, self.queued_ms, self.wrong, self.expected = Counter(), [], [], {}

    async def ask(self, prompt, length, **more):
        body = {"prompt": prompt, "max_tokens": length, **more}
        while True:
            response = await self.http.post("/v1/completions", json=body)
            if response.status_code != 429:
                response.raise_for_status()
                return response.json()
            await self.wait(response)

    async def wait(self, response):
        """Wait as one who was refused."""
        assert int(response.headers["retry-after"]) >= 1
        self.ended["refused, asked again"] += 1
        await asyncio.sleep(random.uniform(0.1, 1) * _MOST_WAIT_S)

    async def read(self, prompt, length, most_events, pause_s):
        """The text of a stream, and its end; after so many events the connection is cut."""
        body = {"prompt": prompt, "max_tokens": length, "stream": True}
        while True:
            async with self.http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 429:
                    response.raise_for_status()
                    return await _read(response, most_events, pause_s)
            await self.wait(response)

    async def learn(self):
        """Plain answers, one at a time."""
        for path in PROMPTS:
            for length in LENGTHS:
                told = await self.ask(path.read_text(), length, coordgen={"drafts": False})
                self.expected[path, length] = told["choices"][0]["text"]

    async def client(self, number, num_requests):
        """Ask for one answer after the other."""
        import httpx

        chance = random.Random(f"{self.seed} {number}")
        for _ in range(num_requests):
            path, length, kind = chance.choice(PROMPTS), chance.choice(LENGTHS), chance.random()
            try:
                self.ended[await self.one(path, length, kind, chance)] += 1
            except httpx.HTTPError as error:
                self.ended[f"failed: {error}"] += 1

    async def one(self, path, length, kind, chance):
        """Ask once; how it ended."""
        prompt = path.read_text()
        if kind < _LEAVING:
            try:
                told = await asyncio.wait_for(self.ask(prompt, length), chance.uniform(0, 2))
            except TimeoutError:
                return "gone away"
        elif kind < _SLOW:
            is_cut = kind < _CUT
            most_events = chance.randint(1, 4) if is_cut else None
            text, last = await self.read(prompt, length, most_events, 0 if is_cut else 0.02)
            if last is None:
                return "cut"
            told = last | {"choices": [{"text": text}]}
        else:
            told = await self.ask(prompt, length)
        self.queued_ms.append(told["metrics"]["queue_time_ms"])
        if told["choices"][0]["text"] != self.expected[path, length]:
            self.wrong.append((path.name, length))
        return "answered slowly" if _CUT <= kind < _SLOW else "answered"


async def _read(response, most_events, pause_s):
    text, last = "", None
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return text, last
        if line.startswith("data: "):
            last = json.loads(line.removeprefix("data: "))
            text += last["choices"][0]["text"]
            most_events = None if most_events is None else most_events - 1
            if most_events == 0:
                return text, None
            await asyncio.sleep(pause_s)
    raise SystemExit("a stream ended without its last event")


async def run(options):
    """Ask, and print what came of it; the exit code."""
    import httpx

    limits = httpx.Limits(max_connections=None)
    more = ("--parallel", str(options.parallel))
    with server(options.bundle, options.max_queue, options.threads, *more) as (pid, url):

        def connected():
            return httpx.AsyncClient(base_url=url, timeout=300, limits=limits)

        load = Load(None, options.seed)
        async with connected() as load.http:
            await load.learn()
        before, start = await settled(pid, None), time.perf_counter()
        rounds = []
        async with connected() as load.http:
            for part in range(_ROUNDS):  # the first warms up what grows once
                clients = (
                    load.client(f"{part} {number}", max(options.requests // _ROUNDS, 1))
                    for number in range(options.clients)
                )
                await asyncio.gather(*clients)
                rounds.append(held_by(pid))
            seconds = time.perf_counter() - start
            health = (await load.http.get("/health")).json()
        after = await settled(pid, before)
    cuts = quantiles(load.queued_ms, n=100)
    print(
        f"{options.clients} clients, {options.parallel} answered at a time, queue of "
        f"{options.max_queue}, {seconds:.1f} s: {health}"
    )
    print(", ".join(f"{name} {count}" for name, count in sorted(load.ended.items())))
    print(f"queue time p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")
    print(
        f"resident {before.resident_mb:.1f} MB, then "
        f"{', '.join(f'{held.resident_mb:.1f}' for held in rounds)}; threads "
        f"{before.threads}, then {after.threads}; files {before.files}, then {after.files}"
    )
    print(f"{len(load.wrong)} answers are not their plain ones {load.wrong[:3]}")
    asked = options.clients * max(options.requests // _ROUNDS, 1) * _ROUNDS
    found = problems(load, asked, rounds, before, after)
    for problem in found:
        print(f"wrong: {problem}")
    return 1 if found else 0


async def settled(pid, before):
    """What a server has once its clients are gone; waits for as few files as it had before."""
    until = time.monotonic() + _SETTLED_S
    held = held_by(pid)
    while before is not None and held.files > before.files and time.monotonic() < until:
        await asyncio.sleep(0.1)
        held = held_by(pid)
    return held


def problems(load, num_asked, rounds, before, after):
    """What must not be, in words.

    Args:
        load: The clients, who are done.
        num_asked: Requests that they had.
        rounds: What the server had behind each part of them; the first begins what grows once.
        before: What it had before.
        after: What it has when they are gone.
    """
    found = [f"an answer to {name} with {length} tokens" for name, length in load.wrong]
    found += [name for name in load.ended if name.startswith("failed")]
    known = ("answered", "answered slowly", "gone away", "cut")
    if (num_ended := sum(load.ended[name] for name in known)) != num_asked:
        found.append(f"{num_ended} of {num_asked} requests have ended as they should")
    growth = rounds[-1].resident_mb / rounds[0].resident_mb
    if growth > GROWTH:
        found.append(f"memory grew by {100 * (growth - 1):.1f} %")
    if after.threads > before.threads + _POOLED:
        found.append(f"{after.threads} threads, {before.threads} before")
    if after.files > before.files:
        found.append(f"{after.files} files, {before.files} before")
    return found


def main(arguments=None):
    """Measure and print; 1 where something is wrong."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle")
    add_counts(
        parser,
        clients=(64, ""),
        requests=(20, "of each client"),
        parallel=(4, "answered at a time"),
        threads=(1, ""),
    )
    add_counts(parser, least=0, max_queue=(64, ""), seed=(0, ""))
    return asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    run_script(main)
