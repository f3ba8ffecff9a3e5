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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import PrefixStoreWarning, arguments
from coordgen_rs.errors.process import NotCopied, OpenedHere
from coordgen_rs.runtime.prefix_store import block_file
from coordgen_rs.runtime.prefix_store.block_file import BLOCK_SUFFIX, STATES_SUFFIX, Head
from coordgen_rs.runtime.prefix_store.chosen_states import chosen_states
from coordgen_rs.runtime.prefix_store.counts import StoreCounts
from coordgen_rs.runtime.prefix_store.directory import DEFAULT_BYTES, StoreDirectory
from coordgen_rs.runtime.prefix_store.layout import Layout
from coordgen_rs.runtime.prefix_store.lent import LentBlocks
from coordgen_rs.runtime.prefix_store.lookup import LookedFor, UnusableError
from coordgen_rs.runtime.prefix_store.names import BLOCK_TOKENS, Scope, block_names
from coordgen_rs.runtime.prefix_store.writer import Room, Writer
from coordgen_rs.runtime.session import SavedPrefix, StoresPrefixes
from coordgen_rs.threads.one_thread import NoThreadError
from coordgen_rs.threads.owner import Owner

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


class PrefixStore(NotCopied):
    """The prefixes of one target on disk, of all its namespaces; several processes may share it.

    Args:
        path: A directory; created if missing.
        target: What computes: nothing that another has computed is found.
        most_bytes: Most bytes of all files there, also of other targets and processes; the least
            recently used go first.

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
        folder, layout, found = self._directory.own_folder(scope.digest), Layout.of(session), None
        self.counts.lookups += 1
        try:
            if folder is not None:
                looked_for = LookedFor(folder, scope, prompt[:-1], layout)
                found = self._found(looked_for, held)
                self.counts.damaged += looked_for.num_damaged
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
            except UnusableError:  # then there is less
                continue
            except MemoryError:  # computing it takes none
                return None
            names = looked_for.used(length)
            with suppress(NoThreadError):  # the system gives no thread
                self._writer.add(partial(_touch, names, time.time_ns()))
            return found

    def save(self, session: StoresPrefixes, namespace: str, since: int, *, ends: bool) -> None:
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

    def _save(self, session: StoresPrefixes, namespace: str, since: int, *, ends: bool) -> None:
        """Same as `save`.

        Raises:
            MemoryError: There is none; nothing is held any more.
        """
        token_ids = session.reusable_ids
        fresh, end = since // BLOCK_TOKENS, len(token_ids) // BLOCK_TOKENS
        if end <= (0 if ends else fresh):
            return
        scope, layout = Scope.of(self._target.digest, namespace), Layout.of(session)
        size = block_file.HEAD_BYTES + layout.block_bytes(BLOCK_TOKENS)
        end = min(end, self._directory.most_bytes // size)  # it would go for its own end
        held = session.prefix_in_place(len(token_ids))
        lent = LentBlocks(held.token_ids.copy(), held.layers, layout, fresh, end, self._room)
        work = _Work(scope, lent, range(0 if ends else fresh, end), [])
        try:
            session.lend(lent)
            if ends:
                self._add_states(work, session, held, layout)
            self._writer.add(partial(self._write, work))
        except NoThreadError:  # the system gives no thread
            self.counts.failures += 1
            lent.close()
        except BaseException:
            lent.close()
            raise

    def _add_states(
        self,
        work: "_Work",
        session: StoresPrefixes,
        held: SavedPrefix,
        layout: Layout,
    ) -> None:
        """Add files of states, and take their room; what there is no memory for is left out."""
        scope = work.scope
        for chosen in chosen_states(session.snapshots() or (), held.token_ids, scope, layout):
            start, snapshot = chosen.start, chosen.snapshot
            head = Head(scope.digest, chosen.name, start, snapshot.length - start)
            size = block_file.HEAD_BYTES + layout.block_bytes(head.num_tokens) + snapshot.nbytes
            if size > self._directory.most_bytes:
                continue
            try:
                rest = layout.packed(held.token_ids, held.layers, start, head.num_tokens)[0]
            except MemoryError:
                self.counts.failures += 1
                continue
            if self._room.take(work.lent, snapshot.nbytes):
                work.states.append(_StatesFile(head, [rest, *snapshot.states]))

    def _path(self, name: bytes, scope: Scope, suffix: str = BLOCK_SUFFIX) -> Path:
        return self._directory.folder(scope.digest) / f"{name.hex()}{suffix}"

    def _write(self, work: "_Work") -> None:
        """Write what a request has left, in the writer's thread."""
        now_ns, scope = time.time_ns(), work.scope
        try:
            names = block_names(scope, work.lent.token_ids)
            about = {**self._about, "namespace": scope.namespace}
            self._directory.make_folder(scope.digest, about)
            for number in work.numbers:
                self._writer.wait_for_quiet()
                self._write_block(work, number, names[number], now_ns)
            for head, parts in work.states:
                path, end = (
                    self._path(head.name, scope, STATES_SUFFIX),
                    head.start + head.num_tokens,
                )
                if not _touched(path, _used_ns(now_ns, end)):
                    self._write_file(path, head, np.concatenate(parts), now_ns)
        except OSError as error:
            self.counts.failures += 1
            self._tell(f"{self.path} cannot be written: {error.strerror or error}")
        except MemoryError:
            self.counts.failures += 1
        finally:
            work.lent.close()
            self.counts.evicted_bytes = self._directory.evicted_bytes

    def _write_block(self, work: "_Work", number: int, name: bytes, now_ns: int) -> None:
        """Write a block, or say that it is used."""
        path, end = self._path(name, work.scope), BLOCK_TOKENS * (number + 1)
        if _touched(path, _used_ns(now_ns, end)):
            return
        content = work.lent.block(number)
        if content is None:
            self.counts.skipped += 1
            return
        head = Head(work.scope.digest, name, end - BLOCK_TOKENS, BLOCK_TOKENS)
        self._write_file(path, head, content, now_ns)
        self.counts.stored_tokens += BLOCK_TOKENS

    def _write_file(self, path: Path, head: Head, content: NDArray[np.uint8], now_ns: int) -> None:
        num_bytes = block_file.HEAD_BYTES + content.nbytes
        with self._directory.room_for(num_bytes):
            block_file.write(path, head, content, _used_ns(now_ns, head.start + head.num_tokens))
        self.counts.stored_bytes += num_bytes

    def _tell(self, message: str) -> None:
        """Warn, once of each kind."""
        if message not in self._told:
            self._told.add(message)
            warnings.warn(PrefixStoreWarning(f"{message}; answers go on without it"), stacklevel=2)

    def wait_beside(self, request: Owner) -> None:
        """Until a request is over, nothing is written, but for what has waited long."""
        if not self._opened.is_forked:
            self._writer.wait_beside(request)

    def look_again(self) -> None:
        """Write, if no request runs any more."""
        self._writer.look_again()

    def flush(self) -> None:
        """Wait until all is written."""
        if not self._opened.is_forked:
            self._writer.flush()

    def close(self) -> None:
        """Write what is to be written, and end."""
        if not self._opened.is_forked:
            self._writer.close()


class _StatesFile(NamedTuple):
    """A file of states that is to be written, and its content in parts."""

    head: Head
    parts: Sequence[NDArray[np.uint8]]


class _Work(NamedTuple):
    """What a request has left.

    Attributes:
        scope: Whose.
        lent: Gives the content of blocks.
        numbers: The blocks that are to be there.
        states: Files of states that are to be written.
    """

    scope: Scope
    lent: LentBlocks
    numbers: range
    states: list[_StatesFile]


def _used_ns(now_ns: int, end: int) -> int:
    """When a file was used, if it is now: what others need before theirs goes later."""
    return now_ns - end


def _touch(paths: Sequence[Path], now_ns: int) -> None:
    """Say that the files of blocks are used now."""
    for number, path in enumerate(paths):
        _touched(path, _used_ns(now_ns, BLOCK_TOKENS * (number + 1)))


def _touched(path: Path, used_ns: int) -> bool:
    """Say that a file is used; whether there is one."""
    try:
        os.utime(path, ns=(used_ns, used_ns), follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:  # another user's, or on a disk that is only read
        return True
    return True
