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
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
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
        keys = Path(folder, "keys")
        names = [
            "good",
            "two",
            "three",
            "retrying",
            *(f"sender{number}" for number in range(SENDERS)),
        ]
        keys.write_text("".join(f"{name} key-{name}\n" for name in names))
        command = [sys.executable, "-m", "coordgen_rs", "serve", bundle, "--port", "0"]
        command += ["--api-key-file", str(keys), "--threads", str(threads)]
        command += ["--grace", str(GRACE_S)]
        log = Path(folder, "log")
        with (
            log.open("w") as stderr,
            subprocess.Popen(command, stderr=stderr, preexec_fn=few_descriptors) as process,
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


def headers(name):
    return {"Authorization": f"Bearer key-{name}", "Content-Type": "application/json"}


class Neighbours:
    """All that bad clients do, until told to stop."""

    def __init__(self, url):
        self.url, self.is_over = url, threading.Event()
        self.told = {}

    def run(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        doing = [threading.Thread(target=self.idle)]
        doing += [threading.Thread(target=self.send, args=(n,)) for n in range(SENDERS)]
        doing += [threading.Thread(target=self.retry) for _ in range(RETRYING)]
        for thread in doing:
            thread.start()
        print("begun", flush=True)
        sys.stdin.read()
        self.is_over.set()
        for thread in doing:
            thread.join()
        print(json.dumps(self.told))

    def send(self, number):
        body = json.dumps({"messages": [{"role": "user", "content": TEXT}]})
        self._ask(f"sender{number}", "/v1/chat/completions", body)

    def retry(self):
        self._ask("retrying", "/v1/completions", json.dumps({"prompt": BEGIN, "max_tokens": 32}))

    def _ask(self, name, path, body):
        connection = connected(self.url)
        while not self.is_over.is_set():
            try:
                connection.request("POST", path, body, headers(name))
                response = connection.getresponse()
                response.read()
                said = f"{name.rstrip('0123456789')} {response.status}"
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                said = f"{name.rstrip('0123456789')} {type(error).__name__}"
            self.told[said] = self.told.get(said, 0) + 1
            self.is_over.wait(0.02)

    def idle(self):
        place, held = urlsplit(self.url), []
        while not self.is_over.is_set():
            held = [one for one in held if is_open(one)]
            with suppress(OSError):
                while len(held) < IDLE_SOCKETS:
                    one = socket.create_connection((place.hostname, place.port), timeout=1)
                    held.append(one)
                    one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
            self.is_over.wait(1)


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
    """Bad neighbours in a process of their own."""
    command = [sys.executable, __file__, "--be-bad", url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        try:
            time.sleep(2)  # until all of them are at it
            yield
        finally:
            process.stdin.close()
            print(f"  the neighbours were told: {process.stdout.read().strip()}")


def streamed(connection, max_tokens=96, name="good"):
    """Milliseconds between the events of one streamed answer; None if there was none."""
    body = {"prompt": BEGIN, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers(name))
        response = connection.getresponse()
        times, is_whole = [], False
        while line := response.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                is_whole = is_whole or b'"finish_reason":"' in line
    except (OSError, http.client.HTTPException):
        connection.close()
        return None
    if response.status != 200 or not is_whole:
        return None
    return [1000 * (later - time) for time, later in pairwise(times)]


def streams(url, seconds, name="good"):
    """Pauses of answers one after the other, and how many there were, and were not."""
    connection, pauses, answered, refused = connected(url), [], 0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or answered + refused < 4:
        found = streamed(connection, name=name)
        if found is None:
            refused += 1
            time.sleep(0.1)
        else:
            answered += 1
            pauses += found
    return pauses, answered, refused


def health_ms(url):
    connection, found = connected(url, timeout=10), []
    for _ in range(60):
        begun = time.perf_counter()
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()
        found.append(1000 * (time.perf_counter() - begun))
    return median(found)


def resident_mb(process, name="VmRSS"):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1000


def told(name, pauses, answered, refused):
    p99 = quantiles(pauses, n=100)[98] if len(pauses) > 1 else float("inf")
    middle, longest = (median(pauses), max(pauses)) if pauses else (p99, p99)
    print(
        f"  {name}: {answered} answered, {refused} not; pauses {middle:.1f} ms at the median, ",
        end="",
    )
    print(f"{p99:.1f} at the 99th percentile, {longest:.1f} at most")
    return p99


def measure(bundle, seconds, threads):
    """The figures that have bounds, by name."""
    with server(bundle, threads) as (process, url, log):
        told("alone", *streams(url, seconds / 2))
        found = {"health, ms at the median": health_ms(url)}
        before = resident_mb(process)
        with neighbours(url):
            pauses, answered, refused = streams(url, seconds)
            print(f"  health among them: {health_ms(url):.1f} ms; {resident_mb(process):.0f} MB")
        found["longest 1 % of pauses, ms"] = told("among them", pauses, answered, refused)
        found["not answered"] = refused
        told("afterwards", *streams(url, seconds / 4))
        after = resident_mb(process)
        print(f"  {before:.0f} MB before, {after:.0f} MB after; {log.stat().st_size} bytes of log")
    return found | {"memory after, % more": 100 * (after / before - 1)}


def ask_for(url, name, bodies, told):
    """Ask for one answer after the other, and leave where it takes long."""
    for held in bodies:
        connection = connected(url, timeout=LEAVES_S)
        body = {"prompt": BEGIN, "max_tokens": 64, "ignore_eos": True} | held
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers(name))
            said = str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            said = type(error).__name__
        connection.close()
        told[said] = told.get(said, 0) + 1


def longest_wait(url, is_over):
    """The longest pause of three clients' streams, in milliseconds, until it is over."""
    pauses = [0.0]

    def read(name):
        connection = connected(url)
        while not is_over():
            pauses.extend(streamed(connection, name=name) or [])

    reading = [threading.Thread(target=read, args=[name]) for name in ("good", "two", "three")]
    for thread in reading:
        thread.start()
    for thread in reading:
        thread.join()
    return max(pauses)


def measure_grammars(bundle, seconds, threads, num):
    """The figures that have bounds, by name, with `num` grammars."""
    with server(bundle, threads) as (process, url, _):
        end = time.perf_counter() + seconds
        alone = longest_wait(url, lambda: time.perf_counter() > end)
        before, told, grammars = resident_mb(process), {}, list(hostile_grammars(1, num))
        asking = [
            threading.Thread(target=ask_for, args=(url, f"sender{n}", grammars[n::2], told))
            for n in range(2)
        ]
        for thread in asking:
            thread.start()
        among = longest_wait(url, lambda: not any(thread.is_alive() for thread in asking))
        after = resident_mb(process)
        most = resident_mb(process, "VmHWM")
        print(f"  {num} grammars were told {told}")
        print(f"  longest waits: {alone:.0f} ms alone, {among:.0f} ms among them")
        print(f"  {before:.0f} MB before, {after:.0f} MB after, {most:.0f} MB at most")
        slow = {"allOf": [{"type": "string", "pattern": f"a{{{n}}}"} for n in range(1, 40)]}
        ask = threading.Thread(target=ask_for, args=(url, "sender0", [{"json_schema": slow}], {}))
        ask.start()
        time.sleep(0.5)
        begun = time.perf_counter()
        process.terminate()
        process.wait()
        ended = time.perf_counter() - begun
    return {
        "longest wait for a token, ms more": among - alone,
        "memory after, MB more": after - before,
        "seconds to end while grammars are compiled": ended,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="*")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1, help="of the model")
    parser.add_argument("--grammars", type=int, default=500)
    parser.add_argument("--only-grammars", action="store_true")
    parser.add_argument("--be-bad", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_bad:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Neighbours(options.be_bad).run()
        return 0
    is_good = True
    for bundle in options.bundles:
        print(f"{bundle}, {options.seconds:g} s")
        asked = bundle, options.seconds, options.threads
        found = {} if options.only_grammars else measure(*asked)
        found |= measure_grammars(*asked, options.grammars)
        for name, figure in found.items():
            is_kept = figure <= BOUNDS[name]
            is_good = is_good and is_kept
            print(
                f"{name}: {figure:.1f}, at most {BOUNDS[name]:g}: {'ok' if is_kept else 'BEYOND'}"
            )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
