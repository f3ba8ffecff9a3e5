"""Streams over scripted steps: pieces, spans and stop strings, without a model."""

import copy
import gc
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import CHECKPOINTS
from coordgen_rs import Span, Stats, Step, TextDelta, Tokenizer
from coordgen_rs.errors import OptionError
from coordgen_rs.model.answer import detokenized
from coordgen_rs.model.stream import Stream, collect
from coordgen_rs.text.stop import StopStrings


class Pulled:
    """What `Stream` asks of `Events`; dropped, it closes the steps.

    Args:
        reads: What the steps make certain.
    """

    is_ready, is_whole = True, False

    def __init__(self, reads):
        self._reads, self._first, self._error = reads, None, None
        self.is_cancelled = False

    def belong_to(self, stream):
        """The stream holds this: with it, the steps are dropped."""

    def ask(self):
        """Nothing has to begin."""

    def peek(self):
        if self._error is not None:
            raise self._error
        try:
            self._first = next(self._reads) if self._first is None else self._first
        except Exception as error:
            self._error = error
            raise
        return self._first

    def drop(self):
        self._first = None

    def cancel(self, error=None):
        self.is_cancelled, self._first, self._error = True, None, self._error or error
        self._reads.close()


def stream_of_steps(steps, stats, decode=chr, stop=(), **options):
    """A stream; the arguments are those of `read`, `options` those of `Stream`."""
    return Stream(Pulled(detokenized(steps, stats, decode, StopStrings(stop))), stats, **options)


TEXTS = ["Ä", "b", "", "cd", "日本"]
"""Token `i` stands for text `i`."""

tokens = st.lists(
    st.tuples(st.integers(0, len(TEXTS) - 1), st.sampled_from(["target", "automaton", "reuse"]))
)


def steps_of(tokens, stats, closed=None):
    """The tokens, two a step; what is appended to `closed` tells how the steps ended."""
    try:
        for at in range(0, len(tokens), 2):
            ids, sources = zip(*tokens[at : at + 2], strict=True)
            yield Step(list(ids), 0, sources=sources)
        stats.finish_reason = "length"
    finally:
        if closed is not None:
            closed.append(stats.finish_reason)


def stream_of(tokens, stop=(), closed=None, decode=TEXTS.__getitem__):
    stats = Stats()
    return stream_of_steps(steps_of(tokens, stats, closed), stats, decode, stop)


@given(tokens, st.sampled_from(["", "b", "bb", "cdÄ", "Äb", "本c"]))
def test_spans_cover_the_text_and_pieces_join_to_it(tokens, stop):
    stream = stream_of(tokens, stop or ())
    pieces, answer = list(stream), stream.answer
    assert all(piece.text for piece in pieces)
    assert "".join(map(str, pieces)) == answer.text
    assert [source for piece in pieces for source in [piece.source] * len(piece.text)] == [
        span.source for span in answer.spans for _ in range(span.start, span.end)
    ]
    ends = [span.end for span in answer.spans]
    assert [span.start for span in answer.spans] == [0, *ends][: len(ends)]
    assert ([0, *ends])[-1] == len(answer.text)
    neighbours = zip(answer.spans, answer.spans[1:], strict=False)
    assert all(one.source != other.source for one, other in neighbours)

    whole = "".join(TEXTS[token] for token, _ in tokens)
    is_cut = bool(stop) and stop in whole
    assert answer.text == (whole.partition(stop)[0] if is_cut else whole)
    assert answer.finish_reason == ("stop" if is_cut else "length")
    told = list(zip(answer.token_ids, answer.sources, strict=True))
    assert told == tokens[: len(told)]
    assert is_cut or told == tokens
    if is_cut:
        said = [TEXTS[token] for token in answer.token_ids]
        assert stop in "".join(said)
        assert stop not in "".join(said[:-1])


def test_a_piece_is_text_that_knows_its_source():
    piece = TextDelta("ab", "automaton")
    assert (piece, piece.text, piece.source, f"{piece:>3}") == ("ab", "ab", "automaton", " ab")
    assert type(piece.text) is str
    assert json.dumps(piece) == '"ab"'
    for again in (copy.copy(piece), copy.deepcopy(piece), pickle.loads(pickle.dumps(piece))):
        assert (type(again), again, again.source) == (TextDelta, "ab", "automaton")


def test_an_answer_is_shown_by_how_it_begins_and_a_stream_not_copied():
    stream = stream_of([(1, "target")] * 100)
    with pytest.raises(OptionError, match="a Stream can be neither copied nor pickled"):
        copy.copy(stream)
    text = "b" * 57
    assert repr(collect(stream)) == f"<Answer '{text}...', 100 tokens, finish_reason='length'>"
    assert repr(collect(stream_of([(1, "target")]))).startswith("<Answer 'b', 1 tokens, ")


def test_a_character_belongs_to_the_token_that_completes_it():
    tokenizer = Tokenizer(CHECKPOINTS["embedded"] / "tokenizer.json")
    ids = tokenizer.encode("a é日b", special_tokens=False).tolist()
    sources = [f"source {index}" for index in range(len(ids))]
    stream = stream_of(list(zip(ids, sources, strict=True)), decode=tokenizer.stream())
    pieces = list(stream)
    assert "".join(map(str, pieces)) == tokenizer.decode(ids)
    assert len(pieces) < len(ids)  # some tokens are parts of characters
    assert not any("\ufffd" in piece.text for piece in pieces)
    completing = tokenizer.stream()
    assert [(piece.text, piece.source) for piece in pieces] == [
        (text, source)
        for token, source in zip(ids, sources, strict=True)
        if (text := completing(token))
    ]


