"""A target that is a rule on the last tokens, and drafters for it.

Plain decoding and every row of a draft tree can be answered without a model.
"""

import numpy as np
from hypothesis import strategies as st

from coordgen_rs._core import Drafter
from core_subjects import step_inputs

VOCAB_SIZE = 4
ATTENDED = 96
WIDTHS = (1, 4, 8)

prompts = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20)
commits = st.sampled_from(["canonical", "compact"])


def make_drafter(widths=WIDTHS, attended=ATTENDED, **options):
    return Drafter([step_inputs(rows, attended) for rows in widths], VOCAB_SIZE, **options)


def target(text, seed):
    """The next token: mostly what stood six tokens ago, so that lookups find something."""
    if len(text) > 6 and (sum(text[-3:]) + seed) % 5:
        return text[-6]
    return (3 * text[-1] + len(text) + seed) % VOCAB_SIZE


def plain(prompt, seed, max_new_tokens, end_token_ids=()):
    text = list(prompt)
    while len(text) < len(prompt) + max_new_tokens:
        text.append(target(text, seed))
        if text[-1] in end_token_ids:
            break
    return text[len(prompt) :]


def paths_of(token_ids, parents):
    """Tokens from below the root to each node."""
    paths = [[]]
    for node in range(1, len(token_ids)):
        paths.append([*paths[parents[node]], int(token_ids[node])])
    return paths


def run_target(text, draft, rows, seed):
    """Logits of the rows; padding rows hold NaN, which nothing may read."""
    logits = np.full((rows, VOCAB_SIZE), np.nan, np.float32)
    for node, path in enumerate(paths_of(*draft)):
        logits[node] = 0
        logits[node, target([*text, *path], seed)] = 1
    return logits


def uint32(values):
    return np.array(values, np.uint32)
