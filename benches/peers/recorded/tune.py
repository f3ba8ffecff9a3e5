"""What settings of other engines bring most on the half for tuning.

    cd benches/peers; python -m recorded.tune --data DIR

In: a folder of records, as for `table.py`. Out: a table with the mean tokens a step over the sets,
by the tokens that are matched; `methods.py` has the best of each row.
"""

import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from coordgen_rs.lab.replay.records import tokenized
from coordgen_rs.lab.tables import show_table
from recorded import sets
from recorded.llama_cpp import LlamaCpp
from recorded.rule import replay_rule
from recorded.vllm_ngram import VllmNgram
from support.script import parser_of, run_script

BUDGET = 16
MATCHED = (1, 2, 3, 4, 6, 8)


def main():
    """Print the table."""
    parser = parser_of(__doc__)
    sets.add_options(parser)
    parser.set_defaults(half="0")
    records = [tokenized(of)[0] for of in sets.chosen_sources(parser.parse_args()).values()]

    def reached(rule):
        rates = [replay_rule("", of, BUDGET, rule).tokens_per_step for of in records]
        return f"{statistics.fmean(rates):.3f}"

    rows = [
        [f"llama.cpp {name}", *(reached(LlamaCpp(name, least, BUDGET)) for least in MATCHED)]
        for name in ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
    ]
    rows.append(["vLLM n-gram, 8 to", *(reached(VllmNgram(least, 8)) for least in MATCHED)])
    show_table(f"tokens per step with {BUDGET} draft tokens", ["matched", *map(str, MATCHED)], rows)


if __name__ == "__main__":
    run_script(main)
