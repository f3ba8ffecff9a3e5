"""ArcticInference's suffix decoding, as a rule to be replayed, and beside coordgen's drafter.

    python benches/peers/arctic.py DATA.jsonl --tokenizer DIR --template qwen2.5

Needs the package `arctic-inference`; without it, says so and ends. Installing it builds against
torch and takes gigabytes; of its sources (`pip download --no-deps arctic-inference`) these suffice:
arctic_inference/__init__.py, arctic_inference/suffix_decoding, and in that folder the module that
`cmake -S csrc/suffix_decoding -B build && cmake --build build` makes with nanobind.

Its tree mode is filled: as many draft tokens as the budget holds, however unlikely. Both are told
every answer, token by token as it is given out, and both count what one verification brings; its
times are without the inputs of a step, ours with.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np

from coordgen_rs.tools.replay.records import read_records
from coordgen_rs.tools.replay.run import replay
from coordgen_rs.tools.replay.templates import TEMPLATES, open_tokenizer, tokenize
from rules import replay_rule
from support.script import run_script

PACKAGE = "arctic-inference"
NAME = "ArcticInference suffix cache"
FILLED = {"max_spec_factor": 1e6, "max_spec_offset": 1e6, "min_token_prob": 0.0}
_MATCHED = 64
"""Tokens at the end of the text that it is shown, as many as its tree is deep."""


class Arctic:
    """A `SuffixDecodingCache`.

    Args:
        remembering: Whether earlier answers stay in it.
    """

    def __init__(self, remembering=False):
        """Raises ModuleNotFoundError without the package."""
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(max_cached_requests=-1 if remembering else 0)
        self._request = 0

    def begin(self, prompt):
        """As of `Rule`."""
        self._cache.start_request(self._request, prompt.astype(np.int32))

    def propose(self, text, budget):
        """As of `Rule`."""
        end = text[-_MATCHED:].astype(np.int32)
        draft = self._cache.speculate(self._request, end, budget, use_tree_spec=True, **FILLED)
        return draft.token_ids, draft.parents

    def accept(self, new_tokens):
        """As of `Rule`."""
        self._cache.add_active_response(self._request, new_tokens.astype(np.int32))

    def end(self):
        """As of `Rule`."""
        self._cache.stop_request(self._request)
        self._request += 1


def open_rule():
    """The rule without memory; raises ModuleNotFoundError without the package."""
    return Arctic()


def main():
    """Print a line, or with `--json` an object, for each budget and drafter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR")
    parser.add_argument("--template", choices=TEMPLATES, required=True)
    parser.add_argument("--output-of", metavar="MODEL")
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--history", choices=["none", "earlier-requests"], default="none")
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        open_rule()
    except ModuleNotFoundError:
        print(f"skipped: the package {PACKAGE} is not installed", file=sys.stderr)
        return
    template = TEMPLATES[options.template]
    tokenizer = open_tokenizer(options.tokenizer, template)
    records = [
        tokenize(record, template, tokenizer)
        for record in read_records(options.data, output_of=options.output_of, limit=options.limit)
    ]
    for budget in options.budgets:
        rule = Arctic(options.history == "earlier-requests")
        ours = replay(
            records, budget=budget, history=options.history, vocab_size=tokenizer.vocab_size
        )
        for result in (ours, replay_rule("arctic", records, budget, rule)):
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
    run_script(main)
