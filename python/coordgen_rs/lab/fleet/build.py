"""`coordgen history build`: the indexes of a fleet, built from records of finished requests.

In: files of records, and directories of other builds. Out: a directory with an index for each
namespace. Files are read into shards, each by a call of its own, then namespaces are merged and
sorted, a few to a call. The same records give the same bytes, in whatever files they lie, wherever
the calls run, and whether they come from records or from other builds.
"""

import argparse
import glob
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from coordgen_rs._core import SharedHistory
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import HistoryError, OptionError
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.lab.fleet.records import FieldNames, ReadOptions, check_kind, read_documents
from coordgen_rs.lab.fleet.tables import (
    OtherBuild,
    Shard,
    Table,
    count_tokens,
    head_sha256,
    newest_of_each,
    newest_within,
    table_path,
    write_shard,
)
from coordgen_rs.lab.fleet.tasks import RAY, Sequential, Tasks, chosen
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.store.files import locked, replacing, unfinished_directory, write_file
from coordgen_rs.store.history.fleet import (
    BUILD_FORMAT,
    BuildList,
    IndexEntry,
    index_path,
    read_list,
)
from coordgen_rs.store.history.requests import fingerprint_of
from coordgen_rs.store.history.store import DATABASE_NAME, DEFAULT_MAX_TOKENS, LIST_NAME, index_key
from coordgen_rs.text.tokenizer import Tokenizer

_NAME = re.compile(r"[0-9a-f]{32}\.(index|documents)")

_MOST_NAMED = 20
"""Bad records of a file of which the place is kept; of the others only the number."""

_TOGETHER = 1 << 22
"""Tokens of namespaces that are merged in one call."""


_Call = TypeVar("_Call")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class BuildResult:
    """What a build did.

    Attributes:
        listed: The content of its `fleet.json`.
        num_read: Requests that were read, from records and from other builds.
        num_bad: Records that are no finished requests.
        bad: Where some of them are, and why: `FILE:LINE: why`.
    """

    listed: BuildList
    num_read: int
    num_bad: int
    bad: list[str]

    @property
    def num_requests(self) -> int:
        """Requests in the indexes."""
        return sum(entry.num_requests for entry in self.listed.namespaces)

    @property
    def num_tokens(self) -> int:
        """Tokens of the indexes, a terminator for each request included."""
        return sum(entry.num_tokens for entry in self.listed.namespaces)


@dataclass
class _BadRecords:
    num: int = 0
    named: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _ReadCall:
    """Read a file into a shard."""

    path: Path
    shard: Path
    reading: ReadOptions
    max_tokens: int
    is_strict: bool


@dataclass(frozen=True)
class _MergeCall:
    """Merge some namespaces, and write their indexes; it carries nothing of the others.

    Attributes:
        into: Where the indexes are written.
        namespaces: The namespaces, in order.
        parts: What holds any of them.
        reading: Names the tokenizer and its vocabulary.
        max_tokens: Most tokens of a namespace.
    """

    into: Path
    namespaces: tuple[str, ...]
    parts: tuple[Shard | OtherBuild, ...]
    reading: ReadOptions
    max_tokens: int


