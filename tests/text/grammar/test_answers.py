"""Answers under a grammar: valid, and the same tokens with and without drafts."""

import json
from itertools import product

import jsonschema
import numpy as np
import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")

from answers import tokens_of
from coordgen_rs import (
    DraftModel,
    JsonSchema,
    Lark,
    Model,
    Regex,
    Sampling,
    Stats,
    Tokenizer,
    Vocabulary,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.errors import GrammarError, OptionError, UnsupportedGrammarError
from genai_folders import write_folder
from grammar_schemas import FOLLOWED, REFUSED
from scripted import ScriptedDrafter, chain

PROMPT = 'Text: Bob Miller is 42 and likes "red" things. Give that as JSON.\nJSON: '
METHODS = ("auto", "sam", "token-recycling", "diaa")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tall": {"type": "boolean"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICES = (
    None,
    Sampling(0, repetition_penalty=1.3),
    Sampling(0, presence_penalty=0.8, frequency_penalty=0.3, logit_bias={40: 3.0, 9: -100.0}),
    Sampling(1.2, top_p=0.9, min_p=0.01, seed=4),
    Sampling(0.9, top_k=7, repetition_penalty=1.2, seed=5),
)


@pytest.fixture(scope="module")
def session(session_of):
    return session_of("embedded", "fp32")


def vocabulary_of(session):
    return Vocabulary(Tokenizer.of(session.bundle), session.vocab_size, session.end_token_ids)


def drafted(session, prompt, drafter=None, stats=None, **options):
    """The tokens of an answer with drafts, which are those of plain decoding."""
    expected = tokens_of(plain(session, prompt, **options))
    steps = generate(session, prompt, drafter=drafter, stats=stats, **options)
    assert tokens_of(steps) == expected
    return expected


@pytest.fixture(scope="module")
def vocabulary(session):
    return vocabulary_of(session)


@pytest.fixture(scope="module")
def model(bundle_of):
    with Model.open(bundle_of("embedded", "fp32")) as model:
        yield model


@pytest.fixture(scope="module")
def prompt(session):
    return Tokenizer.of(session.bundle).encode(PROMPT)


@pytest.mark.parametrize("name", FOLLOWED)
def test_an_answer_is_valid_and_the_same_without_drafts(model, name):
    schema = JsonSchema(FOLLOWED[name])
    for options in ({}, {"temperature": 1.5, "seed": 3}):
        asked = {"grammar": schema, "max_new_tokens": 400, **options}
        answer, alone = (model.generate(PROMPT, drafts=it, **asked) for it in (True, False))
        jsonschema.validate(json.loads(answer.text), FOLLOWED[name])
        assert answer.finish_reason in ("grammar", "stop")
        assert (answer.token_ids, answer.finish_reason) == (alone.token_ids, alone.finish_reason)
        assert len(answer.sources) == len(answer.token_ids)


def test_forced_tokens_are_drafted_with_certainty(model):
    answer = model.generate(PROMPT, grammar=JsonSchema(FOLLOWED["a form of many fields"]))
    counts = answer.stats.per_source["grammar"]
    assert counts["proposed"] == counts["accepted"] == answer.sources.count("grammar")
    # How many of them depends on what rows cost here, and on what earlier answers propose.
    assert counts["accepted"] > 40
    assert answer.stats.steps < len(answer.token_ids) / 2


@pytest.mark.parametrize("schema", REFUSED)
def test_what_cannot_be_followed_is_named_before_anything_is_generated(model, schema):
    with pytest.raises(UnsupportedGrammarError, match=schema):
        model.stream(PROMPT, grammar=JsonSchema(REFUSED[schema]))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "minProperties": 2, "additionalProperties": True}, "minProperties"),
        ({"const": "a\0b"}, "const has a control character"),
        ({"enum": ["a", ["\x1f"]]}, "enum has a control character"),
        ({"const": "a\x7fb"}, "const has a control character"),
        ({"enum": ["a", {"b": "\x7f"}]}, "enum has a control character"),
        ({"type": "object", "properties": {"a\x01": {}}}, "properties has a control character"),
        ({"type": "number", "exclusiveMinimum": 2, "maximum": 2.5}, "exclusiveMinimum"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"$ref": "http://localhost/schema.json"}, "localhost"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "a"),
    ],
)
def test_schemas_that_would_be_followed_wrongly_or_not_at_all_are_named(vocabulary, schema, named):
    with pytest.raises(UnsupportedGrammarError, match=named):
        vocabulary.matcher(JsonSchema(schema))


