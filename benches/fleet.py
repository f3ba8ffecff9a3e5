"""A fleet's history by its size: building, opening, and what it adds to a step.

    python benches/fleet.py BUNDLE DATA.jsonl .. --tokens 1000000,10000000,100000000

Of the records, every tenth is said by the target; passages of the others, put together at random
with one token in fifty replaced, are the fleet's requests, as token ids in JSON lines. Prints a
table, or with `--json` an object for each size. `--cpu-time` times steps by the core's clock, where
other programs run: waiting for the disk is left out then. With `--text N` it builds from text of N
tokens in 8 namespaces instead, once for each of `--ray local:1,local:2` and once without Ray, and
compares times and bytes: of the start of Ray and its workers, and of the build on them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

from coordgen_rs import History
from coordgen_rs.lab.fleet.build import build
from coordgen_rs.lab.fleet.tasks import RayTasks, Sequential
from coordgen_rs.lab.replay.records import TEMPLATES, read_records, tokenize
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.text.tokenizer import Tokenizer
from history import said
from support.script import add_counts, add_json, parser_of, run_script
from support.tables import show_rows

TOKENS_A_FILE = 5_000_000
MEAN_LENGTH = 500
PASSAGE = (8, 200)
REPLACED = 0.02
NAMESPACES = 8
COLUMNS = {
    "tokens": "{tokens:,}",
    "requests": "{requests:,}",
    "build, seconds of a core": "{build_cpu_s:.1f}",
    "peak memory of the build, MB": lambda row: _megabytes(row["peak_bytes"], 0),
    "index, MB": lambda row: _megabytes(row["index_bytes"], 1),
    "tokens per step": "{again[tokens_per_step]:.2f}",
    "step, p50, us": "{again[step_us][p50]:.0f}",
}


def _megabytes(num_bytes, digits):
    return "-" if num_bytes is None else f"{num_bytes / 1e6:,.{digits}f}"


def requests(texts, num_tokens, seed):
    """Requests made of passages of `texts`, of `num_tokens` tokens together."""
    rng, joined, made = np.random.default_rng(seed), np.concatenate(texts), 0
    while made < num_tokens:
        length, parts, got = int(rng.gamma(4, MEAN_LENGTH / 4)) + 16, [], 0
        while got < length:
            size = min(int(rng.integers(*PASSAGE)), len(joined) - 1)
            at = int(rng.integers(len(joined) - size))
            parts.append(joined[at : at + size])
            got += size
        request = np.concatenate(parts)[:length]
        replaced = rng.random(length) < REPLACED
        request[replaced] = rng.choice(joined, int(replaced.sum()))
        made += length
        yield request


def write_files(folder, texts, num_tokens, text_of=None):
    """The requests as JSON lines, at most `TOKENS_A_FILE` a file.

    Token ids are in one namespace; text, in as many files as namespaces, is in `NAMESPACES`.
    """
    folder.mkdir()
    per_file = min(TOKENS_A_FILE, -(-num_tokens // NAMESPACES)) if text_of else TOKENS_A_FILE
    for number in range(-(-num_tokens // per_file)):
        left = min(per_file, num_tokens - number * per_file)
        with (folder / f"{number}.jsonl").open("w") as stream:
            for at, request in enumerate(requests(texts, left, number)):
                record = {"finished_at": number * 1_000_000 + at}
                if text_of is None:
                    record["token_ids"] = request.tolist()
                else:
                    record["answer"] = text_of(request.tolist())
                    record["namespace"] = f"user {at % NAMESPACES}"
                stream.write(f"{json.dumps(record)}\n")


def built(out, source, bundle, *options):
    """What `coordgen history build` says, its seconds of the clock and of cores, and peak bytes."""
    command = [sys.executable, "-m", "coordgen_rs", "history", "build", str(out), "--json"]
    command += ["--from", f"{source}/*.jsonl", "--tokenizer", str(bundle)]
    start = time.perf_counter()
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE)
    said_by_it = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"coordgen history build failed: {process.returncode}")
    seconds = time.perf_counter() - start
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return json.loads(said_by_it), seconds, cpu_seconds, usage.ru_maxrss * 1024


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def steps(live, vocab_size, budget, shared, clock):
    """Tokens a step, and microseconds of a step; `per_source` is of the last answer alone."""
    with patch.object(time, "perf_counter", clock):
        figures = said(live, vocab_size, budget, shared)
    return {name: figures[name] for name in ("tokens_per_step", "step_us")}


def measure(num_tokens, texts, live, bundle, folder, budget, clock):
    """Every figure of one size, as one object."""
    write_files(folder / "logs", texts, num_tokens)
    limit = ("--max-tokens", str(2**31 - 1))
    told, seconds, cpu_seconds, peak = built(folder / "fleet", folder / "logs", bundle.path, *limit)
    index_bytes = sum(path.stat().st_size for path in (folder / "fleet").glob("*.index"))
    vocab_size = bundle.manifest.model.vocab_size
    without = steps(live, vocab_size, budget, None, clock)
    before, start = resident_bytes(), time.perf_counter()
    with History.of(None, bundle, fleet=folder / "fleet", keep=False) as history:
        opening = time.perf_counter() - start
        first = steps(live, vocab_size, budget, history.shared, clock)
        again = steps(live, vocab_size, budget, history.shared, clock)
        grown = resident_bytes() - before
    return {
        "tokens": told["tokens"],
        "requests": told["requests"],
        "build_s": round(seconds, 1),
        "build_cpu_s": round(cpu_seconds, 1),
        "peak_bytes": peak,
        "index_bytes": index_bytes,
        "open_ms": round(1e3 * opening, 2),
        "without": without,
        "first_pass": first,
        "again": again,
        "device_bytes": grown,
    }


def compare_workers(num_tokens, texts, tokenizer, bundle, folder, addresses):
    """Seconds of a build from text by where it runs, those of Ray's start apart, and bytes."""
    write_files(folder / "logs", texts, num_tokens, tokenizer.decode)
    sources = sorted((folder / "logs").iterdir())
    rows, contents = {}, []
    for number, address in enumerate([None, *addresses]):
        start = time.perf_counter()
        tasks = Sequential() if address is None else RayTasks(address)
        try:
            for _ in tasks.run(warmed, [bundle.path] * 4 * (os.cpu_count() or 1)):
                pass
            started, at = time.perf_counter(), {}
            out = folder / f"fleet{number}"
            build(out, sources, bundle, tasks=tasks, on_progress=partial(note, at))
            ended = time.perf_counter()
        finally:
            if address is not None:
                tasks.close()
        rows[address or "here"] = {
            "start_s": round(started - start, 1),
            "build_s": round(ended - started, 1),
            "reading_s": round(at["reading"][1] - at["reading"][0], 1),
            "sorting_s": round(at["sorting"][1] - at["sorting"][0], 1),
        }
        contents.append({path.name: path.read_bytes() for path in out.iterdir()})
        print(json.dumps({address or "here": rows[address or "here"]}), flush=True)
    same = all(content == contents[0] for content in contents)
    first = rows[addresses[0]]["build_s"]
    times = {address: round(first / rows[address]["build_s"], 2) for address in addresses}
    return {f"{addresses[0]} / another": times, "same": same}


