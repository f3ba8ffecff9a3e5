"""GBNF, read as llama.cpp reads it: an answer may be each of its texts, and no other."""

import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")

from coordgen_rs import Gbnf
from coordgen_rs.errors import CoordgenError, GrammarError, OptionError, UnsupportedGrammarError
from coordgen_rs.text.grammar.kinds import MOST_GBNF_CHARS

END = 1
ARITHMETIC = r"""
root  ::= (expr "=" term "\n")+  # as in llama.cpp's own examples
expr  ::= term ([-+*/] term)*
term  ::= num | "(" expr ")"
num   ::= [0-9]+
"""


def is_accepted(vocabulary, tokenizer, grammar, text):
    matcher = vocabulary.matcher(Gbnf(grammar))
    matcher.begin()
    try:
        matcher.extend(tokenizer.encode(text, special_tokens=False).tolist())
    except GrammarError:
        return False
    matcher.after([])
    return bool(matcher.words[END // 32] >> (END % 32) & 1)


@pytest.mark.parametrize(
    ("grammar", "accepted", "refused"),
    [
        ('root ::= word "x"\nword ::= [a-z]+', ["abx", "axbx", "xx"], ["x", "ab"]),
        ('root ::= ("a" | "ab") "bc"', ["abc", "abbc"], ["ab", "bc"]),
        (
            'root ::= "a"? |\n  item{2,3}\nitem ::= "- " [^\\n]* "\\n"',
            ["a", "- b\n- \n"],
            ["- a\n"],
        ),
        ('root ::= "\\u00e9" | "\\x41" | [\\U00000061-c]', ["é", "A", "b"], ["e", "d"]),
        ('root ::= [^"/&]+ ["\\]\\\\-]', ['a"', "b]", "c\\", "d-"], ['"', "&]", "a"]),
        ('root ::= . "x"', ["\nx", "日x"], ["x"]),
        (ARITHMETIC, ["1+2=3\n", "(1-2)*3=4\n5=5\n"], ["1+=2\n", "1"]),
    ],
)
def test_a_grammar_accepts_what_llama_cpp_accepts(
    vocabulary, tokenizer, grammar, accepted, refused
):
    for text in accepted:
        assert is_accepted(vocabulary, tokenizer, grammar, text), text
    for text in refused:
        assert not is_accepted(vocabulary, tokenizer, grammar, text), text


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("", "no rule root"),
        ('start ::= "a"', "no rule root"),
        ("root ::= other", "no rule other"),
        ('root ::= "', "line 1"),
        ('root := "a"', "line 1"),
        ('root ::= "\\', "cannot be read"),
        ("root ::= " + "(" * 5000, "nested too deep"),
        ('root ::= "\\U00ffffff"', "no character"),
        ('root ::= "\\ud800"', "no character"),
        ("root ::= []", "cannot be followed"),
        ('root ::= "' + "a" * MOST_GBNF_CHARS, "may have"),
    ],
)
def test_a_grammar_that_cannot_be_read_is_told_in_a_line(vocabulary, grammar, said):
    with pytest.raises(UnsupportedGrammarError, match=said) as raised:
        vocabulary.matcher(Gbnf(grammar))
    assert "\n" not in str(raised.value)


def test_a_grammar_is_a_text():
    with pytest.raises(OptionError):
        Gbnf(5)
    assert issubclass(OptionError, CoordgenError)
