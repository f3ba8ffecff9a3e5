"""Many clients at once at a server of its own: every answer is checked, some clients go away.

In: a bundle. Out: figures on stdout; exit code 1 if an answer is not its plain one, or one is
missing. It needs httpx, and reads the memory of the server in /proc.

    python benches/server_load.py build/embedded-fp32 --clients 64 --requests 20 --max-queue 64
"""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

from support.script import run_script

PROMPTS = sorted((Path(__file__).parents[1] / "models" / "prompts").glob("*.txt"))
LENGTHS = (1, 8, 40)
_MOST_WAIT_S = 0.5
"""Of a client that was refused: the server's own advice is in whole seconds."""


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


def resident_mb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000


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
            assert int(response.headers["retry-after"]) >= 1
            self.ended["refused, asked again"] += 1
            await asyncio.sleep(random.uniform(0.1, 1) * _MOST_WAIT_S)

    async def learn(self):
        """Plain answers, one at a time."""
        for path in PROMPTS:
            for length in LENGTHS:
                told = await self.ask(path.read_text(), length, coordgen={"drafts": False})
                self.expected[path, length] = told["choices"][0]["text"]

    async def client(self, number, num_requests):
        chance = random.Random(f"{self.seed} {number}")
        for _ in range(num_requests):
            path, length = chance.choice(PROMPTS), chance.choice(LENGTHS)
            leaves_after_s = chance.uniform(0, 2) if chance.random() < 0.25 else None
            try:
                told = await asyncio.wait_for(self.ask(path.read_text(), length), leaves_after_s)
            except TimeoutError:
                self.ended["gone away"] += 1
                continue
            self.ended["answered"] += 1
            self.queued_ms.append(told["metrics"]["queue_time_ms"])
            if told["choices"][0]["text"] != self.expected[path, length]:
                self.wrong.append((path.name, length))


async def run(options):
    import httpx

    with server(options.bundle, options.max_queue, options.threads) as (pid, url):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
            load = Load(http, options.seed)
            await load.learn()
            before, start = resident_mb(pid), time.perf_counter()
            rounds = []
            for part in range(4):  # the first warms up what grows once
                clients = (
                    load.client(f"{part} {number}", max(options.requests // 4, 1))
                    for number in range(options.clients)
                )
                await asyncio.gather(*clients)
                rounds.append(resident_mb(pid))
            seconds = time.perf_counter() - start
            health = (await http.get("/health")).json()
    cuts = quantiles(load.queued_ms, n=100)
    print(f"{options.clients} clients, queue of {options.max_queue}, {seconds:.1f} s: {health}")
    print(", ".join(f"{name} {count}" for name, count in load.ended.items()))
    print(f"queue time p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")
    print(f"resident {before:.1f} MB, then {', '.join(f'{size:.1f}' for size in rounds)}")
    print(f"{len(load.wrong)} answers are not their plain ones {load.wrong[:3]}")
    return 1 if load.wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    parser.add_argument("--max-queue", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    run_script(main)
