"""Text to token ids and back, by the `tokenizers` package.

The begin token of a prompt: the `bos_token_id` of config.json decides nothing, as Qwen2 has one,
and no prompt begins with it. What counts is the post-processor of tokenizer.json, and
`add_bos_token` of tokenizer_config.json, on which transformers builds one where the file has none.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.processors import TemplateProcessing

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError, CoordgenError, arguments
from coordgen_rs.errors.json_text import JsonTextError, read_bytes, read_json
from coordgen_rs.text.token_bytes import TokenBound, TokenSpelling, token_bound

_MOST_BYTES = 512 << 20
_MOST_CONFIG_BYTES = 64 << 20

_LONG = 1024
"""Characters or tokens from which on the interpreter's lock is let go of: only the package's calls
for batches do so, which also leave out offsets and take half of the time."""


_BROKEN = "\ufffd"
_MOST_WAITING = 4
"""Tokens that a character can have: one a byte. The first of more is broken whatever follows."""

_LONG_CONTEXT, _LONGEST_CONTEXT = 2, 64
"""Tokens. Decoding takes a microsecond a token, and cutting the context takes one decoding more."""


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


class TextPieces:
    """The text of tokens, piece by piece.

    A character of several tokens comes with its last one. Bytes that are no character come as
    U+FFFD as soon as no token can complete them; at the end of the tokens they do not come at all.

    Args:
        decode: The text of some token ids at once.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # given out: what follows may be written otherwise after it
        self._before = ""  # its text
        self._waiting: list[int] = []

    def __call__(self, token_id: int) -> str:
        """Take the next token; return the text that is now certain, maybe none."""
        self._waiting.append(token_id)
        taken = self._waiting
        whole = self._decode(self._context + taken)
        if whole.endswith(_BROKEN) and _BROKEN in self._decode([token_id]):
            if len(taken) < _MOST_WAITING:
                return ""
            taken = taken[:1]
            whole = self._decode(self._context + taken)
        self._waiting = self._waiting[len(taken) :]
        return self._given(taken, whole)

    def _given(self, taken: list[int], whole: str) -> str:
        """The text of tokens, which become context; `whole` is that of the context and them."""
        if not whole.startswith(self._before):  # taken back: they are read alone
            self._context, self._before = taken, self._decode(taken)
            return self._before
        text = whole[len(self._before) :]
        if text and len(self._context) >= _LONG_CONTEXT:
            self._context, self._before = taken, self._decode(taken)
        elif text or len(self._context) < _LONGEST_CONTEXT:
            self._context, self._before = self._context + taken, whole
        return text


def add_begin_token(
    tokenizer: HuggingFaceTokenizer, config: Path, error: type[CoordgenError]
) -> bool:
    """Put the begin token before texts, where only tokenizer_config.json asks for it.

    Args:
        tokenizer: Left as it is where it has a post-processor, or no begin token is asked for.
        config: A tokenizer_config.json; it may be missing.
        error: What to raise.

    Returns:
        Whether the tokenizer was changed.

    Raises:
        CoordgenError: `error`: the file is damaged, or the begin token is unknown.
    """
    if tokenizer.post_processor is not None:
        return False
    token = _begin_token(config, error)
    if token is None:
        return False
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise error(f"{config.with_name('tokenizer.json')} lacks the begin token {token!r:.60}")
    tokenizer.post_processor = TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, token_id)]
    )
    return True


def _begin_token(path: Path, error: type[CoordgenError]) -> str | None:
    """The token that tokenizer_config.json puts before a text, if any.

    Raises:
        CoordgenError: `error`: the file is damaged, or does not say which token.
    """
    if not path.exists():
        return None
    try:
        config: Any = read_json(path, most_bytes=_MOST_CONFIG_BYTES, long_integers=True)
    except (JsonTextError, OSError) as cause:
        raise error(f"{path} cannot be read: {cause}") from cause
    if not isinstance(config, dict) or config.get("add_bos_token") is not True:
        return None
    token = config.get("bos_token")
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str):
        raise error(f"{path}: add_bos_token is true, but bos_token is {name!r:.60}")
    return name


@contextmanager
def package_errors_as(error_class: type[CoordgenError], message: str) -> Iterator[None]:
    """Raise `error_class` where the package fails, with `message` before what it says.

    It raises bare Exception, and panics on some files.

    Raises:
        CoordgenError: The package failed; it is an `error_class`.
        MemoryError: Passed on, it is the machine's.
        OverflowError: Passed on, the caller's argument is at fault.
        TypeError: Passed on, the caller's argument is at fault.
    """
    try:
        yield
    except (MemoryError, OverflowError, TypeError):  # of the machine, or the caller's arguments
        raise
    except Exception as error:
        raise error_class(f"{message}: {error}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is no Exception, nor importable
            raise
        raise error_class(f"{message}: {error}") from error
