"""A tokenizer.json: any file is refused by name, or turns text to ids and back.

The `tokenizers` package reads it and does the work; what is fuzzed is whether what it does with
files of any kind stays behind our own errors.
"""

from coordgen_rs.errors import CoordgenError
from coordgen_rs.text.tokenizer import Tokenizer
from scratch import holding

IS_JSON = True
_TEXTS = ("Once upon a time", "a  b\n\tc é漢🦀", "<s></s>\x00\ufeff", "")


def run(data: bytes) -> None:
    """Open the file; encode, decode and stream some texts."""
    try:
        tokenizer = Tokenizer(holding("tokenizer.json", data))
        size = tokenizer.vocab_size
        for text in _TEXTS:
            ids = tokenizer.encode(text)
            assert ids.dtype == "uint32"
            assert ids.ndim == 1
            tokenizer.decode(ids.tolist())
            stream = tokenizer.stream()
            for token_id in ids.tolist():
                assert isinstance(stream(token_id), str)
        for token_id in (0, size - 1 if size else 0, size, 2**32 - 1):
            assert isinstance(stream(token_id), str)
        tokenizer.token(size)
    except CoordgenError:
        return
