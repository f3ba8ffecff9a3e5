"""Which words come after which in most texts, in a target's own tokens.

In: a tokenizer. Out: the table that the source "common-phrases" draws on. The words stand in
`common_phrases.json`; `models/common_phrases/` tells how they were counted, and in what.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coordgen_rs._core import PhraseTable
from coordgen_rs.errors import BundleError
from coordgen_rs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from coordgen_rs.bundle.directory import Bundle

_ANCHOR = "x"
"""Words are tokenized behind it: many tokenizers treat the beginning of a text otherwise."""
_NO_TOKEN = 2**32 - 1

_Phrase = tuple[int, int, int, float]
"""The last two tokens of a context, the next one, and its chance."""


def phrase_table_of(bundle: "Bundle") -> PhraseTable:
    """The table of a bundle's tokenizer; see `phrase_table_at`."""
    return phrase_table_at(bundle.file(bundle.manifest.tokenizer))


def phrase_table_at(file: Path) -> PhraseTable:
    """The table of a `tokenizer.json`, which drafters of a process share; making it takes 0.2 s.

    Raises:
        BundleError: The file is missing, or not a tokenizer.
    """
    return _made(file, file.stat().st_mtime_ns if file.exists() else 0)


@lru_cache(maxsize=4)
def _made(file: Path, written_ns: int) -> PhraseTable:
    """The table of a file that was written then."""
    return phrase_table(Tokenizer(file))


def phrase_table(tokenizer: Tokenizer) -> PhraseTable:
    """The table of a tokenizer.

    A context of more than two tokens is told by its last two; a next word by all of its tokens, one
    after another. Words that the tokenizer joins with what stands before them are left out. The
    table of a tokenizer that cannot do such words at all is empty.
    """
    file = resources.files(__package__) / "common_phrases.json"
    lines = json.loads(file.read_text("utf-8"))
    words = {word for *context, nexts in lines for word in (*context, *nexts)}
    try:
        tokens = _tokens(tokenizer, sorted(words))
    except BundleError:  # what it can do may still be all that it is asked for
        tokens = {}
    phrases = list(_phrases(lines, tokens))
    contexts = np.array([phrase[:3] for phrase in phrases], np.uint32).reshape(-1, 3)
    before, last, following = np.ascontiguousarray(contexts.T)
    chances = np.array([phrase[3] for phrase in phrases], np.float32)
    return PhraseTable(before, last, following, chances)


def _phrases(lines: list[Any], tokens: dict[str, list[int]]) -> Iterator[_Phrase]:
    for *context, nexts in lines:
        if not all(word in tokens for word in context):
            continue
        known = [_NO_TOKEN, *chain.from_iterable(tokens[word] for word in context)]
        for word, percent in nexts.items():
            before, last = known[-2:]
            for token in tokens.get(word, ()):
                yield before, last, token, percent / 100
                before, last = last, token


def _tokens(tokenizer: Tokenizer, words: list[str]) -> dict[str, list[int]]:
    """The tokens of each word; of those alone that the tokenizer begins anew behind the anchor."""
    anchor, *found = tokenizer.encode_each([_ANCHOR, *(_ANCHOR + word for word in words)])
    size = len(anchor)
    behind = zip(words, found, strict=True)
    return {word: ids[size:] for word, ids in behind if len(ids) > size and ids[:size] == anchor}