@pytest.mark.parametrize("keyword", ["const", "default", "examples"])
def test_values_and_names_that_look_like_keywords_are_no_keywords(vocabulary, keyword):
    value = {"minProperties": 5}
    for name, schema in (
        ("minProperties", {"type": "integer", keyword: [value] if keyword[0] == "e" else 3}),
        ("a", {"type": "object", keyword: [value] if keyword[0] == "e" else value}),
    ):
        assert vocabulary.matcher(JsonSchema({"properties": {name: schema}})) is not None


@pytest.fixture(scope="module")
def asked(session, vocabulary, prompt):
    """Requests, with the tokens of constrained plain decoding and why they end."""
    grammars = [JsonSchema(PERSON), JsonSchema(PERSON, any_whitespace=True)]
    grammars.append(Regex("([a-f]|[0-9] )+"))
    found = []
    for grammar, sampling, ignore_eos in product(
        map(vocabulary.matcher, grammars), CHOICES, (False, True)
    ):
        options = {"sampling": sampling, "ignore_eos": ignore_eos, "grammar": grammar}
        options |= {"max_new_tokens": 40, "stats": Stats()}
        expected = tokens_of(plain(session, prompt, **options))
        found.append((options, expected, options.pop("stats").finish_reason))
    return found


@pytest.mark.parametrize("draft", [*METHODS, ("automaton", "calibration", "reuse", "lookup-table")])
def test_every_method_gives_the_tokens_of_constrained_plain_decoding(session, prompt, asked, draft):
    drafter = make_drafter(session, draft)
    for options, expected, reason in asked:
        stats = Stats()
        got = tokens_of(generate(session, prompt, drafter=drafter, stats=stats, **options))
        assert (got, stats.finish_reason) == (expected, reason)


def test_a_draft_model_drafts_under_a_grammar(session, session_of, vocabulary, prompt):
    model = DraftModel(session_of("embedded-draft", "fp32"))
    drafter = make_drafter(session, "blend", draft_model=model)
    grammar = vocabulary.matcher(JsonSchema(PERSON))
    assert drafted(session, prompt, drafter, grammar=grammar, max_new_tokens=60)


@pytest.mark.parametrize("commit", ["canonical", "compact"])
def test_drafts_of_any_kind_change_nothing(session, vocabulary, prompt, commit):
    grammar = vocabulary.matcher(JsonSchema(PERSON))
    expected = tokens_of(plain(session, prompt, grammar=grammar, max_new_tokens=80))
    random = np.random.default_rng(1)

    def right(given):
        return chain(expected[given : given + 6])

    def beyond_the_end(given):
        return chain([*expected[given : given + 9], *expected[:3]])

    def beside(given):
        tokens = [7, 8, *expected[given : given + 5]]
        return tokens, [0, 0, 0, *range(3, len(tokens))]

    def wrong(given):
        return random.integers(2, session.vocab_size, 9).tolist(), [0, 0, 1, 2, 0, 5, 5, 3, 8]

    for script in (right, beyond_the_end, beside, wrong, lambda given: ([], [])):
        drafter = ScriptedDrafter(make_drafter(session, [], commit), script)
        steps = generate(session, prompt, drafter=drafter, grammar=grammar, max_new_tokens=80)
        assert tokens_of(steps) == expected


def test_refused_drafts_take_no_row(session, vocabulary, prompt):
    grammar = vocabulary.matcher(Regex("[0-9]{8}"))
    drafter = make_drafter(session, [])
    grammar.begin()
    drafter.begin(prompt, 20, grammar=grammar)
    tokenizer = Tokenizer.of(session.bundle)
    letter, digit = (int(tokenizer.encode(text, special_tokens=False)[-1]) for text in ("x", "7"))
    tree = [int(prompt[-1]), letter, digit, digit, letter, digit], [0, 0, 1, 0, 3, 3]
    drafter.propose(len(prompt) - 1, tuple(np.array(part, np.uint32) for part in tree))
    drafted, parents = drafter.draft
    assert drafted.tolist() == [prompt[-1], digit, digit]
    assert parents.tolist() == [0, 0, 1]


