"""A server among bad neighbours: what one client's stream feels of what others send.

In: bundles. Out: figures on stdout; exit code 1 where one is beyond its bound. Five clients send
7 MB of text each, again and again; 1,100 sockets never end the head of a request, with 1,024
descriptors for the server; and twenty threads of one key ask again as soon as they are refused.
Another key streams one answer after the other. Then three keys stream, while two others send
grammars that cost much (`hostile_grammars.py`). What else the machine does shows in the figures.

    python tests/support/bad_neighbours.py build/embedded-fp32 build/smollm2
"""

import argparse
import http.client
import json
import multiprocessing
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from hostile_grammars import hostile_grammars

SENDERS, IDLE_SOCKETS, DESCRIPTORS, RETRYING = 5, 1100, 1024, 20
TEXT = "hello world " * 600_000
GRACE_S = 1
LEAVES_S = 10
BEGIN = "The red lamp of the mill is"
FAILED = (OSError, http.client.HTTPException)

BOUNDS = {
    "health, ms at the median": 3.0,
    "longest 1 % of pauses, ms": 100.0,
    "not answered": 0.0,
    "memory after, % more": 10.0,
    "longest wait for a token, ms more": 300.0,
    "memory after, MB more": 500.0,
    "seconds to end while grammars are compiled": GRACE_S + 2.0,
}


@contextmanager
def server(bundle, threads):
    """A server with 1,024 descriptors and a key for each client: its process, and where it is."""

    def few_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    with tempfile.TemporaryDirectory() as folder:
        keys, log = Path(folder, "keys"), Path(folder, "log")
        senders = (f"sender{number}" for number in range(SENDERS))
        names = ("good", "two", "three", "retrying", *senders)
        keys.write_text("".join(f"{name} key-{name}\n" for name in names))
        command = [sys.executable, "-m", "coordgen_rs", "serve", bundle, "--port", "0"]
        command += ["--api-key-file", keys, "--threads", threads, "--grace", GRACE_S]
        with (
            log.open("w") as stderr,
            subprocess.Popen(
                list(map(str, command)), stderr=stderr, preexec_fn=few_descriptors
            ) as process,
        ):
            try:
                while not (ready := re.search(r"serving .* on (\S+) ", log.read_text())):
                    if process.poll() is not None:
                        raise SystemExit(f"the server ended: {log.read_text()}")
                    time.sleep(0.05)
                yield process, ready[1], log
            finally:
                process.terminate()


def connected(url, timeout=120):
    place = urlsplit(url)
    return http.client.HTTPConnection(place.hostname, place.port, timeout=timeout)


def post(connection, path, body, name):
    """The response to a client's request."""
    head = {"Authorization": f"Bearer key-{name}", "Content-Type": "application/json"}
    connection.request("POST", path, body, head)
    return connection.getresponse()


def completion(**fields):
    return json.dumps({"prompt": BEGIN, **fields})


def be_bad(url, has_begun, is_over, told):
    """All that bad clients do until it is over, in a process of their own; tells their answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ended, answers = threading.Event(), Counter()

    def ask(name, path, body):
        connection = connected(url)
        while not ended.is_set():
            try:
                response = post(connection, path, body, name)
                response.read()
                said = response.status
            except FAILED as error:
                connection.close()
                said = type(error).__name__
            answers[f"{name.rstrip('0123456789')} {said}"] += 1
            ended.wait(0.02)

    def idle():
        place, held = urlsplit(url), []
        while not ended.is_set():
            held = [one for one in held if is_open(one)]
            with suppress(OSError):
                while len(held) < IDLE_SOCKETS:
                    one = socket.create_connection((place.hostname, place.port), timeout=1)
                    held.append(one)
                    one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
            ended.wait(1)

    text = json.dumps({"messages": [{"role": "user", "content": TEXT}]})
    doing = [(ask, f"sender{n}", "/v1/chat/completions", text) for n in range(SENDERS)]
    doing += [(ask, "retrying", "/v1/completions", completion(max_tokens=32))] * RETRYING
    with ThreadPoolExecutor(len(doing) + 1) as threads:
        for one in [(idle,), *doing]:
            threads.submit(*one)
        has_begun.set()
        is_over.wait()
        ended.set()
    told.put(dict(answers))


def is_open(connection):
    """Whether the other side has not closed it."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


@contextmanager
def neighbours(url):
    """Bad neighbours while the block runs."""
    spawned = multiprocessing.get_context("spawn")
    has_begun, is_over, told = spawned.Event(), spawned.Event(), spawned.Queue()
    process = spawned.Process(target=be_bad, args=(url, has_begun, is_over, told))
    process.start()
    has_begun.wait()
    try:
        time.sleep(2)  # until all of them are at it
        yield
    finally:
        is_over.set()
        print(f"  the neighbours were told: {told.get()}")
        process.join()


