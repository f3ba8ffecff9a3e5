"""Tokens that stand for nearly the same text: which a vocabulary has, and drafts from them."""

import numpy as np
import pytest

from coordgen_rs._core import Drafter, PhraseTable
from coordgen_rs.drafting.common_phrases import spellings
from core_subjects import step_inputs

MERGED = ["go", "Ġgo", "Go", "ĠGo", ">", ">ĊĊ", "Ġ>Ċ", "ĠĊ", "Ċ", "Ġ", "ĠÉt", "Ét", "GO"]
PIECES = ["▁go", "go", "▁Go", "<0x0A>", "▁", ".", ".\n"]


def named(vocabulary, pairs):
    return [tuple(vocabulary[token] for token in pair) for pair in pairs.tolist()]


@pytest.mark.parametrize(
    ("vocabulary", "line_ends", "spaced"),
    [
        (MERGED, {(">ĊĊ", ">")}, {("Ġgo", "go"), ("ĠGo", "Go"), ("ĠÉt", "Ét"), ("ĠĊ", "Ċ")}),
        (PIECES, {(".\n", ".")}, {("▁go", "go")}),
    ],
)
def test_pairs_are_those_of_the_vocabulary(vocabulary, line_ends, spaced):
    found = spellings({text: token for token, text in enumerate(vocabulary)})
    assert set(named(vocabulary, found.line_ends)) == line_ends
    turned_round = {(other, one) for one, other in spaced}
    assert set(named(vocabulary, found.spaced)) == spaced | turned_round


def test_a_word_in_another_case_stands_behind_the_same_space_first():
    found = spellings({text: token for token, text in enumerate(MERGED)})
    cased = named(MERGED, found.cased)
    for one, same, other in (("go", "Go", "ĠGo"), ("ĠGo", "Ġgo", "go"), ("Go", "go", "Ġgo")):
        assert [pair[1] for pair in cased if pair[0] == one] == [same, other]
    assert not any("É" in one for pair in cased for one in pair), "bytes have no case"


def test_a_vocabulary_without_texts_has_no_pairs():
    found = spellings({})
    assert [len(found.line_ends), len(found.spaced), len(found.cased)] == [0, 0, 0]


def drafted(prompt, **pairs):
    """Token and parent of each node of a draft from the prompt, where these tokens are alike."""
    none = np.zeros(0, np.uint32)
    pairs = {name: np.array(of, np.uint32).reshape(-1, 2) for name, of in pairs.items()}
    table = PhraseTable(none, none, none, np.zeros(0, np.float32), **pairs)
    sources = ["automaton", "respelling"]
    drafter = Drafter([step_inputs(16)], 100, sources=sources, phrases=table)
    drafter.begin(np.array(prompt, np.uint32), 50)
    drafter.propose(len(prompt) - 1)
    token_ids, parents = drafter.draft
    return list(zip(token_ids.tolist(), parents.tolist(), strict=True))


def test_a_copied_line_may_end_without_its_break():
    assert (9, 0) not in drafted([1, 2, 3, 8, 4, 1, 2, 3])
    assert (9, 0) in drafted([1, 2, 3, 8, 4, 1, 2, 3], line_ends=[(8, 9)])
    assert (200, 0) not in drafted([1, 2, 3, 8, 4, 1, 2, 3], line_ends=[(8, 200)])


@pytest.mark.parametrize("kind", ["spaced", "cased"])
def test_what_follows_a_word_is_drafted_behind_another_spelling(kind):
    prompt = [1, 5, 6, 7, 2, 3, 4, 15]
    assert drafted(prompt)[1] != (6, 0)
    assert drafted(prompt, **{kind: [(15, 5)]})[1] == (6, 0)
    assert drafted([*prompt, 2, 15], **{kind: [(15, 5)]})[1] == (2, 0), "it is known as it is"
