"""Prints how fast decoding is with other lists of widths, on recorded answers at measured costs.

    python benches/width_lists.py build/smollm2-int4 --data prompts.jsonl

A bundle answers the prompts, and the answers are replayed with each list, a step costing what the
test at the first opening measured; what lies between two measured widths is read off a line between
them. So the lists differ by their choices alone, on a busy machine, too.
"""

from pathlib import Path

import numpy as np

from coordgen_rs._core import draft_method
from coordgen_rs.generation.loop import generate
from coordgen_rs.lab.bench.prompts import encode_prompts, read_prompts
from coordgen_rs.loading.session import open_session
from coordgen_rs.runtime.session import StepCost
from support.oracles import Recorded, Replay
from support.script import add_counts, add_json, parser_of, run_script, tell
from support.tables import show_rows

LEFT_OUT = (3, 5, 7)


def lists_of(widths):
    """The lists that are compared, by name; the bundle's own comes first."""
    widest = widths[-1]
    return {
        "the bundle's": list(widths),
        f"all but {', '.join(map(str, LEFT_OUT))}": [w for w in widths if w not in LEFT_OUT],
        f"every width to {widest}": list(range(1, widest + 1)),
        "powers of two": [1 << n for n in range(widest.bit_length()) if 1 << n <= widest],
    }


def cost_at(width, costs):
    """The cost of a step of some width, of `costs` by width."""
    base, per_token = (
        float(np.interp(width, list(costs), [getattr(cost, name) for cost in costs.values()]))
        for name in ("base", "per_token")
    )
    return StepCost(base, per_token)


def compare(costs, records, vocab_size, capacity):
    """One row for each list: its widths, and its speed over the first list's and plain's."""
    sources = draft_method("auto").sources(recorded=True, earlier_requests=True)
    spent = {}
    for name, widths in {"plain": [1], **lists_of(list(costs))}.items():
        priced = {width: cost_at(width, costs) for width in widths}
        replay = Replay(priced, vocab_size, capacity, sources)
        spent[name] = sum(replay.chosen(of_task) for of_task in records.values())
    own = spent["the bundle's"]
    return [
        {"list": name, "over_plain": spent["plain"] / cost, "over_own": own / cost}
        for name, cost in spent.items()
        if name != "plain"
    ]


def recorded(session, data, limit, max_new_tokens):
    """What a session answers to the prompts of a file, by task."""
    prompts = encode_prompts(session, read_prompts(data, limit=limit), max_new_tokens)

    def answered(prompt):
        steps = generate(session, prompt, max_new_tokens=max_new_tokens)
        answer = [token for step in steps for token in step.token_ids]
        return Recorded(prompt, np.array(answer, np.uint32))

    return {task: [answered(prompt) for prompt in of_task] for task, of_task in prompts.items()}


COLUMNS = {
    "widths": "{list}",
    "over plain": "x{over_plain:.3f}",
    "over the bundle's": "x{over_own:.3f}",
}


def main():
    """Print the table, or the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--data", type=Path, required=True, help="prompts, one object a line")
    add_counts(
        parser,
        limit=(12, "prompts a task"),
        max_new_tokens=(64, "tokens of an answer"),
        threads=(1, "compute threads"),
    )
    add_json(parser)
    options = parser.parse_args()
    session = open_session(options.bundle, threads=options.threads)
    records = recorded(session, options.data, options.limit, options.max_new_tokens)
    costs = dict(zip(session.widths, session.step_costs, strict=True))
    rows = compare(costs, records, session.vocab_size, session.capacity)
    tell(rows, options.json, lambda rows: show_rows("speed by costs", rows, COLUMNS))


if __name__ == "__main__":
    run_script(main)
