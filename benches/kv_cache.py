"""Prints what steps cost behind short and long texts, by how keys and values are held.

    python benches/kv_cache.py build/smollm2-q4_0 --behind 600 4000 7500

Each number of threads has a process of its own, as ONNX Runtime creates its threads once. All
forms of a bundle are measured in turns. Ratios are of medians and of the shortest times, that of
float32 being 1; they should agree on a machine that does nothing else. The text behind which steps
stand is some tokens over and over, with keys and values that were written: its length is what
counts.
"""

from functools import partial
from pathlib import Path

import numpy as np

from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.store.prefixes.prefix import SavedPrefix
from support.script import add_counts, add_json, own_processes, parser_of, run_script, tell
from support.tables import show_rows
from widths import COLUMNS, opened, reading, rows_of, step, times_in_turns

READ = 64
"""Tokens that are read, and then stand over and over."""


def measure_forms(bundle, threads, behind, widths, prompt_tokens, seconds):
    """Run steps behind texts and a prompt, each in all forms in turns.

    Returns for each form the seconds of all its runs by what ran: `4 rows behind 4,000`.
    """
    sessions = [opened(bundle, threads, form) for form in KV_FORMS]
    times = [{} for _ in sessions]

    def measure(runs):
        found = times_in_turns(runs, threads, seconds / (len(behind) + 1))
        for of_form, of_runs in zip(times, found, strict=True):
            of_form |= of_runs

    for length in behind:
        for session in sessions:
            stand_behind(session, length)
        names = {width: f"{width} rows behind {length:,}" for width in widths}
        measure([{name: step(it, width) for width, name in names.items()} for it in sessions])
    name = f"prompt of {prompt_tokens:,}"
    measure([{name: reading(session, prompt_tokens)} for session in sessions])
    return times


def stand_behind(session, num_tokens):
    """Have so many tokens committed."""
    session.rewind(0)
    tokens = np.random.default_rng(1).integers(session.vocab_size, size=READ).astype(np.uint32)
    session.prefill(tokens)
    times = -(-num_tokens // READ)
    over = [
        tuple(np.tile(array, (1, 1, times, 1)) for array in pair)
        for pair in session.saved_prefix().layers
    ]
    session.restore_prefix(SavedPrefix(np.tile(tokens, times), over), num_tokens)


def main():
    """Print the table, or the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    add_counts(
        parser,
        behind=([600, 4000, 7500], "tokens that steps stand behind"),
        widths=([1, 16], "rows of the steps"),
        threads=([1, 2], "compute threads"),
        prompt=(2048, "tokens of the prompt"),
    )
    parser.add_argument(
        "--seconds", type=float, default=120, help="of each process, default %(default)s"
    )
    add_json(parser)
    options = parser.parse_args()
    rows = []
    with own_processes() as processes:
        for threads in options.threads:
            asked = options.bundle, threads, options.behind, options.widths, options.prompt
            times = processes.submit(measure_forms, *asked, options.seconds).result()
            rows += rows_of(times, KV_FORMS, threads)
    columns = {"form" if head == "bundle" else head: it for head, it in COLUMNS.items()}
    show = partial(show_rows, "times, f32 = 1", columns=columns, num_words=3)
    tell(rows, options.json, show)


if __name__ == "__main__":
    run_script(main)