def warmed(path):
    """On a worker, what its first call takes beside its work: imports and the tokenizer."""
    Tokenizer.of(open_bundle(path))
    time.sleep(0.2)  # so that each worker gets a call


def note(at, what, done, total):
    """When a part of a build began and ended."""
    now = time.perf_counter()
    at[what] = (at.get(what, (now,))[0], now)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--tokens", default="1000000,10000000")
    add_counts(parser, budget=(16, "draft tokens"))
    parser.add_argument("--text", type=int, default=0)
    parser.add_argument("--ray", default="local:1,local:2")
    parser.add_argument("--cpu-time", action="store_true")
    add_json(parser)
    options = parser.parse_args()
    clock = time.thread_time if options.cpu_time else time.perf_counter
    bundle = open_bundle(options.bundle)
    tokenizer = Tokenizer.of(bundle)
    records = [
        tokenize(record, TEMPLATES["none"], tokenizer)
        for path in options.data
        for record in read_records(path)
    ]
    live = [record for record in records[::10] if len(record.answer)]
    texts = [
        np.concatenate([record.prompt, record.answer])
        for number, record in enumerate(records)
        if number % 10
    ]
    sizes = [int(size) for size in options.tokens.split(",")]
    if options.text:
        with tempfile.TemporaryDirectory() as folder:
            addresses = options.ray.split(",")
            compared = compare_workers(
                options.text, texts, tokenizer, bundle, Path(folder), addresses
            )
            print(json.dumps(compared), flush=True)
        return
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(size, texts, live, bundle, Path(folder), options.budget, clock))
        if options.json:
            print(json.dumps(rows[-1]), flush=True)
    if not options.json:
        # The first line is drafting without a fleet.
        absent = dict.fromkeys(("build_cpu_s", "peak_bytes", "index_bytes"))
        empty = {"tokens": 0, "requests": 0, "again": rows[0]["without"]} | absent
        show_rows("a fleet's history by its size", [empty, *rows], COLUMNS)


if __name__ == "__main__":
    run_script(main)
