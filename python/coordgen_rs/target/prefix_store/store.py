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
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import PrefixStoreWarning, arguments
from coordgen_rs.errors.process import OpenedHere
from coordgen_rs.target.kv_cache import Pair
from coordgen_rs.target.prefix_store import block_file
from coordgen_rs.target.prefix_store.block_file import BLOCK_SUFFIX, STATES_SUFFIX, Head
from coordgen_rs.target.prefix_store.chosen_states import chosen_states
from coordgen_rs.target.prefix_store.counts import StoreCounts
from coordgen_rs.target.prefix_store.directory import DEFAULT_BYTES, StoreDirectory
from coordgen_rs.target.prefix_store.layout import Layout
from coordgen_rs.target.prefix_store.lent import LentBlocks
from coordgen_rs.target.prefix_store.lookup import LookedFor, UnusableError
from coordgen_rs.target.prefix_store.names import BLOCK_TOKENS, Scope, block_names
from coordgen_rs.target.prefix_store.writer import Room, Writer
from coordgen_rs.target.session import SavedPrefix, StoresPrefixes
from coordgen_rs.target.states import Snapshot

_READING_COSTS = 8
"""Tokens that are read from disk at the cost of computing one, at most: fewer are worth no file."""

_MOST_WAITING_BYTES = 1 << 29
"""Most memory of copies that wait to be written; what finds no room is not written."""


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


class PrefixStore:
    """The prefixes of one target on disk, of all its namespaces; several processes may share it.

    Args:
        path: A directory; created if missing.
        target: What computes: nothing that another has computed is found.
        most_bytes: Most bytes of all files there, also of other targets; the least recently used
            go first. Each process looks from time to time at what others have written.

    Attributes:
        counts: What it has done.

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
        self._about = {
            "bundle": target.bundle,
            "kv_cache": target.kv_cache,
            "made_by": target.made_by,
        }
        self._writer, self._room, self._opened = Writer(), Room(_MOST_WAITING_BYTES), OpenedHere()
        self._right = Lock()  # to change what is being written
        self._being_written = set[bytes]()
        self._told = set[str]()

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory.path

    def find(
        self, session: StoresPrefixes, prompt: NDArray[np.uint32], namespace: str, held: int
    ) -> SavedPrefix | None:
        """What is there of a prompt, if reading it takes less than computing what it adds.

        Args:
            session: What is to hold it.
            prompt: `(tokens,) u32`; its last token is never looked for.
            namespace: Whose it is.
            held: How many of the first tokens the session holds already.
        """
        begin = time.perf_counter()
        scope = Scope.of(self._target.digest, namespace)
        layout = Layout.of(session)
        looked_for = LookedFor(self._directory.folder(scope.digest), scope, prompt[:-1], layout)
        self.counts.lookups += 1
        try:
            found = self._found(looked_for, held)
        finally:
            self.counts.read_seconds += time.perf_counter() - begin
        if found is not None:
            self.counts.hits += 1
            self.counts.read_tokens += len(found.token_ids) - held
            self.counts.read_bytes += found.nbytes
        return found

    def _found(self, looked_for: LookedFor, held: int) -> SavedPrefix | None:
        while True:
            length = looked_for.length()
            if (length - held) * _READING_COSTS < max(length, BLOCK_TOKENS):
                return None
            try:
                found = looked_for.read(length)
            except UnusableError as error:  # then there is less
                self.counts.damaged += error.is_damaged
                continue
            names = looked_for.used(length)
            self._writer.add(partial(_touch, names, time.time_ns()))
            return found

    def save(self, session: StoresPrefixes, namespace: str) -> None:
        """Keep what a session holds; it is read beside, while the session may go on.

        Args:
            session: Not computing right now.
            namespace: Whose tokens it holds.
        """
        if self._opened.is_forked:
            return
        begin = time.perf_counter()
        token_ids = session.reusable_ids
        if len(token_ids) >= BLOCK_TOKENS:
            self._save(session, token_ids.copy(), Scope.of(self._target.digest, namespace))
        self.counts.save_seconds += time.perf_counter() - begin

    def _save(self, session: StoresPrefixes, token_ids: NDArray[np.uint32], scope: Scope) -> None:
        layout, folder = Layout.of(session), self._directory.folder(scope.digest)
        names = block_names(scope, token_ids)
        size = block_file.HEAD_BYTES + layout.block_bytes(BLOCK_TOKENS)
        names = names[: self._directory.most_bytes // size]  # its own beginning would go for it
        layers = session.prefix_in_place(len(token_ids)).layers
        states = [
            _File(folder, Head(scope.digest, name, start, snapshot.length - start), snapshot)
            for snapshot, name, start in chosen_states(
                session.snapshots() or (), token_ids, scope, names, layout
            )
        ]
        blocks = [
            _File(folder, Head(scope.digest, name, number * BLOCK_TOKENS, BLOCK_TOKENS))
            for number, name in enumerate(names)
        ]
        used = [it.path for it in blocks]
        blocks, states = list(filter(self._lacks, blocks)), list(filter(self._lacks, states))
        contents = [_content(it, token_ids, layers, layout) for it in states]
        first, end = (_number(blocks[0]), _number(blocks[-1]) + 1) if blocks else (0, 0)
        lent = LentBlocks(token_ids, layers, layout, first, end, self._room)
        if blocks:
            session.lend(lent)
        with self._right:
            self._being_written.update(it.head.name for it in (*blocks, *states))
        work = _Work(scope, used, lent, blocks, list(zip(states, contents, strict=True)))
        self._writer.add(partial(self._write, work))

    def _lacks(self, file: "_File") -> bool:
        """Whether a file is neither there nor about to be."""
        with self._right:
            if file.head.name in self._being_written:
                return False
        return not os.path.lexists(file.path)

    def _write(self, work: "_Work") -> None:
        """Write what a request has left, in the writer's thread."""
        now_ns, scope = time.time_ns(), work.scope
        try:
            if work.blocks or work.states:
                about = {**self._about, "namespace": scope.namespace}
                self._directory.make_folder(scope.digest, about)
            _touch(work.used, now_ns)
            for file in work.blocks:
                content = work.lent.block(_number(file))
                if content is None:
                    self.counts.skipped += 1
                    break
                self._write_file(file, content, now_ns)
                self.counts.stored_tokens += BLOCK_TOKENS
            else:
                for file, parts in work.states:
                    self._write_file(file, np.concatenate(parts), now_ns)
        except OSError as error:
            self.counts.failures += 1
            self._tell(f"{self.path} cannot be written: {error.strerror or error}")
        except MemoryError:
            self.counts.failures += 1
        finally:
            work.lent.close()
            with self._right:
                self._being_written.difference_update(it.head.name for it in work.files)
            self.counts.evicted_bytes = self._directory.evicted_bytes

    def _write_file(self, file: "_File", content: NDArray[np.uint8], now_ns: int) -> None:
        head, num_bytes = file.head, block_file.HEAD_BYTES + content.nbytes
        self._directory.make_room(num_bytes)
        block_file.write(file.path, head, content, _used_ns(now_ns, head.start + head.num_tokens))
        self._directory.written(num_bytes)
        self.counts.stored_bytes += num_bytes

    def _tell(self, message: str) -> None:
        """Warn, once of each kind."""
        if message not in self._told:
            self._told.add(message)
            warnings.warn(PrefixStoreWarning(f"{message}; answers go on without it"), stacklevel=2)

    def flush(self) -> None:
        """Wait until all is written."""
        if not self._opened.is_forked:
            self._writer.flush()

    def close(self) -> None:
        """Write what is to be written, and end."""
        if not self._opened.is_forked:
            self._writer.close()


