"""Finished requests as logs have them: JSON lines and Parquet, with token ids or with text.

In: a file, and the names of its fields. Out: `Document`s, and of what is none, where it is and why.
It holds a line or a batch of rows in memory, and reads text with the tokenizer that is given.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import HistoryMismatchError, OptionError
from coordgen_rs.lab.fleet.lines import Line, read_lines
from coordgen_rs.lab.fleet.shard import Document
from coordgen_rs.store.history.exchange import FORMAT
from coordgen_rs.store.history.store import LAST_INSTANT
from coordgen_rs.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class FieldNames:
    """What the fields of a record are called.

    Attributes:
        prompt: Text that the model was given, its chat template included; may be missing.
        answer: Text that it said.
        token_ids: Prompt and answer as token ids; where a record has them, its text is not read.
        namespace: Its namespace, for example task and user.
        finished_at: Seconds since 1970, or a date and time in ISO 8601.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    token_ids: str = "token_ids"
    namespace: str = "namespace"
    finished_at: str = "finished_at"

    @classmethod
    def parse(cls, pairs: list[str]) -> "FieldNames":
        """The names that `answer=output` and the like give.

        Raises:
            OptionError: One is no such pair, or names no field.
        """
        known = [field.name for field in fields(cls)]
        given = {}
        for pair in pairs:
            field, _, name = pair.partition("=")
            if field not in known or not name:
                raise OptionError(
                    f"--fields has {pair!r}, but must be FIELD=NAME, where FIELD is one of "
                    f"{', '.join(known)}"
                )
            given[field] = name
        return cls(**given)


@dataclass(frozen=True)
class Reading:
    """How records are read.

    Attributes:
        bundle: The bundle whose tokenizer reads text.
        fingerprint: Identifies that tokenizer.
        vocab_size: Token ids are below it.
        names: The names of the fields.
        namespace: The namespace of records that do not name one.
    """

    bundle: Path
    fingerprint: str
    vocab_size: int
    names: FieldNames
    namespace: str


class NotARequestError(ValueError):
    """A record is not a finished request; the message says why."""


def read_documents(
    path: Path, reading: Reading, tokenizer: Tokenizer, on_bad: Callable[[str], None]
) -> Iterator[Document]:
    """The finished requests of a file.

    Args:
        path: A `.jsonl` or `.ndjson` file, plain, `.gz` or `.zst`, or a `.parquet` file.
        reading: How records are read.
        tokenizer: Reads records of text.
        on_bad: Called with what is no request: `FILE:LINE: why`. May raise.

    Raises:
        HistoryMismatchError: It is an exported history of another tokenizer.
        HistoryError: The file cannot be opened.
        OptionError: It is of another kind, or a package for this kind is missing.
    """
    wanted = [getattr(reading.names, field.name) for field in fields(FieldNames)]
    for line in read_lines(path, wanted):
        if line.error is None and _is_header(line):
            _check_header(line, reading)
            continue
        try:
            yield _document(line, reading, tokenizer)
        except NotARequestError as error:
            on_bad(f"{line.where}: {error}")


def _document(line: Line, reading: Reading, tokenizer: Tokenizer) -> Document:
    if line.error is not None:
        raise NotARequestError(line.error)
    record, names = line.value, reading.names
    if not isinstance(record, dict):
        raise NotARequestError("not an object")
    namespace = record.get(names.namespace)
    if namespace is None:
        namespace = reading.namespace
    if not isinstance(namespace, str) or not namespace:
        raise NotARequestError(f"{names.namespace} is {namespace!r:.60}, not text")
    finished_at = _seconds(record.get(names.finished_at), names.finished_at)
    if record.get(names.token_ids) is not None:
        token_ids = _token_ids(record[names.token_ids], names.token_ids, reading.vocab_size)
    else:
        token_ids = _encoded(record, names, tokenizer, reading.vocab_size)
    if not len(token_ids):
        raise NotARequestError("it has no tokens")
    return Document(namespace, finished_at, token_ids)


def _encoded(
    record: dict[str, Any], names: FieldNames, tokenizer: Tokenizer, vocab_size: int
) -> NDArray[np.uint32]:
    answer, prompt = record.get(names.answer), record.get(names.prompt)
    if answer is None:
        raise NotARequestError(f"it has neither {names.token_ids} nor {names.answer}")
    for name, text in ((names.answer, answer), (names.prompt, prompt)):
        if not isinstance(text, str | None):
            raise NotARequestError(f"{name} is not text")
    parts = [tokenizer.encode(answer, special_tokens=False)]
    if prompt:
        parts.insert(0, tokenizer.encode(prompt))
    token_ids = np.concatenate(parts)
    if len(token_ids) and token_ids.max() >= vocab_size:
        raise NotARequestError(f"its text has a token outside the vocabulary of {vocab_size}")
    return token_ids


def _token_ids(value: Any, name: str, vocab_size: int) -> NDArray[np.uint32]:
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise NotARequestError(f"{name} are not integers") from error
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise NotARequestError(f"{name} are not integers")
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < vocab_size:
        raise NotARequestError(f"{name} are outside the vocabulary of {vocab_size}")
    return found.astype(np.uint32)


def _seconds(value: Any, name: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise NotARequestError(f"{name} is {value!r:.60}, not a date and time") from error
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotARequestError(f"{name} is {value!r:.60}, not a time")
    if not 0 <= value < LAST_INSTANT:
        raise NotARequestError(f"{name} is {value}, not seconds since 1970")
    return float(value)


def _is_header(line: Line) -> bool:
    return line.is_first and isinstance(line.value, dict) and line.value.get("format") == FORMAT


def _check_header(line: Line, reading: Reading) -> None:
    """Refuse the token ids of another tokenizer.

    Raises:
        HistoryMismatchError: They are.
    """
    found = (line.value.get("fingerprint"), line.value.get("vocab_size"))
    if found != (reading.fingerprint, reading.vocab_size):
        raise HistoryMismatchError(
            f"{line.where}: exported from a history of another tokenizer: its fingerprint and "
            f"vocabulary size are {found[0]!r:.80} and {found[1]!r:.20}, not "
            f"{reading.fingerprint!r} and {reading.vocab_size}"
        )
