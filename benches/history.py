"""A history of recorded requests: its size, its times, and what it adds to a step.

    python benches/history.py DATA.jsonl .. --tokenizer DIR --template qwen2.5

Of the records, in the order given, every tenth is said by the target; the others are the history,
as many as `--tokens` holds. The same requests are drafted without a history, with it in memory, and
with its index on disk. Prints one JSON object.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from coordgen_rs import Drafter, History
from coordgen_rs._core import SharedHistory
from coordgen_rs.lab.replay.records import TEMPLATES, open_tokenizer, read_records, tokenize
from coordgen_rs.lab.replay.run import RecordedSession
from support.script import add_counts, parser_of, run_script


def texts_of(records, num_tokens):
    """The first requests, up to `num_tokens` tokens of them."""
    texts, total = [], 0
    for record in records:
        text = np.concatenate([record.prompt, record.answer]).astype(np.uint32)
        total += len(text)
        if total > num_tokens:
            break
        texts.append(text)
    return texts


def percentiles(values):
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}


def said(live, vocab_size, budget, shared):
    """Tokens a step, and microseconds a step, over the answers of `live`."""
    longest = max(len(record.prompt) + len(record.answer) for record in live)
    inputs = RecordedSession([budget + 1], vocab_size, longest).step_inputs
    drafter = Drafter(inputs, vocab_size, history=shared, commit="compact")
    tokens, proposing, accepting, beginning = 0, [], [], []
    for record in live:
        start = time.perf_counter()
        drafter.begin(record.prompt, len(record.answer))
        beginning.append(1e6 * (time.perf_counter() - start) / len(record.prompt))
        given_out = 0
        while given_out < len(record.answer):
            rest = record.answer[given_out:]
            start = time.perf_counter()
            drafter.propose(len(record.prompt) - 1 + given_out)
            proposed = time.perf_counter()
            accepted = drafter.accept_recorded(rest)
            end = time.perf_counter()
            proposing.append(1e6 * (proposed - start))
            accepting.append(1e6 * (end - proposed))
            given_out += len(accepted.token_ids)
        tokens += given_out
    return {
        "tokens_per_step": round(tokens / len(proposing), 4),
        "propose_us": percentiles(proposing),
        "accept_us": percentiles(accepting),
        "step_us": percentiles(np.add(proposing, accepting)),
        "begin_us_per_prompt_token": round(float(np.median(beginning)), 3),
        "per_source": drafter.per_source,
    }


def measure(texts, live, vocab_size, budget, directory):
    """Every figure, as one object."""
    num_tokens = sum(map(len, texts))
    in_memory, on_disk = SharedHistory(vocab_size), SharedHistory(vocab_size)
    parts = []
    for text in texts:
        in_memory.remember(text)
        parts += [text, [SharedHistory.TERMINATOR]]
    documents = np.concatenate(parts).astype(np.uint32)
    path, key = directory / "bench.index", bytes(32)
    start = time.process_time()
    SharedHistory.write_index(path, documents, vocab_size, 1, key)
    build_s = time.process_time() - start
    opening = []
    for _ in range(20):
        start = time.perf_counter()
        on_disk.open_index(path, key)
        opening.append(1e3 * (time.perf_counter() - start))
    start = time.perf_counter()
    assert on_disk.check_index()
    checking = 1e3 * (time.perf_counter() - start)
    history = History(directory, fingerprint="bench", vocab_size=vocab_size)
    start = time.perf_counter()
    for text in texts:
        history.add(text, [])
    adding = 1e6 * (time.perf_counter() - start) / len(texts)
    history.close()
    return {
        "history_tokens": num_tokens,
        "requests": len(texts),
        "index_bytes_per_token": round(path.stat().st_size / num_tokens, 2),
        "index_build_cpu_us_per_token": round(1e6 * build_s / num_tokens, 3),
        "index_open_ms": round(float(np.median(opening)), 3),
        "index_check_ms": round(checking, 2),
        "add_us_per_request": round(adding, 1),
        "none": said(live, vocab_size, budget, None),
        "in_memory": said(live, vocab_size, budget, in_memory),
        "on_disk": said(live, vocab_size, budget, on_disk),
    }


def main():
    parser = parser_of(__doc__)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--template", choices=TEMPLATES, default="none")
    add_counts(parser, budget=(16, "draft tokens"), tokens=(1_000_000, "of the history"))
    options = parser.parse_args()
    template = TEMPLATES[options.template]
    tokenizer = open_tokenizer(options.tokenizer, template)
    records = [record for path in options.data for record in read_records(path)]
    records = [tokenize(record, template, tokenizer) for record in records]
    live = records[::10]
    del records[::10]
    texts = texts_of(records, options.tokens)
    vocab_size = 1 + max(int(text.max()) for text in [*texts, *texts_of(live, sys.maxsize)])
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(texts, live, vocab_size, options.budget, Path(directory))
    print(json.dumps(figures))


if __name__ == "__main__":
    run_script(main)