class _File(NamedTuple):
    """A file that is there, or is to be written.

    Attributes:
        folder: Where.
        head: What it says of itself.
        snapshot: The states that it holds; None of a block.
    """

    folder: Path
    head: Head
    snapshot: Snapshot | None = None

    @property
    def path(self) -> Path:
        suffix = BLOCK_SUFFIX if self.snapshot is None else STATES_SUFFIX
        return self.folder / f"{self.head.name.hex()}{suffix}"


class _Work(NamedTuple):
    """What a request has left.

    Attributes:
        scope: Whose.
        used: The files of all its blocks, in order.
        lent: Gives the content of blocks.
        blocks: Those that are new, in order.
        states: Those that are new, each with its content in parts.
    """

    scope: Scope
    used: Sequence[Path]
    lent: LentBlocks
    blocks: Sequence[_File]
    states: Sequence[tuple[_File, Sequence[NDArray[np.uint8]]]]

    @property
    def files(self) -> list[_File]:
        return [*self.blocks, *(file for file, _ in self.states)]


def _content(
    file: _File, token_ids: NDArray[np.uint32], layers: Sequence[Pair], layout: Layout
) -> list[NDArray[np.uint8]]:
    """The content of a file of states, in parts: the tokens behind the last block are copied."""
    head = file.head
    rest = layout.packed(token_ids, layers, head.start, head.num_tokens)[0]
    return [rest, *(() if file.snapshot is None else file.snapshot.states)]


def _number(block: _File) -> int:
    """Which block it is."""
    return block.head.start // BLOCK_TOKENS


def _used_ns(now_ns: int, end: int) -> int:
    """When a file was used, if it is now: what others need before theirs goes later."""
    return now_ns - end


def _touch(paths: Sequence[Path], now_ns: int) -> None:
    """Say that the files of blocks are used now."""
    for number, path in enumerate(paths):
        with suppress(OSError):
            used_ns = _used_ns(now_ns, BLOCK_TOKENS * (number + 1))
            os.utime(path, ns=(used_ns, used_ns), follow_symlinks=False)
