"""Which words come after which in most English texts and code, in a target's own tokens.

In: a tokenizer. Out: the table that the sources "common-phrases" and "respelling" draw on. The
words stand in `common_phrases.json`; `models/common_phrases/` tells how they were counted, and in
what. For "respelling", pairs of tokens that stand for nearly the same text: the ends of lines with
and without the break, words with and without the space before them, and in another case. Only words
that begin with a letter of English are put into another case.
"""

import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import PhraseTable
from coordgen_rs.errors import BundleError
from coordgen_rs.text.tokenizer import Tokenizer

_ANCHORS = ("x", "\n")
"""What words are tokenized behind, as the beginning of a text is often treated otherwise: behind a
letter, or those that begin with one behind a line break."""
_UNKNOWN = "\U000e0fff"
"""A character that no word has."""
_NO_TOKEN = 2**32 - 1
_SPACES = "Ġ▁"
"""What vocabularies write for a space before a word."""
_CAPITALS = frozenset(ascii_uppercase)
_BREAK = re.compile("[Ċ\n]")
"""What they write for a line break."""

_Context = tuple[int, int]
"""The last two tokens; the first may be `_NO_TOKEN`."""

_lock = threading.Lock()


class Spellings(NamedTuple):
    """Pairs of tokens for nearly the same text, each `(n, 2) u32`.

    Attributes:
        line_ends: A token with a line break in it, and what stands before the break.
        spaced: A word behind a space, and without it; each pair both ways.
        cased: A word, and itself in another case; with the same space before it, then with another.
    """

    line_ends: NDArray[np.uint32]
    spaced: NDArray[np.uint32]
    cased: NDArray[np.uint32]


def phrase_table_at(file: Path) -> PhraseTable:
    """The table of a `tokenizer.json`, which the drafters of a process share; made in about 0.3 s.

    Raises:
        BundleError: The file is missing, or not a tokenizer.
    """
    try:
        found = file.stat()
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from error
    with _lock:
        return _made(file, (found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=4)
def _made(tokenizer_file: Path, version: tuple[int, int, int]) -> PhraseTable:
    """The table of a file of that time, size and place.

    A context of more than two tokens is told by its last two; contexts that are told by the same
    tokens count as often as they are said. A next word is told by all of its tokens, one after
    another. Words that the tokenizer joins with what stands before them, or does not know, are left
    out; the table of one that cannot do such words at all is empty.
    """
    tokenizer = Tokenizer(tokenizer_file)
    file = resources.files(__package__) / "common_phrases.json"
    lines = json.loads(file.read_text("utf-8"))
    words = {word for *context, _, nexts in lines for word in (*context, *nexts)}
    try:
        tokens = _tokens(tokenizer, sorted(words))
    except BundleError:  # what it can do may still be all that it is asked for
        tokens = {}
    return _table(lines, tokens, spellings(tokenizer.vocabulary()))


def _table(lines: list[Any], tokens: dict[str, list[int]], written: Spellings) -> PhraseTable:
    """The table of lines, each one or two words, how often they are said, and next words."""
    said: dict[_Context, float] = defaultdict(float)
    goes_on: dict[tuple[int, int, int], float] = defaultdict(float)
    for *context, often, nexts in lines:
        if not all(word in tokens for word in context):
            continue
        known = [_NO_TOKEN, *chain.from_iterable(tokens[word] for word in context)]
        said[known[-2], known[-1]] += often
        for word, percent in nexts.items():
            before, last = known[-2:]
            share = often * percent / 100
            for place, token in enumerate(tokens.get(word, ())):
                if place > 0:
                    said[before, last] += share
                goes_on[before, last, token] += share
                before, last = last, token
    phrases = np.array(list(goes_on), np.uint32).reshape(-1, 3)
    chances = [share / said[before, last] for (before, last, _), share in goes_on.items()]
    before_ids, last_ids, next_ids = np.ascontiguousarray(phrases.T)
    return PhraseTable(
        before_ids,
        last_ids,
        next_ids,
        np.minimum(chances, 1).astype(np.float32),
        **written._asdict(),
    )


def _tokens(tokenizer: Tokenizer, words: list[str]) -> dict[str, list[int]]:
    """The tokens of each word; of those alone that the tokenizer begins anew behind an anchor."""
    anchors = [_ANCHORS[word[0].isalpha()] for word in words]
    texts = [anchor + word for anchor, word in zip(anchors, words, strict=True)]
    *begun, unknown = tokenizer.encode_each([*_ANCHORS, _ANCHORS[0] + _UNKNOWN])
    begins = dict(zip(_ANCHORS, begun, strict=True))
    never = set(unknown) - set(begins[_ANCHORS[0]])
    found = {}
    for word, anchor, ids in zip(words, anchors, tokenizer.encode_each(texts), strict=True):
        begin = begins[anchor]
        behind = ids[len(begin) :]
        if begin and behind and ids[: len(begin)] == begin and never.isdisjoint(behind):
            found[word] = behind
    return found


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
