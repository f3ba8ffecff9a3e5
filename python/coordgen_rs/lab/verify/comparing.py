"""Where two answers part.

In: what was said twice. Out: the first difference, with what stands around it. Nothing is asked.
"""

from dataclasses import dataclass
from typing import Any

from coordgen_rs.lab.verify.replies import Said

_AROUND = 40
"""Characters shown before and behind a difference."""


@dataclass(frozen=True)
class Difference:
    """The first place where an answer is not the expected one.

    Attributes:
        part: Such as "content" or "finish reason".
        at: Where it begins, in characters of that part, from 0.
        before: What both have before it.
        expected: What should stand there.
        found: What does.
    """

    part: str
    at: int
    before: str
    expected: str
    found: str

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON types."""
        return vars(self).copy()


def difference(expected: Said, found: Said) -> Difference | None:
    """The first difference; None between equal answers."""
    theirs = found.parts()
    for part, text in expected.parts().items():
        other = theirs.get(part, "")
        if text != other:
            return _parted(part, text, other)
    return None


def _parted(part: str, expected: str, found: str) -> Difference:
    shorter = min(len(expected), len(found))
    at = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    near = slice(at, at + _AROUND)
    before = expected[max(0, at - _AROUND) : at]
    return Difference(part, at, before, expected[near], found[near])