def build(
    directory: Path,
    sources: Iterable[Path],
    bundle: Bundle,
    *,
    names: FieldNames | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    is_strict: bool = False,
    tasks: Tasks | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> BuildResult:
    """Build the indexes of a fleet in `directory`, in place of those before.

    Processes that draft from an index there go on with it, and take up the new one when their next
    request begins. Requests with the same tokens are kept once, as the newest of them. Nothing in
    `directory` changes until all indexes are written; then each takes its place at once. A build
    that is killed leaves its temporary files to the next one, which removes them.

    Memory: 20 bytes a token of the largest namespace. Temporary disk, in `directory`: 4 bytes a
    token that is read, and 9 a token that is kept.

    Args:
        directory: Created if missing.
        sources: Files of records (see `read_documents`), and directories of other builds.
        bundle: The bundle whose tokenizer reads text; devices must use the same.
        names: What the fields of records are called.
        namespace: The namespace of records that do not name one.
        max_tokens: Most tokens of a namespace; beyond, the oldest requests are left out.
        is_strict: Raise at the first record that is no finished request.
        tasks: Where calls run; None runs them here, one after the other.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        HistoryError: A file cannot be read, a record is bad and `is_strict`, there is no request
            at all, the directory holds other things, or another build is writing there.
        HistoryMismatchError: Token ids or a build are of another tokenizer or vocabulary.
        HistoryIndexError: An index cannot be written.
        OptionError: A file is of no known kind, or a package for its kind is missing.
        TaskLostError: Ray lost a task more often than it retries.
    """
    tasks = Sequential() if tasks is None else tasks
    fingerprint, vocab_size = fingerprint_of(bundle), bundle.manifest.model.vocab_size
    reading = ReadOptions(
        bundle.path.absolute(), fingerprint, vocab_size, names or FieldNames(), namespace
    )
    paths = [path.absolute() for path in sources]
    files = [path for path in paths if not path.is_dir()]
    for path in files:
        check_kind(path)
    builds = [_other_build(path, reading) for path in paths if path.is_dir()]
    directory = directory.absolute()
    if directory.exists() and not directory.is_dir():
        raise HistoryError(f"{directory} is not a directory")
    if (directory / DATABASE_NAME).exists():
        raise HistoryError(f"{directory} holds a machine's own history: build into another one")
    with _made(directory), locked(directory / LIST_NAME) as is_mine:
        if not is_mine:
            raise HistoryError(f"another build is writing to {directory}")
        with unfinished_directory(directory / "build") as work:
            work.chmod(0o700)  # of its owner alone, as all that is built in it
            reads = [
                _ReadCall(path, work / f"{number}", reading, max_tokens, is_strict)
                for number, path in enumerate(files)
            ]
            read = _run_all("reading", _read, reads, tasks, on_progress)
            bad = [found for _, found in read]
            named = [where for found in bad for where in found.named]
            parts: list[Shard | OtherBuild] = [*(shard for shard, _ in read), *builds]
            sizes = Counter[str]()  # before duplicates of different files are left out
            for part in parts:
                sizes.update(part.num_tokens)
            if not sizes:
                where = f"; {named[0]}" if named else ""
                raise HistoryError(f"no finished request was found{where}")
            merges = []
            for group in _groups(sizes):
                of_group = (part.of(group) for part in parts)
                holding = tuple(part for part in of_group if part.num_tokens)
                merges.append(_MergeCall(work, group, holding, reading, max_tokens))
            merged = _run_all("sorting", _merge, merges, tasks, on_progress)
            in_order = sorted(chain.from_iterable(merged), key=lambda entry: entry.namespace)
            listed = BuildList(BUILD_FORMAT, fingerprint, vocab_size, max_tokens, in_order)
            _put_in_place(work, directory, listed)
    num_read = sum(part.num_requests for part in parts)
    return BuildResult(listed, num_read, sum(found.num for found in bad), named)


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make the directory if needed; one that was made for a failed build is removed again."""
    is_new = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # another build may have put something there
                directory.rmdir()
        raise


def find_sources(patterns: Sequence[str]) -> list[Path]:
    """The files that patterns with `*`, `?`, `[..]` and `**` name, each once, and directories.

    Raises:
        OptionError: A pattern names none.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        names = [pattern]
        if not Path(pattern).exists():  # in one order everywhere
            names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (it may be absolute)
        if not names:
            raise OptionError(f"--from {pattern}: there is no such file")
        found |= {Path(name).resolve(): Path(name) for name in names}
    return list(found.values())


def _run_all(
    what: str,
    function: Callable[[_Call], _Result],
    calls: list[_Call],
    tasks: Tasks,
    on_progress: Callable[[str, int, int], None],
) -> list[_Result]:
    """What calls return, in their order."""
    results: dict[int, _Result] = {}
    on_progress(what, 0, len(calls))
    for index, result in tasks.run(function, calls):
        results[index] = result
        on_progress(what, len(results), len(calls))
    return [results[index] for index in range(len(calls))]


def _read(call: _ReadCall) -> tuple[Shard, _BadRecords]:
    bad = _BadRecords()

    def on_bad(what: str) -> None:
        if call.is_strict:
            raise HistoryError(what)
        bad.num += 1
        if len(bad.named) < _MOST_NAMED:
            bad.named.append(what)

    documents = read_documents(call.path, call.reading, _tokenizer(call.reading.bundle), on_bad)
    return write_shard(call.shard, documents, call.max_tokens), bad


@lru_cache(maxsize=1)
def _tokenizer(bundle: Path) -> Tokenizer:
    """A process reads it once, whatever number of files it reads."""
    return Tokenizer.of(open_bundle(bundle))


def _merge(call: _MergeCall) -> list[IndexEntry]:
    tables: dict[str, list[Table]] = {name: [] for name in call.namespaces}
    files: dict[str, list[Path]] = {name: [] for name in call.namespaces}
    for part in call.parts:
        for name, table, file in part.tables():
            tables[name].append(table)
            files[name].append(file)
    return [_write(call, name, tables.pop(name), files[name]) for name in call.namespaces]


def _write(call: _MergeCall, namespace: str, parts: list[Table], files: list[Path]) -> IndexEntry:
    for number, part in enumerate(parts):
        part["file"] = number
    table = newest_within(newest_of_each(np.concatenate(parts)), call.max_tokens)
    parts.clear()
    places = zip(
        table["file"].tolist(), table["start"].tolist(), table["num_tokens"].tolist(), strict=True
    )
    path = index_path(call.into, namespace)
    vocab_size = call.reading.vocab_size
    key = index_key(call.reading.fingerprint, vocab_size, namespace, "fleet")
    text_start = SharedHistory.write_gathered_index(path, files, list(places), vocab_size, key)
    ends = np.cumsum(4 * (table["num_tokens"].astype(np.uint64) + 1))
    table["start"] = text_start + ends - 4 * (table["num_tokens"].astype(np.uint64) + 1)
    table["file"] = 0
    with replacing(table_path(call.into, namespace), private=True) as stream:
        np.save(stream, table)
    head = head_sha256(path)
    return IndexEntry(namespace, len(table), count_tokens(table), text_start, head)


def _other_build(path: Path, reading: ReadOptions) -> OtherBuild:
    if not (path / LIST_NAME).exists():
        raise OptionError(
            f"{path} is a directory, but holds no built history; name the files in it, such as "
            f"'{path}/*.jsonl'"
        )
    listed = read_list(path)
    listed.check_tokenizer(path, reading.fingerprint, reading.vocab_size)
    return OtherBuild(path, {entry.namespace: entry for entry in listed.namespaces})


def _groups(sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Namespaces to merge in one call: a large one alone, and first, because it takes longest."""
    groups: list[tuple[str, ...]] = []
    group: list[str] = []
    together = 0
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if group and together + sizes[name] > _TOGETHER:
            groups.append(tuple(group))
            group, together = [], 0
        group.append(name)
        together += sizes[name]
    return [*groups, tuple(group)]


def _put_in_place(work: Path, directory: Path, listed: BuildList) -> None:
    """Move what was built, and remove the indexes of namespaces that are not there any more."""
    (directory / LIST_NAME).unlink(missing_ok=True)  # it holds again when all is moved
    places = set()
    for entry in listed.namespaces:
        for path_of in (table_path, index_path):
            built, place = path_of(work, entry.namespace), path_of(directory, entry.namespace)
            built.chmod(0o600)
            built.replace(place)
            places.add(place)
    for path in directory.iterdir():
        if _NAME.fullmatch(path.name) and path not in places and path.is_file():
            path.unlink(missing_ok=True)
    content = json.dumps(asdict(listed), indent=1).encode() + b"\n"
    write_file(directory / LIST_NAME, content, private=True)  # which ends the build


def add_arguments(parser: Parser) -> None:
    """The options of the command, besides DIR."""
    parser.declare(
        option.text(
            "--from PATTERN", may_be_empty=False, dest="sources", nargs="+", required=True
        ).help(
            "records: .jsonl, .jsonl.gz, .jsonl.zst or .parquet files, with * and **; or the "
            "directories of other builds, to merge them"
        ),
        option.path("--tokenizer BUNDLE", required=True).help(
            "a bundle with the tokenizer of the devices"
        ),
        option.names("--fields FIELD=NAME,..", default=[]).help(
            "what prompt, answer, token_ids, namespace and finished_at are called in the records"
        ),
        option.text("--namespace NAME", may_be_empty=False, default=DEFAULT_NAMESPACE).help(
            "of records that do not say one; default: %(default)s"
        ),
        option.count("--max-tokens N", most=2**31 - 1, default=DEFAULT_MAX_TOKENS).help(
            "leave out the oldest requests of a namespace beyond this; default %(default)s"
        ),
        option.flag("--strict").help("stop at the first record that is no request"),
        option.JSON.help("print one JSON object"),
        RAY,
    )


def run(options: argparse.Namespace) -> int:
    """Build, and print what was built and what was left out."""
    sources = find_sources(options.sources)
    names = FieldNames.parse(options.fields)
    bundle = open_bundle(options.tokenizer)
    with chosen(options) as tasks, progress() as on_progress:
        built = build(
            options.directory,
            sources,
            bundle,
            names=names,
            namespace=options.namespace,
            max_tokens=options.max_tokens,
            is_strict=options.strict,
            tasks=tasks,
            on_progress=on_progress,
        )
    for where in built.bad:
        text.tell(f"coordgen: warning: {where}")
    if built.num_bad:
        text.tell(f"coordgen: warning: {built.num_bad} records are no requests and were left out")
    figures = {
        "requests": built.num_requests,
        "tokens": built.num_tokens,
        "namespaces": len(built.listed.namespaces),
        "read": built.num_read,
        "left_out": built.num_read - built.num_requests,
        "bad": built.num_bad,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        text.tell(
            f"{options.directory}: {built.num_requests} requests, {built.num_tokens} tokens in "
            f"{len(built.listed.namespaces)} namespaces; {figures['left_out']} requests left out, "
            "as duplicates or beyond --max-tokens"
        )
    return 0
