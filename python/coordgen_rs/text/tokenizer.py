"""Text to token ids and back, by the `tokenizers` package."""

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HuggingFaceTokenizer

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.json_text import read_bytes
from coordgen_rs.errors import BundleError, arguments
from coordgen_rs.text.begin_token import add_begin_token
from coordgen_rs.text.package_errors import package_errors_as
from coordgen_rs.text.pieces import TextPieces
from coordgen_rs.text.token_bytes import TokenBound, token_bound
from coordgen_rs.text.token_spelling import TokenSpelling

_MOST_BYTES = 512 << 20

_LONG = 1024
"""Characters or tokens from which on the interpreter's lock is let go of: only the package's calls
for batches do so, which also leave out offsets and take half of the time."""


class Tokenizer:
    """A tokenizer file.

    Truncation and padding that the file asks for are turned off: fine-tuned checkpoints often keep
    those of their training, and the model must see the whole prompt and nothing else.

    Args:
        path: A `tokenizer.json`.

    Raises:
        BundleError: The file is missing, or not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors("is not a readable tokenizer"):
            text = read_bytes(path, most_bytes=_MOST_BYTES).decode("utf-8-sig")
            self._tokenizer = HuggingFaceTokenizer.from_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def of(cls, bundle: Bundle) -> Self:
        """The tokenizer of a bundle.

        Raises:
            BundleError: It cannot be read, or lacks the begin token that the bundle asks for.
        """
        tokenizer = cls(bundle.file(bundle.manifest.tokenizer))
        if bundle.tokenizer_config is not None:
            config = bundle.file(bundle.tokenizer_config)
            add_begin_token(tokenizer._tokenizer, config, BundleError)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size())

    def vocabulary(self) -> dict[str, int]:
        """The vocabulary's strings and their ids, added tokens left out."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=False)
        return found

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`, truncation and padding off.

        Raises:
            BundleError: It cannot be written, for what its file says.
        """
        with self._errors("cannot be written"):
            return str(self._tokenizer.to_str())

    def token(self, token_id: int) -> str | None:
        """The vocabulary's string for `token_id`; None if it has none."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    @cached_property
    def spelling(self) -> TokenSpelling:
        """The bytes of each token. The first time takes a while."""
        return TokenSpelling(json.loads(self.to_json()), self.vocabulary())

    def token_id(self, token: str) -> int | None:
        """The id of `token`, one of the vocabulary's strings; None if it has no such one."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, text: str, *, special_tokens: bool = True) -> NDArray[np.uint32]:
        """Token ids `(tokens,) u32` of a text.

        Args:
            text: Any text.
            special_tokens: Whether to add those that the tokenizer puts around a text, such as the
                begin token.

        Raises:
            OptionError: The text holds half of a surrogate pair, so it is not valid Unicode.
            BundleError: The tokenizer cannot do this text, for what its file says.
        """
        valid = arguments.text("the text", text)
        with self._errors("cannot encode the text"):
            if len(valid) < _LONG:
                encoding = self._tokenizer.encode(valid, add_special_tokens=special_tokens)
            else:
                [encoding] = self._tokenizer.encode_batch_fast(
                    [valid], add_special_tokens=special_tokens
                )
        return np.asarray(encoding.ids, np.uint32)

    def encode_each(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each of many short texts, without those that are put around a text.

        Raises:
            BundleError: The tokenizer cannot do these texts, for what its file says.
        """
        with self._errors("cannot encode the texts"):
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    @cached_property
    def bound(self) -> TokenBound | None:
        """How much text a token can stand for; None for any. The first time takes a while."""
        return token_bound(json.loads(self.to_json()))

    def least_tokens(self, text: str) -> int:
        """How many tokens a text has at least, found without tokenizing it; 0 if nobody knows.

        Raises:
            OptionError: The text holds half of a surrogate pair, so it is not valid Unicode.
        """
        valid = arguments.text("the text", text)
        return 0 if self.bound is None else self.bound.least_tokens(valid)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of `token_ids`, without special tokens.

        Raises:
            BundleError: The tokenizer cannot do these ids, for what its file says.
        """
        with self._errors("cannot decode the tokens"):
            ids = list(token_ids)
            if len(ids) < _LONG:
                return str(self._tokenizer.decode(ids, skip_special_tokens=True))
            return str(self._tokenizer.decode_batch([ids], skip_special_tokens=True)[0])

    def added_tokens(self) -> dict[str, int]:
        """Tokens that were added to the vocabulary, special or not, with their ids."""
        found = self._tokenizer.get_added_tokens_decoder()
        return {str(token.content): int(token_id) for token_id, token in found.items()}

    def stream(self, *, shown: Iterable[str] = ()) -> Callable[[int], str]:
        """A function that takes one id at a time and returns the text that is now certain.

        Args:
            shown: Special tokens that appear in the text; all others are left out.

        A character of several tokens appears with its last one. Pieces join to `decode`, with two
        exceptions: a last character that the tokens leave incomplete does not appear, and after
        bytes that are no character, which appear as U+FFFD, what was given out stays as it is,
        although `decode` of some tokenizers then also shows the bytes before them as U+FFFD.
        It raises BundleError where the tokenizer cannot do a token, for what its file says.
        """
        pieces = TextPieces(self.decode)
        known = self._special_tokens
        texts = {known[text]: text for text in shown if text in known}
        if not texts:
            return pieces
        return lambda token: texts[token] if token in texts else pieces(token)

    @cached_property
    def _special_tokens(self) -> dict[str, int]:
        found = self._tokenizer.get_added_tokens_decoder()
        return {str(one.content): int(token) for token, one in found.items() if one.special}

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return package_errors_as(BundleError, f"{self._path} {what}")
