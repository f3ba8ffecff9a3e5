"""Texts that a float model reads before its weights are rounded.

In: a file of the user's own, or nothing. Out: token ids, some for calibration and some held out,
and what the first layer reads of them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.errors import ChatTemplateError, CheckpointError, OptionError
from coordgen_rs.errors.json_text import JsonTextError, read_bytes, read_json_lines
from coordgen_rs.text.chat_template import ChatTemplate, Message

Array = NDArray[np.float32]

_MOST_PIECES = 64
_MOST_BYTES = 64 << 20
_PIECE_LEN = 256
_HELD_OUT = 4
"""Every fourth piece is held out."""

_FIELDS = ("text", "prompt", "answer", "output")

_OWN: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
"""Texts of our own: some to calibrate with, and others that nothing is calibrated on."""


@dataclass(frozen=True)
class CalibrationTexts:
    """Token ids of all pieces, each at least one token."""

    calibration: list[list[int]]
    held_out: list[list[int]]
    """Not used for calibration; texts of our own where there is a single piece."""
    holds_out_own: bool = False

    @property
    def given(self) -> list[list[int]]:
        """All pieces of the file, without texts of our own."""
        return self.calibration if self.holds_out_own else [*self.calibration, *self.held_out]


def texts_for(source: Checkpoint, path: Path | None, *, is_chat: bool = False) -> CalibrationTexts:
    """A calibration file, or some texts of our own, as a checkpoint's tokens.

    Pieces have at most 256 tokens.

    Args:
        source: The checkpoint.
        path: The file; see `read_texts`.
        is_chat: Whether messages, and prompts with what answers them, go through the checkpoint's
            chat template, as they do when the model is used; also the texts of our own, as
            prompts. Without a template, they are plain text.

    Raises:
        OptionError: The file cannot be used, see `read_texts`.
        CheckpointError: The tokenizer is missing or damaged.
    """
    encode, piece_len = _encoder(source)
    return read_texts(path, encode, piece_len, _template(source) if is_chat else None)


def other_texts(source: Checkpoint) -> list[list[int]]:
    """Short English texts that are never calibrated on, as a checkpoint's tokens.

    Raises:
        CheckpointError: The tokenizer is missing or damaged.
    """
    encode, piece_len = _encoder(source)
    return _others(encode, piece_len)


def first_states(source: Checkpoint, texts: Sequence[Sequence[int]]) -> Array:
    """The embedding of all tokens of some texts, one after the other: `(tokens, D)`.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    tensor = source.first_hidden_tensor()
    unique, places = np.unique(np.concatenate(texts).astype(np.int64), return_inverse=True)
    rows = np.concatenate([tensor.read_rows(token, token + 1) for token in unique.tolist()])
    states: Array = rows[places]
    return states


def by_text(states: Array, texts: Sequence[Sequence[int]]) -> list[Array]:
    """The states of each text, `(tokens, D)` each, of those of all texts."""
    return np.split(states, np.cumsum(list(map(len, texts)))[:-1])


def check_finite(number: int, states: Iterable[Array]) -> None:
    """Refuse what a layer gives on a text, if that cannot be gone on from.

    Raises:
        CheckpointError: Something is NaN or infinite.
    """
    if not all(np.isfinite(it).all() for it in states):
        raise CheckpointError(
            f"layer {number} gives NaN or infinite values on the calibration text"
        )


def _others(encode: Callable[[str], Sequence[int]], piece_len: int) -> list[list[int]]:
    return [piece for text in _OWN["held_out"] for piece in _pieces(encode(text), piece_len)]


def _encoder(source: Checkpoint) -> tuple[Callable[[str], Sequence[int]], int]:
    """A function from text to token ids, and the most of them that are read at a stretch."""
    tokenizer = Tokenizer.from_str(source.read_tokenizer())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    piece_len = min(_PIECE_LEN, source.config.max_positions)

    def encode(text: str) -> Sequence[int]:
        has_all = isinstance(text, _Rendered)
        return tokenizer.encode(text, add_special_tokens=not has_all).ids

    return encode, piece_len


def _pieces(ids: Sequence[int], piece_len: int) -> list[list[int]]:
    return [list(ids[start : start + piece_len]) for start in range(0, len(ids), piece_len)]


class _Rendered(str):
    """A text that holds all its special tokens."""


