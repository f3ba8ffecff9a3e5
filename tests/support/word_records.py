"""Records of words: a tokenizer of one token a word, and a file of sets of which one is absent."""

import json

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

SETS = """\
[sets]
one = { file = "one.jsonl", tokenizer = "words", template = "none" }
two = { file = "two.jsonl", tokenizer = "words", template = "none" }
"""


def write_tokenizer(folder, words):
    """Write a `tokenizer.json` whose ids are the places of the words, the last for all others."""
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=words[-1]))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_records(path, lines):
    """Write JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
