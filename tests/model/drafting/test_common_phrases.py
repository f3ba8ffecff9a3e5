"""Common phrases and spellings in the tokens of a tokenizer, and drafts from them."""

import json

import numpy as np
import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Package

from checkpoints import CHECKPOINTS
from coordgen_rs import make_drafter
from coordgen_rs._core import Drafter, PhraseTable
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError, OptionError, ShapeError
from coordgen_rs.generation.drafting.common_phrases import phrase_table_at, spellings
from coordgen_rs.loading.session import open_session
from coordgen_rs.text.tokenizer import Tokenizer
from core_subjects import step_inputs

QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PROSE = "x in case of the emergency, it is one of the most important parts of the table. " * 20


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    """Merged bytes, as in today's tokenizers: common words are one token, others several."""
    package = Package(models.BPE())
    package.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    package.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    package.train_from_iterator(
        [PROSE], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    path = tmp_path_factory.mktemp("phrases") / "tokenizer.json"
    package.save(str(path))
    return path


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file):
    return Tokenizer(tokenizer_file)


def drafted(tokenizer, phrases, text, depth=1):
    """The tokens of a draft behind a text from phrases alone, and their parents."""
    sources = {"sources": ["common-phrases"], "phrases": phrases}
    drafter = Drafter([step_inputs(8)], tokenizer.vocab_size, **sources)
    prompt = tokenizer.encode(text, special_tokens=False)
    drafter.begin(prompt, 50)
    drafter.propose(len(prompt) - 1)
    return drafter.draft


def test_a_word_of_several_tokens_is_drafted_whole(tokenizer):
    lines = [[" some", 9, {" emergency": 3, " table": 2}]]
    pieces = tokenizer.encode(" emergency", special_tokens=False)
    table = _table_of(lines, tokenizer)
    token_ids, parents = drafted(tokenizer, table, "x some")
    place = 0
    for token in pieces:  # the word is unlikely, but not its second token behind the first
        [place] = np.flatnonzero((parents == place) & (token_ids == token))[:1]


def _table_of(lines, tokenizer):
    """A table of other lines than the package's."""
    from coordgen_rs.generation.drafting import common_phrases

    words = {word for *context, _, nexts in lines for word in (*context, *nexts)}
    tokens = common_phrases._tokens(tokenizer, sorted(words))
    return common_phrases._table(lines, tokens, spellings({}))


def test_contexts_of_the_same_tokens_count_as_often_as_they_are_said(tokenizer_file, tmp_path):
    lowered = json.loads(tokenizer_file.read_text("utf-8"))
    lowered["normalizer"] = {"type": "Lowercase"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(lowered), "utf-8")
    tokenizer = Tokenizer(path)
    lines = [[" of", 30, {" the": 80}], [" OF", 10, {" the": 40}]]
    token_ids, parents = drafted(tokenizer, _table_of(lines, tokenizer), "x of")
    assert tokenizer.decode(token_ids[1:2]) == " the"
    halves = [[" of", 30, {" the": 80}], [" OF", 30, {" case": 80}]]
    token_ids, parents = drafted(tokenizer, _table_of(halves, tokenizer), "x of")
    first = {tokenizer.decode([token]) for token in token_ids[1:][parents[1:] == 0]}
    assert first == {" the", " case"}, "neither is a certainty"


@pytest.mark.parametrize(
    "text", [" def f(x):\n    return self", " case.\n\nThe table", " it's (one) of 10", "\n- parts"]
)
def test_words_are_cut_as_tokenizers_cut_texts(tokenizer_file, tmp_path, text):
    from common_phrases import make
    from coordgen_rs.generation.drafting import common_phrases as package

    written = Package.from_file(str(tokenizer_file))
    written.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    written.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    words = make.WORD.findall(text)
    assert "".join(words) == text
    found = package._tokens(tokenizer, sorted(set(words)))
    joined = [token for word in words for token in found[word]]
    assert joined == tokenizer.encode("x" + text, special_tokens=False).tolist()[1:]


def test_the_table_of_a_file_is_made_once_until_the_file_is_another(tokenizer_file, tmp_path):
    copied = tmp_path / "tokenizer.json"
    copied.write_bytes(tokenizer_file.read_bytes())
    made = phrase_table_at(copied)
    assert phrase_table_at(copied) is made
    assert 1_000 < made.num_contexts < 40_000
    assert made.memory_bytes() < 2_000_000
    written = json.loads(copied.read_text("utf-8"))
    written["model"]["merges"] = written["model"]["merges"][:10]
    copied.write_text(json.dumps(written), "utf-8")
    assert phrase_table_at(copied) is not made
    copied.write_text("{}", "utf-8")
    with pytest.raises(BundleError, match="not a readable tokenizer"):
        phrase_table_at(copied)
    copied.unlink()
    with pytest.raises(BundleError, match="cannot be read"):
        phrase_table_at(copied)


def test_a_tokenizer_that_cannot_do_the_words_has_an_empty_table(tmp_path):
    path = tmp_path / "tokenizer.json"
    Package(models.WordLevel({"yes": 0, "no": 1}, unk_token="?")).save(str(path))
    with pytest.raises(BundleError):
        Tokenizer(path).encode("some of the")
    assert phrase_table_at(path).num_contexts == 0


