"""How far drafting from text alone could go: an oracle that picks what turns out right.

In: a text as it grows, and what comes next. Out: how many of the next tokens any source could have
proposed. A source can propose a token where the text says it after the same token, where a copy
that broke lately may be taken up again, and anywhere if few tokens come after as many different
ones. Unlike a drafter the oracle knows which to pick.
"""

from collections import Counter, defaultdict, deque
from heapq import nlargest

import numpy as np

LEAST_COPY = 4
"""Tokens that make a copy, as in `resumed-copy`."""
WINDOW = 10
"""Tokens behind a mismatch in which it may be taken up again, and those of the text it may skip."""
MOST_FREQUENT = 48
"""Tokens that may be proposed anywhere, as in `automaton`."""
_MOST_COPIES = 16


class Seen:
    """What the text so far lets a source propose.

    Args:
        remembering: Whether earlier requests count.
        most_frequent: Tokens that may be proposed anywhere.
    """

    def __init__(self, *, remembering=False, most_frequent=MOST_FREQUENT):
        self._remembering, self._most_frequent = remembering, most_frequent
        self._forget()

    def _forget(self):
        self._text, self._after, self._num_contexts = [], defaultdict(set), Counter()
        self._ends = defaultdict(lambda: deque(maxlen=_MOST_COPIES))
        self._copies, self._broken = {}, {}

    def begin(self, prompt):
        """A request starts; `(tokens,) u32`."""
        if not self._remembering:
            self._forget()
        self._copies, self._broken, self._first = {}, {}, len(self._text)
        self.extend(prompt)

    def extend(self, tokens):
        """The text goes on by `(tokens,) u32`."""
        for token in tokens.tolist():
            self._follow_copies(token)
            self._text.append(token)
            end = len(self._text)
            if end - self._first > 1:
                followers = self._after[self._text[-2]]
                self._num_contexts[token] += token not in followers
                followers.add(token)
            if end - self._first >= LEAST_COPY:
                ends = self._ends[tuple(self._text[-LEAST_COPY:])]
                self._copies |= dict.fromkeys(ends)
                ends.append(end)

    def _follow_copies(self, token):
        """Keep the copies that go on with a token, and note those that it breaks."""
        end, going_on = len(self._text), {}
        for place in self._copies:
            if place < end and self._text[place] == token:
                going_on[place + 1] = None
            else:
                self._broken[place] = end
        self._copies = going_on
        self._broken = {at: since for at, since in self._broken.items() if end - since < WINDOW}

    def num_foretold(self, rest, most):
        """How many tokens of `rest`, `(tokens,) u32`, could be proposed in one draft of `most`."""
        last = self._text[-1]
        contexts = self._num_contexts
        frequent = nlargest(self._most_frequent, contexts, key=contexts.__getitem__)
        anywhere = self._resumed().union(frequent)
        for depth, token in enumerate(rest[:most].tolist()):
            if token not in self._after[last] and token not in anywhere:
                return depth
            last = token
        return min(most, len(rest))

    def _resumed(self):
        text = self._text
        return {token for place in self._broken for token in text[place : place + WINDOW + 1]}


def ceiling(records, budget, *, remembering=False):
    """Tokens a step of the oracle over `TokenizedRecord`s, with `budget` draft tokens a step."""
    seen = Seen(remembering=remembering)
    tokens = steps = 0
    for record in records:
        seen.begin(record.prompt)
        place, answer = 0, record.answer
        while place < len(answer):
            foretold = seen.num_foretold(answer[place:], budget)
            given = answer[place : place + foretold + 1]
            seen.extend(given)
            place, steps = place + len(given), steps + 1
        tokens += len(answer)
    return tokens / max(steps, 1)


class Losses:
    """Where the steps of a drafter end, beside what the oracle would have had from there.

    Args:
        budget: Draft tokens a step.
        remembering: Whether earlier requests count.

    Attributes:
        steps: Steps that ended with a token that nothing had told ("never seen"), with a full tree
            that held other tokens ("ranked low"), with room left in the tree ("cut"), or with the
            budget or the answer used up ("full").
        tokens: Tokens that the oracle would have had more there, of the same names.
    """

    def __init__(self, budget, *, remembering=False):
        self._budget, self._seen, self._record = budget, Seen(remembering=remembering), None
        self.steps = dict.fromkeys(("never seen", "ranked low", "cut", "full"), 0)
        self.tokens = dict.fromkeys(self.steps, 0)

    def step(self, record, tree, rest):
        """Count a step: its tree, token ids and parents, and what is left of the answer."""
        if record is not self._record:
            self._record = record
            self._seen.begin(record.prompt)
        token_ids, parents = tree
        found = _accept_len(token_ids, parents, rest)
        foretold = self._seen.num_foretold(rest, self._budget)
        self._seen.extend(rest[: found + 1])
        if found >= min(self._budget, len(rest) - 1):
            name = "full"
        elif foretold <= found:
            name = "never seen"
        else:
            name = "ranked low" if len(token_ids) > self._budget else "cut"
        self.steps[name] += 1
        self.tokens[name] += max(min(foretold, len(rest) - 1) - found, 0)


def _accept_len(token_ids, parents, rest):
    """Draft tokens of a tree, whose node 0 is the root, that `rest` says."""
    node, depth = 0, 0
    while depth < len(rest):
        children = np.flatnonzero((parents == node) & (token_ids == rest[depth]))
        children = children[children > 0]
        if len(children) == 0:
            break
        node, depth = children[0], depth + 1
    return depth
