"""Drafting rules of peers, replayed on recorded answers: what a verification would have brought.

In: a rule, which drafts from the text so far, and records. Out: a `ReplayResult`, as `coordgen
replay` has it. A record plays the target, so nothing but drafting is measured.
"""

import time

import numpy as np

from coordgen_rs.lab.replay.run import ReplayResult


class Rule:
    """What drafts; one that keeps nothing from step to step only proposes."""

    def begin(self, prompt):
        """A request starts; `(tokens,) u32`."""

    def propose(self, text, budget):
        """A tree after the text `(tokens,) u32`: token ids, and parents, of which -1 is the root.

        Parents stand before their children.
        """
        raise NotImplementedError

    def accept(self, new_tokens):
        """The text goes on by `(tokens,) u32`: what was drafted and is right, and one more.

        At the end of a record the one more may be missing.
        """

    def end(self):
        """The request is over."""

    def memory_bytes(self):
        """Bytes that it holds beside the text, by its own count."""
        return 0


def replay_rule(name, records, budget, rule):
    """The records in turn; `accept_us` are the rule's alone, verification left out.

    `memory_bytes` are the most at the end of a request.
    """
    result = ReplayResult(name, budget)
    for record in records:
        start = time.perf_counter()
        rule.begin(record.prompt)
        result.begin_us.append(1e6 * (time.perf_counter() - start))
        text, place = np.concatenate([record.prompt, record.answer]), len(record.prompt)
        steps = 0
        while place < len(text):
            start = time.perf_counter()
            tokens, parents = rule.propose(text[:place], budget)
            proposed = time.perf_counter()
            end = place + accepted_tokens(tokens, parents, text[place:])
            verified = time.perf_counter()
            rule.accept(text[place:end])
            result.accept_us.append(1e6 * (time.perf_counter() - verified))
            result.propose_us.append(1e6 * (proposed - start))
            result.rows += 1 + len(tokens)
            place, steps = end, steps + 1
        result.end_record(record.task, len(record.answer), steps, rule.memory_bytes())
        rule.end()
    return result


def accepted_tokens(token_ids, parents, rest):
    """How many tokens a verification gives out: the longest path that `rest` takes, and one."""
    children = {
        (parent, int(token)): node
        for node, (parent, token) in enumerate(zip(parents, token_ids, strict=True))
    }
    node, depth = -1, 0
    while depth < len(rest) and (node, int(rest[depth])) in children:
        node, depth = children[node, int(rest[depth])], depth + 1
    return min(depth + 1, len(rest))
