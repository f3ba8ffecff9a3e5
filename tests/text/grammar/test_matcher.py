"""A matcher that goes along paths and back stands where one stands that went straight."""

import gc
import json
import random
import sys
import weakref
from contextlib import ExitStack

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")

from coordgen_rs import JsonSchema, Lark, Regex, Vocabulary
from coordgen_rs.errors import GrammarError, OptionError
from coordgen_rs.server.tools.syntax import Lexicon
from coordgen_rs.text.grammar.kinds import LarkOfSchemas
from grammar_schemas import FOLLOWED

END = 1
GRAMMARS = [
    *(JsonSchema(schema, any_whitespace=len(name) % 2 == 0) for name, schema in FOLLOWED.items()),
    Regex("([a-f]|[0-9] )+"),
    Regex("[0-9]{1,4}(ab|c)?"),
    Lark('start: "go " ("north" | "south") " " /[0-9]{1,2}/ " miles"'),
]


def allowed(matcher):
    bits = np.unpackbits(matcher.words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_masks_after_going_back_are_those_of_going_straight(tokenizer, vocabulary, ignore_eos):
    other_vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size, [END])
    chosen = random.Random(ignore_eos)
    junk = [chosen.randrange(vocabulary.vocab_size) for _ in range(8)]
    for grammar in GRAMMARS:
        matcher, straight = vocabulary.matcher(grammar), other_vocabulary.matcher(grammar)
        matcher.begin(ignore_eos=ignore_eos)
        given, is_complete = [], False
        while not is_complete and len(given) < 25:
            path = []
            for _ in range(chosen.randrange(1, 8)):
                if matcher.after(path):
                    break
                straight.begin(ignore_eos=ignore_eos)
                assert not straight.extend(given + path)
                assert not straight.after([])
                assert allowed(matcher) == allowed(straight)
                forced = matcher.forced(path)
                going_on = allowed(matcher) - {END}
                assert not forced or allowed(matcher) == {forced[0]}
                if not going_on:
                    break
                path.append(chosen.choice(sorted(going_on)))
                matcher.possible(
                    [0, *junk[:3], path[-1], END, *junk[3:]], [0, 0, 1, 0, 0, 4, 5, 6, 7, 8, 9]
                )
            kept = path[: chosen.randrange(len(path) + 1)] or path[:1]
            is_complete = not kept or matcher.extend(kept)
            given += kept


def test_possible_keeps_what_may_follow_and_no_end_token(tokenizer, vocabulary):
    matcher = vocabulary.matcher(Regex("[0-9]{2,3}"))
    matcher.begin()
    letter, digit = (int(tokenizer.encode(text, special_tokens=False)[-1]) for text in ("x", "7"))
    tokens = [0, letter, digit, digit, digit, END, digit, digit]
    parents = [0, 0, 1, 0, 3, 4, 4, 6]
    kept = [True, False, False, True, True, False, True, False]
    assert matcher.possible(tokens, parents) == kept


def test_a_draft_beyond_a_limit_changes_nothing_but_what_is_drafted(tokenizer, vocabulary):
    words = " | ".join(f'"{number}"' for number in range(600))  # too many in a row
    looking = vocabulary.matcher(Lark(f'start: ("a" | "b" many)+\nmany: {words}'))
    a, b = (int(tokenizer.encode(text, special_tokens=False)[-1]) for text in "ab")
    for look in (
        lambda: looking.possible([0, b, a, a], [0, 0, 1, 0]),
        lambda: looking.forced([b]),
    ):
        straight = looking.another()
        for matcher in (looking, straight):
            matcher.begin()
            assert not matcher.extend([a])
        assert True not in look()[1:]
        for matcher in (looking, straight):
            matcher.after([a])
        assert allowed(looking) == allowed(straight)
        assert looking.possible([0, a], [0, 0]) == [True, False]
        with pytest.raises(GrammarError, match=r"cannot go on: .* has 601 items"):
            looking.extend([b])


def test_a_schema_may_name_many_properties_also_among_calls(tokenizer, vocabulary):
    names = [f"name{number}" for number in range(400)]
    schema = {"properties": {name: {"type": "boolean"} for name in names}}
    text = json.dumps({names[0]: True, names[300]: False})
    of_calls = LarkOfSchemas(f'start: "c" args\nargs: {Lexicon().json(schema)}')
    for grammar, before in ((JsonSchema(schema), ""), (of_calls, "c")):
        matcher = vocabulary.matcher(grammar)
        matcher.begin()
        for token in tokenizer.encode(before + text, special_tokens=False).tolist():
            matcher.after([])
            assert token in allowed(matcher)
            matcher.extend([token])


def test_the_same_grammar_is_compiled_once(vocabulary):
    schema = {"type": "boolean"}
    assert vocabulary.matcher(JsonSchema(schema)) is vocabulary.matcher(JsonSchema(dict(schema)))
    assert vocabulary.matcher(JsonSchema(schema)) is not vocabulary.matcher(Regex("true|false"))


def test_a_few_large_grammars_are_kept_and_many_small_ones(vocabulary):
    def kept(grammars):
        made = [weakref.ref(vocabulary.matcher(grammar)) for grammar in grammars]
        gc.collect()
        return sum(matcher() is not None for matcher in made)

    words = [[f"word{number}of{grammar}" for number in range(10_000)] for grammar in range(5)]
    assert kept(JsonSchema({"enum": some}) for some in words) <= 3
    assert kept(Regex(f"[0-9]{{{number}}}") for number in range(2, 26)) == 24


def test_matchers_beside_each_other_are_kept_where_they_are_small(vocabulary):
    def kept(grammar):
        matcher = vocabulary.matcher(grammar)
        with ExitStack() as lent:
            made = [weakref.ref(lent.enter_context(matcher.lent())) for _ in range(5)]
        gc.collect()
        return sum(matcher() is not None for matcher in made)

    assert kept(JsonSchema({"enum": [f"word{number}" for number in range(10_000)]})) == 1
    assert kept(Regex("[0-9]{30}")) == 5


def test_a_byte_order_mark_is_no_part_of_a_schema(vocabulary):
    marked, schema = JsonSchema('\ufeff{"type": "boolean"}'), JsonSchema('{"type": "boolean"}')
    assert vocabulary.matcher(marked) is vocabulary.matcher(schema)


def test_without_the_package_the_message_says_what_to_install(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"llguidance: pip install .*\[grammar\]"):
        Vocabulary(tokenizer, tokenizer.vocab_size, [END])