def test_limits_and_stop_strings_cut_the_same_answer(model):
    grammar = JsonSchema(PERSON)
    whole = model.generate(PROMPT, grammar=grammar)
    for most in (1, 2, 5, len(whole.token_ids)):
        for drafts in (True, False):
            cut = model.generate(PROMPT, grammar=grammar, max_new_tokens=most, drafts=drafts)
            assert cut.token_ids == whole.token_ids[:most]
            is_whole = most == len(whole.token_ids)
            assert cut.finish_reason == ("grammar" if is_whole else "length")
    stopped = model.generate(PROMPT, grammar=grammar, stop='"age"')
    assert (stopped.finish_reason, stopped.text) == ("stop", whole.text.split('"age"')[0])
    with model.stream(PROMPT, grammar=grammar) as stream:
        next(stream)
    assert model.generate(PROMPT, grammar=grammar).token_ids == whole.token_ids


def test_end_tokens_are_allowed_where_the_grammar_may_end_unless_they_are_ignored(model):
    grammar = Regex("[a-z]{2,30}")
    short = model.generate(PROMPT, grammar=grammar, max_new_tokens=100)
    assert short.finish_reason in ("stop", "grammar")
    longest = model.generate(PROMPT, grammar=grammar, max_new_tokens=100, ignore_eos=True)
    assert (longest.finish_reason, len(longest.text)) == ("grammar", 30)
    endless = model.generate(PROMPT, grammar=Regex("[a-z]+"), max_new_tokens=20, ignore_eos=True)
    assert (endless.finish_reason, len(endless.token_ids)) == ("length", 20)


def test_a_lark_grammar_is_followed(model):
    grammar = Lark('start: "go " ("north" | "south") " " /[0-9]{1,2}/ " miles"')
    answer = model.generate(PROMPT, grammar=grammar)
    assert answer.text.startswith(("go north ", "go south "))
    assert answer.text.endswith(" miles")
    for wrong in (Lark("begin: 1"), Regex("[0-9"), Regex(r"(a)\1")):
        with pytest.raises(UnsupportedGrammarError, match="cannot be followed"):
            model.generate(PROMPT, grammar=wrong)


def test_a_grammar_with_ever_more_readings_ends_its_own_answer_by_name(model):
    grammar = Lark("start: e\ne: e e | e e e | e e e e | /[a-z ]/")
    for drafts in (True, False):
        with pytest.raises(GrammarError, match=r"cannot go on: .* items"):
            model.generate(PROMPT, grammar=grammar, drafts=drafts, ignore_eos=True)
    short = {"grammar": grammar, "max_new_tokens": 8}
    plainly = model.generate(PROMPT, drafts=False, **short)
    assert model.generate(PROMPT, prediction=plainly.text, **short).token_ids == plainly.token_ids


@pytest.mark.parametrize("commit", ["canonical", "compact"])
@pytest.mark.parametrize("seconds", [0, -1])
def test_drafts_that_are_not_looked_at_change_no_token(
    session, vocabulary, prompt, monkeypatch, commit, seconds
):
    grammar = vocabulary.matcher(JsonSchema(PERSON))
    expected = tokens_of(plain(session, prompt, grammar=grammar, max_new_tokens=80))
    monkeypatch.setattr("coordgen_rs.text.grammar.matcher.LOOKING_S", seconds)
    right = lambda given: chain(expected[given : given + 6])  # noqa: E731
    drafters = [make_drafter(session, method, commit) for method in METHODS]
    drafters.append(ScriptedDrafter(make_drafter(session, [], commit), right))
    for drafter in drafters:
        steps = generate(session, prompt, drafter=drafter, grammar=grammar, max_new_tokens=80)
        assert tokens_of(steps) == expected


