"""Which tokens of a tokenizer stand for nearly the same text.

In: a tokenizer's vocabulary. Out: pairs of tokens, which the source "respelling" draws on: the ends
of lines with and without the break, words with and without the space before them, and in another
case. Only words that begin with a letter of English are put into another case.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

_SPACES = "Ġ▁"
"""What vocabularies write for a space before a word."""
_CAPITALS = frozenset(ascii_uppercase)
_BREAK = re.compile("[Ċ\n]")
"""What they write for a line break."""


@dataclass(frozen=True)
class Spellings:
    """Pairs of tokens for nearly the same text, each `(n, 2) u32`.

    Attributes:
        line_ends: A token with a line break in it, and what stands before the break.
        spaced: A word behind a space, and without it; each pair both ways.
        cased: A word, and itself in another case; with the same space before it, then with another.
    """

    line_ends: NDArray[np.uint32]
    spaced: NDArray[np.uint32]
    cased: NDArray[np.uint32]


def spellings(vocabulary: Mapping[str, int]) -> Spellings:
    """The pairs of a vocabulary, whose tokens are written as in a `tokenizer.json`."""
    known = vocabulary.get
    firsts = Counter(text[:1] for text in vocabulary)
    space = max(_SPACES, key=firsts.__getitem__)
    ends = [text for text in vocabulary if _BREAK.search(text, 1)]
    line_ends = [(vocabulary[text], known(_before_break(text))) for text in ends]
    behind_space = [text for text in vocabulary if text[:1] == space]
    spaced = [(vocabulary[text], known(text[1:])) for text in behind_space]
    capitals = [text for text in vocabulary if text[:1] in _CAPITALS]
    capitals_behind = [text for text in behind_space if text[1:2] in _CAPITALS]
    cased = [
        *((vocabulary[text], known(_small(text))) for text in capitals),
        *((vocabulary[text], known(space + _small(text[1:]))) for text in capitals_behind),
        *((vocabulary[text], known(space + _small(text))) for text in capitals),
        *((vocabulary[text], known(_small(text[1:]))) for text in capitals_behind),
    ]
    return Spellings(_pairs(line_ends), _both_ways(_pairs(spaced)), _both_ways(_pairs(cased)))


def _small(word: str) -> str:
    return word[0].lower() + word[1:]


def _before_break(text: str) -> str:
    """What stands before the first line break of a token; "" if that is nothing but spaces."""
    line = _BREAK.split(text, 1)[0]
    return line if line.strip(_SPACES + " ") else ""


def _pairs(pairs: list[tuple[int, int | None]]) -> NDArray[np.uint32]:
    """The pairs that have both tokens, `(n, 2) u32`."""
    return np.array([pair for pair in pairs if pair[1] is not None], np.uint32).reshape(-1, 2)


def _both_ways(pairs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Each pair, and beside it itself turned round."""
    return np.stack([pairs, pairs[:, ::-1]], axis=1).reshape(-1, 2)
