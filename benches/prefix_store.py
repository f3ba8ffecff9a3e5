"""What a store of prefixes costs requests, and what it saves them after a restart.

In: a bundle. Out: figures on stdout; exit code 1 if an answer differs, or a bound does not hold:
at most 5 % of a dialogue's prompt is computed after its process was killed, reading it back takes
at most a tenth of computing it, and storing costs a request at most 2 % of its time. Requests with
and without a store take turns in one process; what they took is compared by medians of each pair.

    python benches/prefix_store.py build/smollm2 --tokens 3000 --rounds 8
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from signal import SIGKILL
from statistics import median
from subprocess import PIPE, Popen
from typing import NamedTuple

from coordgen_rs import Model
from coordgen_rs.store.prefixes.directory import stored_files
from support.script import add_counts, parser_of, run_script

PROMPTS = sorted((Path(__file__).parents[1] / "models" / "prompts").glob("*.txt"))
MOST_COMPUTED, MOST_READING, MOST_STORING = 0.05, 0.1, 0.02
_SERVED = "--killed"


class Restart(NamedTuple):
    """How a dialogue went on after its process was killed.

    Attributes:
        num_prompt: Tokens of its prompt.
        num_computed: Those that were computed.
        read_s: Seconds until they were there and the others computed.
        computed_s: Seconds of computing all of them.
        is_same: Whether the answer is that of a model that has computed all.
    """

    num_prompt: int
    num_computed: int
    read_s: float
    computed_s: float
    is_same: bool


def prompt_of(model, num_tokens, number):
    """Tokens of a prompt that begins as no other does."""
    texts = " ".join(path.read_text() for path in PROMPTS)
    text = f"{number} is the number of this dialogue. "
    while len(ids := model.tokenizer.encode(text)) < num_tokens:
        text += texts
    return ids[:num_tokens]


def answer(model, prompt, num_new):
    """An answer, and what it took."""
    stream = model.stream_tokens(prompt, max_new_tokens=num_new, ignore_eos=True)
    begin = time.perf_counter()
    for _ in stream:
        pass
    return stream.answer, time.perf_counter() - begin


def answer_and_wait(asked, folder):
    """Answer in a process that is to be killed: tell the answer's tokens, and wait for that."""
    with Model.open(asked.bundle, prefix_store=folder, threads=asked.threads) as model:
        prompt = prompt_of(model, asked.tokens, 0)
        told, _ = answer(model, prompt, asked.new)
        model.prefix_store.flush()
        print(*told.token_ids, flush=True)
        sys.stdin.read()


def restarted(asked, folder):
    """Kill a process that has answered, and go on with its dialogue."""
    command = [sys.executable, __file__, *sys.argv[1:], _SERVED, folder]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        said = [int(token) for token in process.stdout.readline().split()]
        process.send_signal(SIGKILL)
    computing = Model.open(asked.bundle, threads=asked.threads)
    with computing, Model.open(asked.bundle, prefix_store=folder, threads=asked.threads) as model:
        prompt = [*prompt_of(model, asked.tokens, 0), *said, *said[:8]]
        read, _ = answer(model, prompt, asked.new)
        computed, _ = answer(computing, prompt, asked.new)
    stats = read.stats
    num_computed = stats.prompt_tokens - stats.reused_tokens
    is_same = read.token_ids == computed.token_ids
    return Restart(
        stats.prompt_tokens, num_computed, stats.prefill_s, computed.stats.prefill_s, is_same
    )


def storing_cost(asked, folder):
    """By how much of its time a request is slower with a store: medians of all, and of pairs."""
    numbers, pairs, is_same = count(1), [], True
    plain = Model.open(asked.bundle, threads=asked.threads)
    with plain, Model.open(asked.bundle, prefix_store=folder, threads=asked.threads) as storing:
        for number in range(asked.rounds + 1):
            prompt, took = prompt_of(plain, asked.tokens, next(numbers)), {}
            order = (plain, storing) if number % 2 else (storing, plain)
            told = []
            for model in order:
                one, took[model] = answer(model, prompt, asked.new)
                told.append(one.token_ids)
            is_same = is_same and told[0] == told[1]
            storing.prefix_store.flush()
            if number:  # the first warms up
                pairs.append((took[plain], took[storing]))
            for file in stored_files(folder):  # so that the disk is never short of memory
                file.path.unlink()
        counts = storing.prefix_store.counts
    share = median(with_store / without for without, with_store in pairs) - 1
    own = counts.save_seconds / (asked.rounds + 1) / median(it for it, _ in pairs)
    return share, own, median(it for it, _ in pairs), counts, is_same


def main(arguments=None):
    """Measure, print, and say whether all bounds hold."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle")
    add_counts(
        parser,
        tokens=(3000, "of a prompt"),
        new=(32, "tokens of an answer"),
        rounds=(8, ""),
        threads=(None, ""),
    )
    parser.add_argument(_SERVED, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.killed is not None:
        return answer_and_wait(asked, asked.killed)
    folder = Path(tempfile.mkdtemp(prefix="prefix-store-"))
    try:
        restart = restarted(asked, folder / "killed")
        share, own, request_s, counts, is_same = storing_cost(asked, folder / "cost")
    finally:
        shutil.rmtree(folder)
    computed, reading = (
        restart.num_computed / restart.num_prompt,
        restart.read_s / restart.computed_s,
    )
    print(f"after kill -9: {restart.num_computed:,} of {restart.num_prompt:,} tokens computed")
    print(f"prompt: {restart.read_s:.3f} s from disk, {restart.computed_s:.3f} s computed")
    print(
        f"storing: {100 * share:+.2f} % of a request of {request_s:.2f} s, in its own thread "
        f"{100 * own:.2f} %, {counts.stored_bytes / counts.stored_tokens / 1e3:.1f} kB a token"
    )
    failed = [
        what
        for what, holds in (
            ("another answer", restart.is_same and is_same),
            ("too much computed", computed <= MOST_COMPUTED),
            ("reading too slow", reading <= MOST_READING),
            ("storing too slow", share <= MOST_STORING),
        )
        if not holds
    ]
    print(*failed or ["all bounds hold"], sep=os.linesep)
    return 1 if failed else 0


if __name__ == "__main__":
    run_script(main)
