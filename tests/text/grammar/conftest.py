"""The embedded model's tokens, with which grammars are tried."""

import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs import Tokenizer, Vocabulary


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(CHECKPOINTS["embedded"] / "tokenizer.json")


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    """With a token that ends answers, 1."""
    return Vocabulary(tokenizer, tokenizer.vocab_size, [1])