def streamed(connection, name="good"):
    """Milliseconds between the events of one streamed answer; None if there was none."""
    body = completion(max_tokens=96, stream=True, ignore_eos=True)
    try:
        response = post(connection, "/v1/completions", body, name)
        times, is_whole = [], False
        while line := response.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                is_whole = is_whole or b'"finish_reason":"' in line
    except FAILED:
        connection.close()
        return None
    if response.status != 200 or not is_whole:
        return None
    return [1000 * (later - time) for time, later in pairwise(times)]


def streams(name, url, seconds):
    """The longest 1 % of pauses of answers one after the other, and how many there were not."""
    connection, pauses, answered, refused = connected(url), [], 0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or answered + refused < 4:
        found = streamed(connection)
        if found is None:
            refused += 1
            time.sleep(0.1)
        else:
            answered += 1
            pauses += found
    pauses = pauses if len(pauses) > 1 else [float("inf")] * 2
    p99 = quantiles(pauses, n=100)[98]
    print(
        f"  {name}: {answered} answered, {refused} not; pauses {median(pauses):.1f} ms at the "
        f"median, {p99:.1f} at the 99th percentile, {max(pauses):.1f} at most"
    )
    return p99, refused


def health_ms(url):
    connection, found = connected(url, timeout=10), []
    for _ in range(60):
        begun = time.perf_counter()
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
        except FAILED:
            connection.close()
        found.append(1000 * (time.perf_counter() - begun))
    return median(found)


def resident_mb(process, name="VmRSS"):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1000


def measure(bundle, seconds, threads):
    """The figures that have bounds, by name."""
    with server(bundle, threads) as (process, url, log):
        streams("alone", url, seconds / 2)
        health, before = health_ms(url), resident_mb(process)
        with neighbours(url):
            p99, refused = streams("among them", url, seconds)
            print(f"  health among them: {health_ms(url):.1f} ms; {resident_mb(process):.0f} MB")
        streams("afterwards", url, seconds / 4)
        after = resident_mb(process)
        print(f"  {before:.0f} MB before, {after:.0f} MB after; {log.stat().st_size} bytes of log")
    figures = health, p99, refused, 100 * (after / before - 1)
    return dict(zip(list(BOUNDS)[:4], figures, strict=True))


def ask_for(url, name, bodies):
    """Ask for one answer after the other, and leave where it takes long; how many ended how."""
    told = Counter()
    for held in bodies:
        connection = connected(url, timeout=LEAVES_S)
        body = completion(max_tokens=64, ignore_eos=True, **held)
        try:
            told[post(connection, "/v1/completions", body, name).status] += 1
        except FAILED as error:
            told[type(error).__name__] += 1
        connection.close()
    return told


def longest_wait(url, is_over):
    """The longest pause of three clients' streams, in milliseconds, until it is over."""

    def read(name):
        connection, pauses = connected(url), [0.0]
        while not is_over():
            pauses += streamed(connection, name) or []
        return max(pauses)

    with ThreadPoolExecutor(3) as reading:
        return max(reading.map(read, ("good", "two", "three")))


def measure_grammars(bundle, seconds, threads, num):
    """The figures that have bounds, by name, with `num` grammars."""
    with server(bundle, threads) as (process, url, _), ThreadPoolExecutor(2) as clients:
        end = time.perf_counter() + seconds
        alone = longest_wait(url, lambda: time.perf_counter() > end)
        before, grammars = resident_mb(process), list(hostile_grammars(1, num))
        asking = [clients.submit(ask_for, url, f"sender{n}", grammars[n::2]) for n in range(2)]
        among = longest_wait(url, lambda: all(client.done() for client in asking))
        after, most = resident_mb(process), resident_mb(process, "VmHWM")
        print(f"  {num} grammars were told {dict(asking[0].result() + asking[1].result())}")
        print(f"  longest waits: {alone:.0f} ms alone, {among:.0f} ms among them")
        print(f"  {before:.0f} MB before, {after:.0f} MB after, {most:.0f} MB at most")
        slow = {"allOf": [{"type": "string", "pattern": f"a{{{n}}}"} for n in range(1, 40)]}
        clients.submit(ask_for, url, "sender0", [{"json_schema": slow}])
        time.sleep(0.5)
        begun = time.perf_counter()
        process.terminate()
        process.wait()
        ended = time.perf_counter() - begun
    return dict(zip(list(BOUNDS)[4:], (among - alone, after - before, ended), strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="*")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1, help="of the model")
    parser.add_argument("--grammars", type=int, default=500)
    parser.add_argument("--only-grammars", action="store_true")
    options = parser.parse_args()
    is_good = True
    for bundle in options.bundles:
        print(f"{bundle}, {options.seconds:g} s")
        asked = bundle, options.seconds, options.threads
        found = {} if options.only_grammars else measure(*asked)
        found |= measure_grammars(*asked, options.grammars)
        for name, figure in found.items():
            is_kept = figure <= BOUNDS[name]
            is_good = is_good and is_kept
            said = "ok" if is_kept else "BEYOND"
            print(f"{name}: {figure:.1f}, at most {BOUNDS[name]:g}: {said}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