def test_arrays_that_do_not_fit_each_other_are_refused():
    ids, chances = np.array([1], np.uint32), np.array([0.5], np.float32)
    none = np.zeros(0, np.uint32)
    for arrays in ((none, ids, ids), (ids, none, ids), (ids, ids, none)):
        with pytest.raises(ShapeError):
            PhraseTable(*arrays, chances)
    for chance in (-0.5, 1.5, np.nan):
        with pytest.raises(OptionError, match="chance of a phrase"):
            PhraseTable(ids, ids, ids, np.array([chance], np.float32))
    for wrong in (chances.astype(np.float64), chances[None], [0.5]):
        with pytest.raises(ShapeError, match="chances must"):
            PhraseTable(ids, ids, ids, wrong)
    with pytest.raises(ShapeError, match="before must"):
        PhraseTable(chances, ids, ids, chances)
    for wrong in (ids, np.zeros((1, 3), np.uint32), np.zeros((1, 2), np.int64)):
        for name in ("line_ends", "spaced", "cased"):
            with pytest.raises(ShapeError, match=f"{name} must"):
                PhraseTable(ids, ids, ids, chances, **{name: wrong})


def test_sources_that_need_a_table_are_refused_without_one():
    with pytest.raises(OptionError, match="without a table of phrases"):
        Drafter([step_inputs(4)], 100, sources=["common-phrases"])
    with pytest.raises(OptionError, match="without a table of spellings"):
        Drafter([step_inputs(4)], 100, sources=["respelling"])


def test_a_drafter_of_a_bundle_drafts_from_common_phrases(tmp_path):
    from coordgen_rs.convert import export_checkpoint

    export_checkpoint(CHECKPOINTS["embedded"], tmp_path / "bundle", context=256, prefill_rows=32)
    with_phrases = open_session(tmp_path / "bundle")
    try:
        drafter = make_drafter(with_phrases)
        prompt = Tokenizer.of(Bundle.open(tmp_path / "bundle")).encode("because of")
        drafter.begin(prompt, 20)
        drafter.propose(len(prompt) - 1)
        assert {"common-phrases", "respelling"} < set(drafter.per_source)
        # Without a tokenizer tokens are drafted all the same, but for who asks for phrases by name.
        (tmp_path / "bundle" / "tokenizer.json").unlink()
        without = make_drafter(with_phrases).per_source
        assert {"common-phrases", "respelling"}.isdisjoint(without)
        for name in ("common-phrases", "respelling"):
            with pytest.raises(OptionError, match="without a table of"):
                make_drafter(with_phrases, [name])
    finally:
        with_phrases.close()


MERGED = ["go", "Ġgo", "Go", "ĠGo", ">", ">ĊĊ", "Ġ>Ċ", "ĠĊ", "Ċ", "Ġ", "ĠÉt", "Ét", "GO"]
PIECES = ["▁go", "go", "▁Go", "<0x0A>", "▁", ".", ".\n"]


def named(vocabulary, pairs):
    return [tuple(vocabulary[token] for token in pair) for pair in pairs.tolist()]


@pytest.mark.parametrize(
    ("vocabulary", "line_ends", "spaced"),
    [
        (MERGED, {(">ĊĊ", ">")}, {("Ġgo", "go"), ("ĠGo", "Go"), ("ĠÉt", "Ét"), ("ĠĊ", "Ċ")}),
        (PIECES, {(".\n", ".")}, {("▁go", "go")}),
        ([], set(), set()),
    ],
)
def test_pairs_are_those_of_the_vocabulary(vocabulary, line_ends, spaced):
    found = spellings({text: token for token, text in enumerate(vocabulary)})
    assert set(named(vocabulary, found.line_ends)) == line_ends
    turned_round = {(other, one) for one, other in spaced}
    assert set(named(vocabulary, found.spaced)) == spaced | turned_round
    assert len(found.cased) > 0 or not vocabulary


def test_a_word_in_another_case_stands_behind_the_same_space_first():
    found = spellings({text: token for token, text in enumerate(MERGED)})
    cased = named(MERGED, found.cased)
    for one, same, other in (("go", "Go", "ĠGo"), ("ĠGo", "Ġgo", "go"), ("Go", "go", "Ġgo")):
        assert [pair[1] for pair in cased if pair[0] == one] == [same, other]
    assert not any("É" in one for pair in cased for one in pair), "bytes have no case"


def drafted_alike(prompt, **pairs):
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


def test_tokens_that_are_alike_are_drafted_for_each_other():
    prompt, line = [1, 5, 6, 7, 2, 3, 4, 15], [1, 2, 3, 8, 4, 1, 2, 3]
    assert drafted_alike(prompt)[1] != (6, 0)
    for kind in ("spaced", "cased"):
        assert drafted_alike(prompt, **{kind: [(15, 5)]})[1] == (6, 0)
    assert (9, 0) not in drafted_alike(line)
    assert (9, 0) in drafted_alike(line, line_ends=[(8, 9)])
    assert (200, 0) not in drafted_alike(line, line_ends=[(8, 200)])
