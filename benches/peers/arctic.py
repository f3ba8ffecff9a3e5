"""ArcticInference's suffix decoding beside coordgen's drafter, on the same recorded answers.

    python benches/peers/arctic.py DATA.jsonl --tokenizer DIR --template qwen2.5

Needs the package `arctic-inference`; without it, says so and ends. Its tree mode is filled: as many
draft tokens as the budget holds, however unlikely. Both are told every answer, token by token as it
is given out, and both count what one verification brings; its times are without a mask, ours with.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from coordgen_rs.bench.records import read_records
from coordgen_rs.bench.replay import ReplayResult, replay
from coordgen_rs.bench.templates import TEMPLATES, open_tokenizer, tokenize

try:
    from arctic_inference.suffix_decoding import SuffixDecodingCache
except ModuleNotFoundError:
    SuffixDecodingCache = None

FILLED = {"max_spec_factor": 1e6, "max_spec_offset": 1e6, "min_token_prob": 0.0}


def replay_arctic(records, budget, history):
    """The records through a `SuffixDecodingCache`; earlier answers stay in it with "session"."""
    cache = SuffixDecodingCache(max_cached_requests=-1 if history == "session" else 0)
    result = ReplayResult("arctic", budget)
    for number, record in enumerate(records):
        text = np.concatenate([record.prompt, record.answer]).astype(np.int32)
        place = len(record.prompt)
        cache.start_request(number, text[:place])
        while place < len(text):
            start = time.perf_counter()
            draft = cache.speculate(
                number, text[max(place - 64, 0) : place], budget, use_tree_spec=True, **FILLED
            )
            proposed = time.perf_counter()
            new_tokens = accepted_tokens(draft, text[place:])
            verified = time.perf_counter()
            cache.add_active_response(number, text[place : place + new_tokens])
            result.accept_us.append(1e6 * (time.perf_counter() - verified))
            result.propose_us.append(1e6 * (proposed - start))
            result.steps += 1
            place += new_tokens
        cache.stop_request(number)
        result.records += 1
        result.tokens += len(record.answer)
    return result


def accepted_tokens(draft, rest):
    """How many tokens a verification gives out: the longest path that the record takes, and one."""
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(draft.parents, draft.token_ids, strict=True))
    }
    node, depth = -1, 0
    while depth < len(rest) and (node, int(rest[depth])) in children:
        node, depth = children[node, int(rest[depth])], depth + 1
    return min(depth + 1, len(rest))


def main():
    """Print a line, or with `--json` an object, for each budget and drafter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR")
    parser.add_argument("--template", choices=TEMPLATES, required=True)
    parser.add_argument("--output-of", metavar="MODEL")
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--history", choices=["none", "session"], default="none")
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if SuffixDecodingCache is None:
        print("skipped: the package arctic-inference is not installed", file=sys.stderr)
        return
    template = TEMPLATES[options.template]
    tokenizer = open_tokenizer(options.tokenizer, template)
    records = [
        tokenize(record, template, tokenizer)
        for record in read_records(options.data, output_of=options.output_of, limit=options.limit)
    ]
    for budget in options.budgets:
        ours = replay(
            records, budget=budget, history=options.history, vocab_size=tokenizer.vocab_size
        )
        for result in (ours, replay_arctic(records, budget, options.history)):
            show(result.to_json(), options.json)


def show(figures, as_json):
    """Print the figures of one drafter at one budget."""
    if as_json:
        print(json.dumps(figures), flush=True)
        return
    propose, accept = figures["propose_us"], figures["accept_us"]
    print(
        f"{figures['drafter']:9} budget {figures['budget']:3}  {figures['tokens_per_step']:.4f} "
        f"tokens a step  propose {propose['p50']}/{propose['p99']} us  "
        f"accept {accept['p50']}/{accept['p99']} us",
        flush=True,
    )


if __name__ == "__main__":
    main()
