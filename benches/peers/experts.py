"""What a mixture of experts larger than memory costs, beside what its disk allows.

    python benches/peers/experts.py qwen3-30b-a3b --budgets 8G 12G
    python benches/peers/experts.py qwen3-30b-a3b --layers 8 --budgets 1500M --skew 0

A GGUF file of random weights is written, opened and removed: 17 GB, and as much again for what it
is converted to, so that 40 GB of disk must be free. With fewer `--layers` it is less. With less
free the script ends with exit code 3 before it writes anything.

Within each budget an answer is decoded without drafts and with them, and for comparison without a
budget. What the budget has dropped is read from the disk again, as on a machine with no memory
beyond it (the system keeps no copies). Beside tokens/s stand the experts that were not in memory,
bytes read, and how many of them were read ahead and dropped unused; what the others, which were
needed, allow at the disk's speed, which is measured first by the same reads; and the most resident
memory of the experts' files against their part of the budget.

A random router has no favourites, but real ones do: `--skew` makes some rows of it longer than
others (`shape_families.py`); 0 is the worst case. Both are to be told. Needs
`pip install --group peers`.
"""

import mmap
import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np

from coordgen_rs import Sampling
from coordgen_rs.cli.terminal.text import parse_bytes
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import machine_facts
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.ort_session import OrtSession
from shape_families import SKEW
from shape_file import TYPES, matrices, write_shape
from support.script import (
    add_counts,
    add_json,
    add_work,
    own_processes,
    parser_of,
    reports_errors,
    run_script,
    tell,
)
from support.shapes import of_families
from support.tables import show_rows

SHAPES = of_families("qwen3moe")
NO_ROOM = 3
"""The exit code where the disk has too little room."""
_READ_BYTES, _READERS, _MOST_READS = 1 << 20, 4, 2048
_SMAPS_SIZES = re.compile(r"^(Rss|Size): +(\d+) kB")


@reports_errors
def main(arguments=None):
    """Measure and print; 2 where something fails, 3 where the disk has too little room."""
    options = _parser().parse_args(arguments)
    shape = SHAPES[options.shape] | {"skew": options.skew}
    shape |= {"layers": options.layers or shape["layers"]}
    size = sum(matrix.num_bytes for matrix in matrices(shape, options.type))
    options.work.mkdir(parents=True, exist_ok=True)
    needed, free = int(2.3 * size) + (1 << 30), shutil.disk_usage(options.work).free
    print(f"{needed / 1e9:.0f} GB of disk are needed, {free / 1e9:.0f} GB are free", flush=True)
    if free < needed:
        print("experts.py: SKIPPED: the disk has too little room", file=sys.stderr)
        return NO_ROOM
    with TemporaryDirectory(dir=options.work) as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder).absolute() / "cache")
        gguf = Path(folder) / f"{options.shape}.gguf"
        write_shape(gguf, shape, options.type)
        with own_processes() as processes:
            bundle = processes.submit(converted, gguf).result()
            disk = processes.submit(disk_speed, bundle).result()
            rows = [
                processes.submit(decode, bundle, budget, drafts, options).result()
                for budget in [*options.budgets, None]
                for drafts in (False, True)
            ]
    document = {"machine": machine_facts(), "shape": shape, "type": options.type}
    document |= {"file_bytes": size, "disk_bytes_s": disk, "runs": rows}
    tell(document, options.json, show)
    return 0


def converted(gguf):
    """The folder of the bundle that a file is converted to."""
    return open_bundle(gguf, context=512).path


def expert_files(bundle):
    """The files with experts of a bundle's folder."""
    return sorted(Path(bundle).glob("*.experts"))


def disk_speed(bundle):
    """Bytes a second of random reads of a megabyte, several at a time, none of them cached."""
    files = [os.open(path, os.O_RDONLY) for path in expert_files(bundle)]
    places = [
        (file, start)
        for file in files
        for start in range(0, os.fstat(file).st_size - _READ_BYTES + 1, _READ_BYTES)
    ]
    np.random.default_rng(0).shuffle(places)
    places = [(int(file), int(start)) for file, start in places[:_MOST_READS]]
    os.sync()
    for file in files:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    buffers = [mmap.mmap(-1, _READ_BYTES) for _ in range(_READERS)]

    def read(number):
        for file, start in places[number::_READERS]:
            os.preadv(file, [buffers[number]], start)

    begin = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as readers:
        list(readers.map(read, range(_READERS)))
    return len(places) * _READ_BYTES / (time.perf_counter() - begin)