def _template(source: Checkpoint) -> ChatTemplate | None:
    try:
        template = source.read_chat().template()
        template.check()
    except ChatTemplateError:  # it has none
        return None
    return template


def read_texts(
    path: Path | None,
    encode: Callable[[str], Sequence[int]],
    piece_len: int,
    template: ChatTemplate | None = None,
) -> CalibrationTexts:
    """Read a calibration file, or take some texts of our own.

    Args:
        path: Lines of JSON (`.jsonl`), each a string, or an object with some of the fields `text`,
            `prompt`, `answer` and `output`, which are one text together, or `messages` with a
            `content` each; or any other UTF-8 text. Lines are read until there are enough pieces.
            None takes four short English texts.
        encode: Turns a text into token ids.
        piece_len: Most tokens that are read at a stretch.
        template: What messages, prompts and answers go through.

    Raises:
        OptionError: The file cannot be read, is malformed, or holds no text.
    """
    texts: Iterable[str] = _OWN["calibration"]
    if path is not None:
        texts = _read(path, template)
    elif template is not None:
        texts = [_rendered([{"role": "user", "content": it}], template) for it in texts]
    # A piece that occurs again teaches nothing, and would be calibrated on and held out at once.
    found, has_text = dict[tuple[int, ...], None](), False
    for text in texts:
        has_text |= bool(text.strip())
        found |= dict.fromkeys(map(tuple, _pieces(encode(text), piece_len)))
        if has_text and len(found) >= _MOST_PIECES:
            break  # the file may be of any length
    if not has_text:
        raise OptionError(f"calibration file {path} holds no text")
    pieces = [list(piece) for piece in found][:_MOST_PIECES]
    if not pieces:
        of = "the project's own texts give" if path is None else f"calibration file {path} gives"
        raise OptionError(f"{of} no token to calibrate on")
    if len(pieces) == 1:  # to be compared with itself would flatter it
        return CalibrationTexts(pieces, _others(encode, piece_len), holds_out_own=True)
    held_out = pieces[_HELD_OUT - 1 :: _HELD_OUT] or pieces[-1:]
    return CalibrationTexts([piece for piece in pieces if piece not in held_out], held_out)


def _read(path: Path, template: ChatTemplate | None) -> Iterator[str]:
    """The texts of a calibration file, which is read as far as they are asked for.

    Raises:
        OptionError: It cannot be read, or is malformed.
    """
    try:
        if path.suffix != ".jsonl":
            yield read_bytes(path, most_bytes=_MOST_BYTES).decode("utf-8-sig")
            return
        for number, item in read_json_lines(path, most_line_bytes=_MOST_BYTES):
            yield _text(item, f"{path}, line {number}", template)
    except JsonTextError as error:
        raise OptionError(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"calibration file {path} cannot be read: {error}") from error


def _text(item: Any, where: str, template: ChatTemplate | None) -> str:
    messages = None if template is None else _messages(item)
    if template is not None and messages:
        return _rendered(messages, template)
    parts = [item.get(name) for name in _FIELDS] if isinstance(item, dict) else [item]
    strings = [part for part in parts if isinstance(part, str)]
    text = "".join(strings) or "\n".join(_contents(item))
    if not text and not strings:
        raise OptionError(f"{where} holds no text")
    return text


def _rendered(messages: list[Message], template: ChatTemplate) -> str:
    """A dialogue as the model reads it; as plain text where the template refuses it."""
    try:
        return _Rendered(template.render(messages, add_generation_prompt=False))
    except (ChatTemplateError, OptionError):
        return "\n".join(str(message["content"]) for message in messages)


def _messages(item: Any) -> list[Message]:
    """A dialogue: `messages`, or `prompt` with `answer` or `output`; empty if it is none."""
    if not isinstance(item, dict):
        return []
    messages = item.get("messages")
    if isinstance(messages, list):
        return messages if len(_contents(item)) == len(messages) else []
    said = [("user", item.get("prompt")), ("assistant", item.get("answer", item.get("output")))]
    return [{"role": who, "content": what} for who, what in said if isinstance(what, str)]


def _contents(item: Any) -> list[str]:
    """What is said in the messages of a chat, if it is one."""
    messages = item.get("messages") if isinstance(item, dict) else None
    said = messages if isinstance(messages, list) else []
    contents = [message.get("content") for message in said if isinstance(message, dict)]
    return [content for content in contents if isinstance(content, str)]