def test_a_character_that_the_limit_cuts_is_left_out():
    tokenizer = Tokenizer(CHECKPOINTS["embedded"] / "tokenizer.json")
    ids = tokenizer.encode("b日", special_tokens=False).tolist()[:-1]
    stream = stream_of([(token, "target") for token in ids], decode=tokenizer.stream())
    assert "".join(stream) == stream.answer.text == "b"
    assert list(stream.answer.token_ids) == ids


def test_what_may_begin_a_stop_string_is_held_back_and_keeps_its_sources():
    stream = stream_of([(1, "a"), (1, "b"), (0, "c"), (0, "d")], stop=["bbb"])
    assert repr(next(stream)) == "TextDelta('b', 'a')"
    assert stream.answer.token_ids == (1, 1, 0)
    assert repr(list(stream)) == "[TextDelta('b', 'b'), TextDelta('Ä', 'c'), TextDelta('Ä', 'd')]"
    assert stream.answer.spans[1] == Span(1, 2, "b")


def test_a_stop_string_that_only_the_end_makes_certain_is_told():
    stream = stream_of([(0, "target"), (1, "target"), (3, "target")], stop=["bcd日", "cd"])
    assert "".join(map(str, stream)) == "Äb"
    answer = stream.answer
    assert (answer.text, answer.finish_reason) == ("Äb", "stop")
    assert (answer.stats.stop_string, answer.stats.cut_at) == ("cd", 3)


def test_a_stop_string_ends_the_steps_before_the_last_piece_is_given_out():
    closed = []
    stream = stream_of([(1, "target"), (3, "target"), (0, "target")], stop="d", closed=closed)
    assert list(map(str, (next(stream), next(stream)))) == ["b", "c"]
    assert closed == ["stop"]
    assert list(stream) == []
    assert stream.answer.finish_reason == "stop"


@pytest.mark.parametrize("how", ["closed", "left", "dropped", "failed"])
def test_a_stream_that_is_given_up_closes_its_steps_at_once(how):
    closed = []
    stream_of([(1, "target")], closed=closed).close()
    assert closed == []  # none was asked for
    stream = stream_of([(1, "target")] * 9, closed=closed)
    gc.disable()  # at once, not when cycles are looked for
    try:
        assert str(next(stream)) == "b"
        if how == "closed":
            stream.close()
        elif how == "left":
            with stream:
                next(stream)
        elif how == "dropped":
            del stream
        else:
            with pytest.raises(ZeroDivisionError), stream:
                raise ZeroDivisionError
    finally:
        gc.enable()
    assert closed == [None]


def test_a_stream_that_failed_fails_again_instead_of_ending():
    def steps():
        yield Step([1], 0, sources=("target",))
        raise OptionError("refused")

    stream = stream_of_steps(steps(), Stats(), TEXTS.__getitem__)
    assert str(next(stream)) == "b"
    for _ in range(2):
        with pytest.raises(OptionError, match="refused"):
            next(stream)
    assert stream.answer.finish_reason is None
    assert stream.answer.text == "b"


@given(tokens, st.sampled_from(["", "b", "cdÄ", "本c"]))
def test_steps_of_a_stream_add_up_to_its_answer(tokens, stop):
    stream, answer = stream_of(tokens, stop or ()), stream_of(tokens, stop or ())
    gains = []
    while (gain := stream.step()) is not None:
        gains.append(gain)
    assert "".join(map(str, answer)) == stream.answer.text == answer.answer.text
    assert "".join(piece.text for gain in gains for piece in gain.pieces) == answer.answer.text
    told = [(t, s) for gain in gains for t, s in zip(gain.token_ids, gain.sources, strict=True)]
    assert told == list(zip(answer.answer.token_ids, answer.answer.sources, strict=True))
    assert all(len(gain.token_ids) <= 2 for gain in gains)
    assert all(
        gain.step.token_ids[: len(gain.token_ids)] == [*gain.token_ids]
        for gain in gains
        if gain.token_ids
    )
    assert stream.answer.finish_reason == answer.answer.finish_reason
    assert stream.step() is None


@pytest.mark.parametrize("by_step", [False, True], ids=["pieces", "steps"])
@pytest.mark.parametrize("is_dropped", [False, True], ids=["kept", "dropped"])
def test_a_reader_that_goes_on_after_an_interrupt_misses_nothing(monkeypatch, is_dropped, by_step):
    tokens = [(number % len(TEXTS), "target") for number in range(12)]
    left, drop = [1, 1], Pulled.drop

    def dropped(self):
        if is_dropped:
            drop(self)
        if left and left.pop() and not left:
            raise KeyboardInterrupt
        if not is_dropped:
            drop(self)

    monkeypatch.setattr(Pulled, "drop", dropped)
    stream, hits, got = stream_of(tokens), 0, []
    while True:
        try:
            gain = stream.step() if by_step else next(stream, None)
        except KeyboardInterrupt:
            hits += 1
            continue
        if gain is None:
            break
        got += gain.pieces if by_step else [gain]
    assert hits == 1
    whole = "".join(TEXTS[token] for token, _ in tokens)
    assert stream.answer.text == "".join(map(str, got)) == whole
    assert stream.answer.token_ids == tuple(token for token, _ in tokens)