def decode(path, budget, drafts, options):
    """Answer a prompt, and tell what it took, as JSON types."""
    bundle = open_bundle(path)
    for file in expert_files(path):
        with file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    device = CpuDevice(bundle)
    device.experts.keep_cached = False
    session = OrtSession(device, threads=options.threads, memory_budget=budget)
    prompt = np.random.default_rng(1).integers(256, 1024, options.prompt)
    prompt = np.concatenate([prompt, prompt]).astype(np.uint32)  # so that there is what to draft
    # The likeliest tokens of a random model are soon the same again and again; drawn ones are not.
    sampling = Sampling(100.0, top_k=1000, seed=1)
    stats, asked = Stats(), {"max_new_tokens": options.tokens, "ignore_eos": True}
    asked |= {"sampling": sampling}
    with WatchedMemory() as most:
        steps = generate if drafts else plain
        begin_decoding = None
        for step in steps(session, prompt, stats=stats, **asked):
            if begin_decoding is None:
                begin_decoding = session.expert_report()
            del step
    report, decoding = stats.experts, None
    if report is not None:
        decoding = session.expert_report().since(begin_decoding).to_json()
    return {
        "budget": budget,
        "experts_budget": device.experts.budget,
        "drafts": drafts,
        "prefill_s": stats.prefill_s,
        "tokens_s": stats.tokens_per_s,
        "tokens_per_step": stats.tokens_per_step,
        "new_tokens": stats.new_tokens,
        "decode_s": stats.decode_s,
        "all": None if report is None else report.to_json(),
        "decoding": decoding,
        "resident_bytes": most["experts"],
        "process_bytes": most["all"],
    }


class WatchedMemory:
    """Looks a few times a second at what is resident; entering gives the most."""

    def __enter__(self):
        self._most, self._is_over = {"experts": 0, "all": 0}, Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()
        return self._most

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _watch(self):
        while not self._is_over.wait(0.2):
            for name, held in resident_bytes().items():
                self._most[name] = max(self._most[name], held)


def resident_bytes():
    """Resident bytes of this process: of its mapped files of experts, and all."""
    held, is_experts = {"experts": 0, "all": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            is_experts = line.endswith(".experts")
        elif (found := _SMAPS_SIZES.match(line)) and found[1] == "Rss":
            held["all"] += 1024 * int(found[2])
            held["experts"] += 1024 * int(found[2]) if is_experts else 0
    return held


COLUMNS = {
    "budget, GB": "{budget_gb}",
    "drafts": lambda row: "yes" if row["drafts"] else "no",
    "prompt, s": "{prefill_s:.1f}",
    "tokens/s": "{tokens_s:.2f}",
    "tokens/step": "{tokens_per_step:.2f}",
    "not in memory": "{missed:.1f} %",
    "read, GB": "{read_gb:.2f}",
    "unused, GB": "{unused_gb:.2f}",
    "disk allows, tokens/s": "{allowed:.2f}",
    "of that": "{of_allowed:.0f} %",
    "waited": "{waited:.0f} %",
    "experts resident, GB": "{resident_gb:.2f}",
    "of their budget": "{of_budget:.1f} %",
    "process, GB": "{process_gb:.2f}",
}


def show(document):
    """Print the tables."""
    shape, disk = document["shape"], document["disk_bytes_s"]
    print(
        f"\n{document['file_bytes'] / 1e9:.1f} GB in {document['type']}, {shape['layers']} layers, "
        f"skew {shape['skew']}; reads of the disk: {disk / 1e9:.2f} GB/s\n"
    )
    rows = [run | _told(run, disk) for run in document["runs"]]
    show_rows("decoding", rows, COLUMNS, num_words=2)


def _told(run, disk):
    """What the table has besides; what only a budget has is None without one."""
    told, budget = run["decoding"], run["budget"]
    found = {
        "budget_gb": "none" if budget is None else f"{budget / 1e9:.1f}",
        "resident_gb": run["resident_bytes"] / 1e9,
        "process_gb": run["process_bytes"] / 1e9,
    }
    if told is None:
        absent = ("missed", "read_gb", "unused_gb", "allowed", "of_allowed", "waited", "of_budget")
        return found | dict.fromkeys(absent)
    allowed = allowed_tokens_s(run, disk)
    return found | {
        "missed": 100 * told["misses"] / max(told["asked"], 1),
        "read_gb": told["read_bytes"] / 1e9,
        "unused_gb": told["wasted_bytes"] / 1e9,
        "allowed": allowed,
        "of_allowed": 100 * run["tokens_s"] / allowed,
        "waited": 100 * told["waited_s"] / run["decode_s"],
        "of_budget": 100 * run["resident_bytes"] / run["experts_budget"],
    }


def allowed_tokens_s(run, disk):
    """Tokens a second that a disk allows by what had to be read of it.

    Reads ahead that were dropped unused are the reader's fault, not the disk's. What is computed
    meanwhile comes on top where it is not hidden.
    """
    told = run["decoding"]
    needed = told["read_bytes"] - told["wasted_bytes"]
    return run["new_tokens"] / max(needed / disk, 1e-3)


def _parser():
    parser = parser_of(__doc__)
    parser.add_argument("shape", choices=SHAPES, metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--type", choices=TYPES, default="Q4_0")
    parser.add_argument("--skew", type=float, default=SKEW)
    parser.add_argument("--budgets", type=parse_bytes, nargs="+", default=[8 * 10**9])
    add_counts(
        parser,
        layers=(None, "fewer than the shape has"),
        prompt=(32, "half of its tokens"),
        tokens=(64, "of the answer"),
        threads=(None, "compute threads"),
    )
    add_work(parser)
    add_json(parser, to_file=True)
    return parser


if __name__ == "__main__":
    run_script(main)
