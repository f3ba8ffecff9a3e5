"""The automaton and prompt lookup through the binding, against twins that scan the text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coordgen_rs._core import PromptLookup, ShapeError, SuffixAutomaton

TEXTS = st.integers(2, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), max_size=60))


def array(tokens: list[int]) -> NDArray[np.uint32]:
    return np.array(tokens, dtype=np.uint32)


def automaton_of(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(array(text))
    return automaton


def naive_ends(text: list[int], query: list[int]) -> list[int]:
    ends = range(len(query), len(text) + 1)
    return [end for end in ends if text[end - len(query) : end] == query]


def naive_match_len(text: list[int]) -> int:
    lengths = range(len(text) - 1, 0, -1)
    return next((n for n in lengths if len(naive_ends(text, text[-n:])) > 1), 0)


def naive_chain(text: list[int]) -> list[int]:
    for size in range(min(3, len(text) - 1), 0, -1):
        for end in naive_ends(text, text[-size:]):
            if end < len(text):
                return text[end : end + 10]
    return []


@given(TEXTS)
def test_every_substring_is_found_with_its_count_and_last_end(text: list[int]) -> None:
    automaton = automaton_of(text)
    for start in range(len(text)):
        for stop in range(start + 1, len(text) + 1):
            query = text[start:stop]
            ends = naive_ends(text, query)
            assert automaton.contains(array(query))
            assert automaton.count(array(query)) == len(ends)
            assert automaton.last_end(array(query)) == ends[-1]


@given(TEXTS, TEXTS.filter(bool))
def test_no_substring_is_invented(text: list[int], query: list[int]) -> None:
    ends = naive_ends(text, query)
    automaton = automaton_of(text)
    assert automaton.contains(array(query)) == bool(ends)
    assert automaton.count(array(query)) == len(ends)
    assert automaton.last_end(array(query)) == (ends[-1] if ends else None)


@given(TEXTS)
def test_match_is_right_after_every_token(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end in range(1, len(text) + 1):
        automaton.extend(array(text[end - 1 : end]))
        assert len(automaton) == end
        assert automaton.match_len == naive_match_len(text[:end])


@given(TEXTS, st.data())
def test_pieces_give_what_the_whole_gives(text: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    whole, pieces = automaton_of(text), automaton_of(text[:cut])
    pieces.extend(array(text[cut:]))
    assert pieces.num_states == whole.num_states <= max(2 * len(text), 1)
    assert pieces.num_edges == whole.num_edges <= 3 * len(text)
    assert pieces.match_len == whole.match_len


@given(TEXTS, TEXTS)
def test_lookup_proposes_what_a_scan_proposes(text: list[int], next_text: list[int]) -> None:
    lookup = PromptLookup()
    for tokens in (text, next_text):
        for end in range(1, len(tokens) + 1):
            lookup.extend(array(tokens[end - 1 : end]))
            assert lookup.propose().tolist() == naive_chain(tokens[:end])
        lookup.clear()
        assert lookup.propose().size == 0


def test_long_text_stays_within_its_memory() -> None:
    random = np.random.default_rng(0)
    text = (50_000 ** random.random(100_000)).astype(np.uint32)
    automaton = SuffixAutomaton()
    automaton.extend(text)
    assert automaton.last_end(text[-20:]) == text.size
    assert automaton.memory_bytes() <= 60 * text.size


@pytest.mark.parametrize("tokens", [["a"], np.zeros(3), np.zeros((2, 2), dtype=np.uint32)])
@pytest.mark.parametrize("source", [SuffixAutomaton, PromptLookup])
def test_other_arrays_are_refused(
    source: type[SuffixAutomaton | PromptLookup], tokens: NDArray[np.uint32]
) -> None:
    with pytest.raises(ShapeError):
        source().extend(tokens)