def test_what_is_no_grammar_is_refused(model, session, vocabulary, prompt):
    for wrong in ("[0-9]+", {"type": "object"}):
        with pytest.raises(OptionError, match="JsonSchema, Regex, Lark or Gbnf"):
            model.generate(PROMPT, grammar=wrong)
        with pytest.raises(OptionError, match=r"Vocabulary\.matcher"):
            next(generate(session, prompt, grammar=wrong))
    for schema in ([], 3, True, "[1", "3", {"a": float("nan")}, {"a": {1, 2}}):
        with pytest.raises(OptionError, match="JSON schema"):
            JsonSchema(schema)
    with pytest.raises(UnsupportedGrammarError, match="nothing to generate"):
        vocabulary.matcher(Regex(""))
    other = Vocabulary(Tokenizer.of(session.bundle), session.vocab_size + 64, [1])
    with pytest.raises(OptionError, match="vocabulary of"):
        next(plain(session, prompt, grammar=other.matcher(Regex("a"))))


def test_a_grammar_that_cannot_go_on_says_so_and_leaves_the_session_usable(
    session, vocabulary, prompt, monkeypatch
):
    grammar = vocabulary.matcher(Regex("[a-z]{20}"))

    def fails_later(path):
        filled = type(grammar).after(grammar, path)
        if len(grammar.seen) + len(path) >= 5:
            grammar.words[:] = 0
        return filled

    def extend(tokens):
        grammar.seen += tokens
        return type(grammar).extend(grammar, tokens)

    monkeypatch.setattr(grammar, "after", fails_later)
    monkeypatch.setattr(grammar, "extend", extend)
    for run in (generate, plain):
        grammar.seen = []
        with pytest.raises(GrammarError, match="no token of the vocabulary may follow"):
            tokens_of(run(session, prompt, grammar=grammar))
        assert session.length == len(prompt) - 1 + len(grammar.seen)
    monkeypatch.undo()
    assert len(tokens_of(generate(session, prompt, grammar=grammar))) > 0


@pytest.mark.parametrize("method", ["forced", "possible", "after", "extend"])
def test_what_a_grammar_raises_comes_out_as_it_is(session, vocabulary, prompt, monkeypatch, method):
    grammar = vocabulary.matcher(JsonSchema(PERSON))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(grammar, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        tokens_of(generate(session, prompt, grammar=grammar))


def test_pieces_with_bytes_follow_grammars(session_of):
    session = session_of("stories260K", "fp32")
    tokenizer, vocabulary = Tokenizer.of(session.bundle), vocabulary_of(session)
    prompt = tokenizer.encode("Once upon a time")
    for schema in ("a tool call", "an enum beyond ASCII", "an appointment", "a tuple"):
        grammar, stats = vocabulary.matcher(JsonSchema(FOLLOWED[schema])), Stats()
        got = drafted(session, prompt, grammar=grammar, max_new_tokens=200, stats=stats)
        assert stats.finish_reason in ("grammar", "stop")
        jsonschema.validate(json.loads(tokenizer.decode(got)), FOLLOWED[schema])


def test_pieces_that_cannot_spell_a_character_follow_what_they_can(session_of):
    session = session_of("TinyStories-656K", "fp32")  # has no braces, and no bytes
    tokenizer, vocabulary = Tokenizer.of(session.bundle), vocabulary_of(session)
    prompt = tokenizer.encode("Once upon a time")
    got = drafted(session, prompt, grammar=vocabulary.matcher(Regex("there was a [a-z]{3,8}")))
    assert tokenizer.decode(got).startswith("there was a ")
    for run in (generate, plain):
        with pytest.raises(GrammarError, match="cannot go on"):
            tokens_of(run(session, prompt, grammar=vocabulary.matcher(JsonSchema(PERSON))))


def test_a_folder_of_genai_follows_grammars(session, tmp_path):
    folder = open_session(write_folder(session.bundle, tmp_path / "folder"))
    tokenizer, grammar = Tokenizer.of(folder.bundle), JsonSchema(PERSON)
    got = drafted(folder, tokenizer.encode(PROMPT), grammar=vocabulary_of(folder).matcher(grammar))
    jsonschema.validate(json.loads(tokenizer.decode(got)), PERSON)
