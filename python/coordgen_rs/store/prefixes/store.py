"""Prefixes on disk: what sessions have computed is found again, by whoever asks for the same.

In: sessions whose requests have ended, and prompts. Out: keys, values and states of as much of a
prompt as is there. Tokens are kept in blocks of `BLOCK_TOKENS`, each named by itself and all before
it: a dialogue that goes on adds the blocks that are new, and what two dialogues begin with is there
once. States of recurrent layers stand behind some of the tokens, and are kept for those lengths.
A file that is missing or damaged costs computing.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import PrefixStoreWarning, arguments
from coordgen_rs.store.background import NotCopied, NoThreadError, OpenedHere, TaskQueue
from coordgen_rs.store.prefixes import directory
from coordgen_rs.store.prefixes.directory import (
    BLOCK_SUFFIX,
    DEFAULT_BYTES,
    HEAD_BYTES,
    STATES_SUFFIX,
    DamagedFileError,
    Head,
    StoreDirectory,
    block_names,
    scope_of,
    states_head,
)
from coordgen_rs.store.prefixes.prefix import (
    BLOCK_TOKENS,
    TOKEN_BYTES,
    CopyOnWriteBlocks,
    KeepsPrefixes,
    Layout,
    MemoryBudget,
    SavedPrefix,
    Snapshot,
)

_READING_COSTS = 8
"""Tokens that are read from disk at the cost of computing one, at most: fewer are worth no file."""

_MOST_WAITING_BYTES = 1 << 29
"""Most memory of copies that wait to be written; what finds no room is not written."""

_LEAST_BETWEEN = 256
"""Tokens between states that are stored, at least, but for those where a turn may end."""


@dataclass
class StoreCounts:
    """Counts of one store; each only grows.

    Attributes:
        lookups: Requests that looked for more of their prompt than was in memory.
        hits: Those that found it.
        read_tokens: Tokens of prompts that were read from disk, not computed.
        read_bytes: Bytes that were read for that.
        read_seconds: Seconds of looking and reading.
        stored_tokens: Tokens that were written.
        stored_bytes: Bytes that were written.
        save_seconds: Seconds of requests in which it was seen to what is written beside them.
        evicted_bytes: Bytes that were removed to make room.
        damaged: Files that were not what they should be; they were removed where that was possible.
        failures: How often something could not be written.
        skipped: How often something was not written, as too much was waiting for that.
    """

    lookups: int = 0
    hits: int = 0
    read_tokens: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    stored_tokens: int = 0
    stored_bytes: int = 0
    save_seconds: float = 0.0
    evicted_bytes: int = 0
    damaged: int = 0
    failures: int = 0
    skipped: int = 0


class TargetIdentity(NamedTuple):
    """What computes.

    Attributes:
        digest: Tells apart all that computes other keys and values, or other states.
        bundle: What lists call the bundle.
        kv_cache: How it holds keys and values.
        made_by: The version of this package.
    """

    digest: bytes
    bundle: str = ""
    kv_cache: str = ""
    made_by: str = ""


class PrefixStore(NotCopied):
    """The prefixes of one target on disk, of all its namespaces; several processes may share it.

    Args:
        path: A directory; created if missing.
        target: What computes: nothing that another has computed is found.
        most_bytes: Most bytes of all files there, also of other targets and processes; the least
            recently used go first.

    Attributes:
        counts: What it has done.
        writer: Writes between requests.

    Raises:
        OptionError: `most_bytes` is less than 1 or no integer, or everybody may write there.
        OSError: The directory cannot be created.
    """

    def __init__(
        self, path: Path | str, target: TargetIdentity, most_bytes: int = DEFAULT_BYTES
    ) -> None:
        most_bytes = arguments.count("prefix_store_size", most_bytes)
        self.counts = StoreCounts()
        self._directory, self._target = StoreDirectory(Path(path), most_bytes), target
        self.writer, self._memory = TaskQueue(), MemoryBudget(_MOST_WAITING_BYTES)
        self._opened, self._told = OpenedHere(), set[str]()

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory.path

    def find(
        self, session: KeepsPrefixes, prompt: NDArray[np.uint32], namespace: str, held: int
    ) -> SavedPrefix | None:
        """What is there of a prompt, if reading it takes less than computing what it adds.

        Args:
            session: What is to hold it.
            prompt: `(tokens,) u32`; its last token is never looked for.
            namespace: Whose it is.
            held: How many of the first tokens the session holds already.
        """
        begin, found = time.perf_counter(), None
        scope, layout = scope_of(self._target.digest, namespace), Layout.of(session)
        self.counts.lookups += 1
        try:
            with suppress(OSError, MemoryError):  # no folder of this user's own; or computing it
                folder = self._directory.own_folder(scope)  # takes none
                found = self._found(Lookup(folder, scope, prompt[:-1], layout), held)
        finally:
            self.counts.read_seconds += time.perf_counter() - begin
        if found is not None:
            self.counts.hits += 1
            self.counts.read_tokens += len(found.token_ids) - held
            self.counts.read_bytes += found.nbytes
        return found

    def _found(self, lookup: "Lookup", held: int) -> SavedPrefix | None:
        """What is there of a prompt.

        Raises:
            MemoryError: There is none for it.
        """
        while True:
            length = lookup.length()
            if (length - held) * _READING_COSTS < max(length, BLOCK_TOKENS):
                return None
            try:
                found = lookup.read(length)
            except FileNotFoundError:  # then there is less
                continue
            except DamagedFileError:
                self.counts.damaged += 1
                continue
            with suppress(NoThreadError):  # the system gives no thread
                self.writer.try_add(partial(_touch, lookup.used(length), time.time_ns()))
            return found

    def save(self, session: KeepsPrefixes, namespace: str, since: int, *, ends: bool) -> None:
        """Keep what a session holds; it is read later, while the session may go on.

        Args:
            session: Not computing right now.
            namespace: Whose tokens it holds.
            since: How many of its tokens were there when it was last kept.
            ends: Whether its request has ended: then states are kept, and what others have removed.
        """
        if self._opened.is_forked:
            return
        begin = time.perf_counter()
        try:
            self._save(session, namespace, since, ends=ends)
        except MemoryError:
            self.counts.failures += 1
        finally:
            self.counts.save_seconds += time.perf_counter() - begin

    def _save(self, session: KeepsPrefixes, namespace: str, since: int, *, ends: bool) -> None:
        """Same as `save`.

        Raises:
            MemoryError: There is none; nothing is held any more.
        """
        token_ids = session.reusable_ids
        fresh, end = since // BLOCK_TOKENS, len(token_ids) // BLOCK_TOKENS
        if end <= (0 if ends else fresh):
            return
        scope, layout = scope_of(self._target.digest, namespace), Layout.of(session)
        size = HEAD_BYTES + layout.block_bytes(BLOCK_TOKENS)
        end = min(end, self._directory.most_bytes // size)  # it would go for its own end
        fresh = min(fresh, end)
        held = session.prefix_in_place(len(token_ids))
        ids = held.token_ids.copy()
        names = block_names(scope, ids)
        copied = CopyOnWriteBlocks(ids, held.layers, layout, fresh, end, self._memory)
        try:
            session.add_reader(copied)
            files = [
                _File(_block_head(scope, names, it), BLOCK_SUFFIX, partial(copied.block, it))
                for it in range(0 if ends else fresh, end)
            ]
            if ends:
                chosen = _chosen(session.snapshots() or (), len(ids), layout)
                for snapshot in [*chosen]:
                    head = states_head(scope, names, ids, snapshot.length)
                    files += self._states(snapshot, head, held, layout, copied)
            self.writer.try_add(partial(self._write, scope, namespace, files, copied))
        except NoThreadError:
            self.counts.failures += 1
            copied.close()
        except BaseException:
            copied.close()
            raise

    def _states(
        self,
        snapshot: Snapshot,
        head: Head,
        held: SavedPrefix,
        layout: Layout,
        copied: CopyOnWriteBlocks,
    ) -> Iterator["_File"]:
        """The file of some states, with memory taken; none where there is none for it."""
        size = HEAD_BYTES + layout.block_bytes(head.num_tokens) + snapshot.nbytes
        if size > self._directory.most_bytes:
            return
        try:
            rest = layout.packed(held.token_ids, held.layers, head.start, head.num_tokens)[0]
        except MemoryError:
            self.counts.failures += 1
            return
        if self._memory.take(copied, snapshot.nbytes):
            yield _File(head, STATES_SUFFIX, partial(np.concatenate, [rest, *snapshot.states]))

    def _write(
        self, scope: bytes, namespace: str, files: "Sequence[_File]", copied: CopyOnWriteBlocks
    ) -> None:
        """Write what a request has left, in the writer's thread.

        Args:
            scope: Whose.
            namespace: Its name, for lists.
            files: Those that are to be there.
            copied: The content of blocks; closed at the end.
        """
        now_ns = time.time_ns()
        about = {**self._target._asdict(), "namespace": namespace}
        del about["digest"]
        try:
            folder = self._directory.make_folder(scope, about)
            for file in files:
                self.writer.wait_for_quiet()
                self._write_file(folder, file, now_ns)
        except OSError as error:
            self.counts.failures += 1
            self._tell(f"{self.path} cannot be written: {error.strerror or error}")
        except MemoryError:
            self.counts.failures += 1
        finally:
            copied.close()
            self.counts.evicted_bytes = self._directory.evicted_bytes

    def _write_file(self, folder: Path, file: "_File", now_ns: int) -> None:
        """Write a file, or say that it is used.

        Raises:
            OSError, MemoryError: It cannot be written.
        """
        path, used_ns = file.head.path(folder, file.suffix), _used_ns(now_ns, file.head.end)
        if directory.touch(path, used_ns):
            return
        content = file.made()
        if content is None:
            self.counts.skipped += 1
            return
        num_bytes = HEAD_BYTES + content.nbytes
        with self._directory.room_for(num_bytes):
            directory.write(path, file.head, content, used_ns)
        self.counts.stored_bytes += num_bytes
        if file.suffix == BLOCK_SUFFIX:
            self.counts.stored_tokens += BLOCK_TOKENS

    def _tell(self, message: str) -> None:
        """Warn, once of each kind."""
        if message not in self._told:
            self._told.add(message)
            warnings.warn(PrefixStoreWarning(f"{message}; answers go on without it"), stacklevel=2)

    def flush(self) -> None:
        """Wait until all is written; in a fork, for nothing."""
        self.writer.flush()

    def close(self) -> None:
        """Write what is to be written, and end; in a fork, do nothing."""
        self.writer.join()


class _File(NamedTuple):
    """A file that is to be there, and what makes its content; None where that was dropped."""

    head: Head
    suffix: str
    made: Callable[[], NDArray[np.uint8] | None]


def _block_head(scope: bytes, names: Sequence[bytes], number: int) -> Head:
    return Head(scope, names[number], number * BLOCK_TOKENS, BLOCK_TOKENS)


def _chosen(snapshots: Sequence[Snapshot], num_tokens: int, layout: Layout) -> Iterator[Snapshot]:
    """States that bring most back for what they take: no more than keys and values do.

    The latest, those where a turn may end, and some between them.

    Args:
        snapshots: Ascending by length.
        num_tokens: Most tokens.
        layout: What a token and a snapshot take.
    """
    apart, last = _LEAST_BETWEEN, 0
    if layout.token_bytes:
        apart = max(apart, layout.states_bytes // layout.token_bytes)
    within = [it for it in snapshots if it.length <= num_tokens]
    for snapshot in within:
        if snapshot.is_turn or snapshot is within[-1] or snapshot.length - last >= apart:
            yield snapshot
            last = snapshot.length


class Lookup:
    """The files that a prompt's beginning has.

    Args:
        folder: The scope's.
        scope: Whose they are.
        token_ids: What is looked for, `(tokens,) u32`.
        layout: How they lie in a block.
    """

    def __init__(
        self, folder: Path, scope: bytes, token_ids: NDArray[np.uint32], layout: Layout
    ) -> None:
        self._folder, self._scope, self._layout = folder, scope, layout
        self._token_ids, self._names = token_ids, block_names(scope, token_ids)
        self._most = len(token_ids)  # behind it, files are gone or of no use
        self._listed = set[str]()
        if layout.state_sizes:
            with suppress(OSError):
                self._listed = {it for it in os.listdir(folder) if it.endswith(STATES_SUFFIX)}  # noqa: PTH208 (names alone)

    def length(self) -> int:
        """How many tokens there are files for."""
        num_blocks, most_blocks = 0, self._most // BLOCK_TOKENS
        while num_blocks < most_blocks and os.path.lexists(self._block(num_blocks)[0]):
            num_blocks += 1
        if not self._layout.state_sizes:
            return num_blocks * BLOCK_TOKENS
        lengths = range(min(self._most, (num_blocks + 1) * BLOCK_TOKENS - 1), 0, -1)
        there = (it for it in lengths if self._states(it)[0].name in self._listed)
        self._most = next(there, 0) if self._listed else 0
        return self._most

    def used(self, length: int) -> list[Path]:
        """The files of so many tokens, in order."""
        paths = [self._block(number)[0] for number in range(length // BLOCK_TOKENS)]
        return [*paths, self._states(length)[0]] if self._layout.state_sizes else paths

    def read(self, length: int) -> SavedPrefix:
        """What the files of so many tokens hold.

        Raises:
            FileNotFoundError, DamagedFileError: One is gone, or not what it should be, and removed;
                `length` is less from now on.
        """
        layout, states = self._layout, None
        layers, block = layout.room(length), np.empty(layout.block_bytes(BLOCK_TOKENS), np.uint8)
        for number in range(length // BLOCK_TOKENS):
            self._read(*self._block(number), block)
            layout.unpack(block, layers, number * BLOCK_TOKENS, BLOCK_TOKENS)
        if layout.state_sizes:
            path, head = self._states(length)
            rest_bytes = layout.block_bytes(head.num_tokens)
            content = np.empty(rest_bytes + layout.states_bytes, np.uint8)
            self._read(path, head, content)
            layout.unpack(content[:rest_bytes], layers, head.start, head.num_tokens)
            states = [layout.snapshot(content[rest_bytes:], length)]
        return SavedPrefix(self._token_ids[:length].copy(), layers, states)

    def _read(self, path: Path, head: Head, content: NDArray[np.uint8]) -> None:
        try:
            directory.read(path, head, content)
            tokens = content[: TOKEN_BYTES * head.num_tokens].view("<u4")
            if not np.array_equal(tokens, self._token_ids[head.start : head.end]):
                raise DamagedFileError(f"{path} holds other tokens")
        except (FileNotFoundError, DamagedFileError) as error:
            self._most = head.end - 1
            if isinstance(error, DamagedFileError):
                with suppress(OSError):  # it is written anew
                    path.unlink()
            raise

    def _block(self, number: int) -> tuple[Path, Head]:
        head = _block_head(self._scope, self._names, number)
        return head.path(self._folder, BLOCK_SUFFIX), head

    def _states(self, length: int) -> tuple[Path, Head]:
        head = states_head(self._scope, self._names, self._token_ids, length)
        return head.path(self._folder, STATES_SUFFIX), head


def _used_ns(now_ns: int, end: int) -> int:
    """When a file was used, if it is now: what others need before theirs goes later."""
    return now_ns - end


def _touch(paths: Sequence[Path], now_ns: int) -> None:
    """Say that the files of blocks are used now."""
    for number, path in enumerate(paths):
        directory.touch(path, _used_ns(now_ns, BLOCK_TOKENS * (number + 1)))
