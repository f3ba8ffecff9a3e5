"""The draft tree of one step, for those who want to see it: tokens, parents, and who proposed what.

In: a drafter that has just proposed. Out: plain lists. Nothing is drafted or verified here.
"""

from collections.abc import Sequence
from typing import NamedTuple

from coordgen_rs.drafting.proposer import DraftProposer


class StepTree(NamedTuple):
    """A tree as it was verified. Node 0 is the root: the last token before the step.

    Attributes:
        token_ids: The token of each node.
        parents: The parent of each node, which comes before it; the root's is 0.
        sources: Who proposed each node, as in `Step.sources`; the root's is "target".
    """

    token_ids: list[int]
    parents: list[int]
    sources: list[str]

    def path(self, token_ids: Sequence[int]) -> list[int]:
        """The nodes below the root along the first of `token_ids`, as far as the tree has them."""
        children = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(self.parents, self.token_ids, strict=True))
            if node
        }
        found, at = list[int](), 0
        for token in token_ids:
            if (at, token) not in children:
                break
            at = children[at, token]
            found.append(at)
        return found


def tree_of(drafter: DraftProposer) -> StepTree:
    """The tree that a drafter has proposed and not yet verified."""
    token_ids, parents = drafter.draft
    return StepTree(token_ids.tolist(), parents.tolist(), drafter.node_sources)
