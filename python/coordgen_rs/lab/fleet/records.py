"""Finished requests as logs have them: JSON lines and Parquet, with token ids or with text.

In: a file, and the names of its fields. Out: `Document`s, and of what is none, where it is and why.
It holds a line or a batch of rows in memory, and reads text with the tokenizer that is given.
"""

import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import HistoryError, HistoryMismatchError, OptionError
from coordgen_rs.errors.extras import pyarrow_for
from coordgen_rs.errors.json_text import JsonTextError, file_errors_as, open_regular, parse_json
from coordgen_rs.lab.fleet.tables import Document
from coordgen_rs.store.history.fleet import EXPORT_FORMAT
from coordgen_rs.store.history.store import LAST_INSTANT
from coordgen_rs.text.tokenizer import Tokenizer

KINDS: Final = (
    *(f"{kind}{packed}" for kind in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst")),
    ".parquet",
)
_NEED_PYARROW = (".zst", ".parquet")
_MOST_LINE_BYTES = 256 << 20
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Line:
    """A record of a file.

    Attributes:
        where: `FILE:LINE`, from 1; for Parquet `FILE:ROW`.
        value: What it says.
        is_first: Whether it is the first of its file.
        error: Why it cannot be read; then it says nothing.
    """

    where: str
    value: Any
    is_first: bool
    error: str | None = None


def check_kind(path: Path) -> None:
    """Refuse a file that could not be read, before others are.

    Raises:
        OptionError: It is of another kind, or a package for this kind is missing.
    """
    if not path.name.endswith(KINDS):
        raise OptionError(f"{path} is of no known kind: names end in {', '.join(KINDS)}")
    if path.suffix in _NEED_PYARROW:
        pyarrow_for(path)


def read_lines(path: Path, names: Sequence[str]) -> Iterator[Line]:
    """The records of a file, blank lines left out.

    Args:
        path: Its name ends in one of `KINDS`.
        names: Fields to read, where reading fewer is cheaper.

    Raises:
        HistoryError: It cannot be opened.
        OptionError: It is of another kind, or a package for this kind is missing.
    """
    check_kind(path)
    with file_errors_as(HistoryError, path):
        if path.suffix == ".parquet":
            yield from _rows(path, names)
            return
        with open_regular(path) as stream, closing(_decompressed(path, stream)) as text:
            yield from _json_lines(path, text)


def _decompressed(path: Path, stream: BinaryIO) -> BinaryIO:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=stream))
    if path.suffix == ".zst":
        return io.BufferedReader(pyarrow_for(path).CompressedInputStream(stream, "zstd"))
    return stream


def _json_lines(path: Path, stream: BinaryIO) -> Iterator[Line]:
    number = 0
    while True:
        number += 1
        where = f"{path}:{number}"
        try:
            line = stream.readline(_MOST_LINE_BYTES + 1)
            is_long = len(line) > _MOST_LINE_BYTES
            while is_long and line and not line.endswith(b"\n"):
                line = stream.readline(_MOST_LINE_BYTES)
        except (EOFError, zlib.error, OSError) as error:  # of compressed text
            yield Line(where, None, number == 1, f"the file is damaged from here on: {error}")
            return
        if not line:
            return
        if is_long:
            yield Line(where, None, number == 1, f"longer than {_MOST_LINE_BYTES:,} bytes")
        elif not line.isspace():
            yield _parsed(line, where, number == 1)


def _parsed(line: bytes, where: str, is_first: bool) -> Line:
    try:
        return Line(where, parse_json(line, where), is_first)
    except JsonTextError as error:
        return Line(where, None, is_first, str(error).removeprefix(f"{where} "))


def _rows(path: Path, names: Sequence[str]) -> Iterator[Line]:
    pyarrow_for(path)
    from pyarrow import ArrowException, parquet

    if not path.is_file():
        raise HistoryError(f"{path} is not a regular file")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
                for value, wrong in _values(batch):
                    number += 1
                    yield Line(f"{path}:{number}", value, number == 1, wrong)
    except (ArrowException, OSError) as error:
        where = f"{path}:{number + 1}"
        yield Line(where, None, False, f"the file is damaged from here on: {error}")


def _values(batch: Any) -> Iterator[tuple[Any, str | None]]:
    """The rows of a batch, each with why it cannot be read."""
    batch = _in_microseconds(batch)
    try:
        yield from ((value, None) for value in batch.to_pylist())
        return
    except ValueError:  # a value for which Python has no type; it spoils no other row
        pass
    for row in range(batch.num_rows):
        try:
            yield batch.slice(row, 1).to_pylist()[0], None
        except ValueError as error:
            yield None, f"cannot be read: {error}"


def _in_microseconds(batch: Any) -> Any:
    """Times in the finest unit that Python has: data frames keep nanoseconds."""
    from pyarrow import timestamp, types

    for place, field in enumerate(batch.schema):
        if types.is_timestamp(field.type) and field.type.unit == "ns":
            times = batch.column(place).cast(timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(place, field.name, times)
    return batch


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
class ReadOptions:
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
    path: Path, reading: ReadOptions, tokenizer: Tokenizer, on_bad: Callable[[str], None]
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


def _document(line: Line, reading: ReadOptions, tokenizer: Tokenizer) -> Document:
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
    return (
        line.is_first and isinstance(line.value, dict) and line.value.get("format") == EXPORT_FORMAT
    )


def _check_header(line: Line, reading: ReadOptions) -> None:
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
