"""The tokens of a cache: which are committed, which a run has written, and the ways back.

In: runs, by whoever has made them. Out: what is committed of them, and may be reused. How rows are
computed is its subclasses' matter.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import SwitchReport
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import OptionError, ShapeError, arguments
from coordgen_rs.runtime.caches.kv_cache import Cache
from coordgen_rs.runtime.session import GapWork
from coordgen_rs.store.background import NotCopied
from coordgen_rs.store.prefixes.prefix import PrefixReader, SavedPrefix, Snapshot

_ANSWER_BEGINS = 16
"""Most tokens at a prompt's end that may be the template's own, which begin the answer."""


class CachedSession(NotCopied, ABC):
    """A session that holds the tokens of one request.

    Args:
        bundle: What it runs.
        cache: Keys and values of the tokens.
        allowed_commits: Ways to commit that are allowed.

    Attributes:
        bundle: The `bundle` argument.
        cache: The `cache` argument.
        allowed_commits: The `allowed_commits` argument.
        capacity: Number of tokens that the cache can hold; `limit` changes it.
        vocab_size: Number of columns of the logits.
        end_token_ids: Tokens that end an answer.
        request: Same as in `Session`.
        gap_work: Same as in `Session`.
        is_exact_after_prefill: Whether prefill graphs and decode graphs give equal bits; True until
            a self-test says otherwise.
        is_exact_on_branches: Whether rows on a side branch have the bits of plain decoding, and may
            so be moved by an exact commit; False until a self-test says otherwise.
        is_exact_at_any_rows: Whether rows have them in runs of any number of rows, so that the rest
            of a prompt is read in one run; False until a self-test says otherwise.
    """

    def __init__(self, bundle: Bundle, cache: Cache, allowed_commits: Sequence[str]) -> None:
        self.bundle, self.cache, self.allowed_commits = bundle, cache, allowed_commits
        self.request = 0
        self.gap_work: GapWork = None
        manifest = bundle.manifest
        self._written = 0  # slots, from the first, that the last run left written
        self._run_at = 0  # tokens that were committed before it
        # Of the slots, also of those that a run has written and nobody committed yet.
        self._token_ids = np.zeros(manifest.context + manifest.widths[-1], np.uint32)
        self._num_canonical = 0
        self.capacity, self.vocab_size = manifest.context, manifest.model.vocab_size
        self.end_token_ids: Sequence[int] = manifest.end_token_ids
        self.is_exact_after_prefill, self.is_exact_on_branches = True, False
        self.is_exact_at_any_rows = False
        self._readers: list[PrefixReader] = []

    @abstractmethod
    def prefill(self, token_ids: NDArray[np.uint32]) -> SwitchReport | None:
        """Compute and commit tokens after the committed ones."""

    def _keep_hidden(self, rows: NDArray[np.intp], start: int) -> None:
        """Keep what the last block gave for rows of the last run, if anybody wants it.

        They are being committed.

        Args:
            rows: As the run counted them.
            start: Tokens that are committed before them.
        """

    def _forget_hidden(self, length: int) -> None:
        """Of the first tokens it is not known what the last block has given."""

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return self.cache.length

    @property
    def reusable_ids(self) -> NDArray[np.uint32]:
        """The committed tokens whose keys and values are what computing them again would give.

        `(tokens,) u32`. Those behind a compact commit are not among them unless it was found exact.
        Where prefill graphs and decode graphs differ, there are none.
        """
        num_tokens = min(self._num_canonical, self.length) if self.is_exact_after_prefill else 0
        return self._token_ids[:num_tokens]

    def limit(self, capacity: int) -> None:
        """Hold no more than `capacity` tokens.

        Raises:
            OptionError: It is less than 1, or more than the bundle was exported for.
        """
        most, shown = self.bundle.manifest.context, self.bundle.shown
        capacity = arguments.count("context", capacity)
        if capacity > most:
            raise OptionError(
                f"context is {capacity}, but {shown} was made for {most} tokens: export it with a "
                "larger --context"
            )
        self.capacity = capacity

    @property
    def exact_commits(self) -> Sequence[str]:
        """Those of them that change no token here, by the self-test."""
        return self.allowed_commits if self.is_exact_on_branches else ("canonical",)

    def _readable(self, token_ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Tokens that may be read; raises the errors of their arguments as `prefill` does."""
        token_ids = arguments.token_ids("prefill", token_ids, self.vocab_size)
        self._check_capacity(len(token_ids))
        return token_ids

    def _check_capacity(self, num_tokens: int) -> None:
        if self.length + num_tokens > self.capacity:
            raise ShapeError(
                f"{self.length} committed and {num_tokens} new tokens exceed the capacity of "
                f"{self.capacity}"
            )

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Add `rows` of the last step, `(tokens,) u32` ascending, to the cache.

        Raises:
            OptionError: The rows are not integers.
            ShapeError: They do not ascend, the last step has not written one, or the cache is full.
        """
        rows = arguments.commit_rows(rows, self._written - self.length)
        self._check_capacity(len(rows))
        self._commit(rows)

    def _commit(self, rows: NDArray[np.uint32]) -> None:
        """Commit written rows, and move their tokens along before that counts.

        After a failure half-way no row of the run can be committed: some may have been moved.
        """
        start, end = self.length, self.length + len(rows)
        written, self._written = self._written, start
        self._num_canonical = min(self._num_canonical, start)
        is_canonical = len(rows) == 0 or int(rows[-1]) == len(rows) - 1
        if not is_canonical:
            self._token_ids[start:end] = self._token_ids[start + rows.astype(np.intp)]
        self._keep_hidden(start - self._run_at + rows.astype(np.intp), start)
        self.cache.commit(rows)
        if (is_canonical or self.is_exact_on_branches) and self._num_canonical == start:
            self._num_canonical = end
        self._written = max(written, end)

    def forget(self) -> None:
        """Forget all tokens, and all rows that were written."""
        self.rewind(0)
        self._written = self._num_canonical = 0

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens.

        Where layers are recurrent, tokens behind those that `reachable` tells are read again.

        Raises:
            OptionError: `length` is negative or no integer.
            ShapeError: It is greater than the number of committed tokens.
            BlockLoadError, DeviceLostError, SessionClosedError: Tokens cannot be read again; those
                before them are committed.
        """
        length = arguments.count("length", length, least=0)
        if length > self.length:
            raise ShapeError(f"cannot rewind from {self.length} to {length} tokens")
        reached = self.reachable(length)
        self._before_change(reached)
        self.cache.rewind(reached)
        if self.cache.states is not None:
            self._written = reached  # which rows of the last run fit to the states is not known
        self._read_again(length)

    def _read_again(self, length: int) -> None:
        """Read tokens that are known, until there are `length`."""
        if self.length < length:
            self.prefill(self._token_ids[self.length : length].copy())

    def reachable(self, length: int) -> int:
        """Most tokens, at most `length`, that `rewind` leaves without reading any again."""
        states = self.cache.states
        return length if states is None else states.reachable(length, self.length)

    @property
    def state_sizes(self) -> Sequence[int]:
        """Bytes of the states of each operator of recurrent layers; empty where there are none."""
        return () if self.cache.states is None else self.cache.states.sizes

    def prefix_in_place(self, num_tokens: int) -> SavedPrefix:
        """The first tokens of `reusable_ids`, with their keys and values, not copied."""
        states, layers = self.cache.states, self.cache.first(num_tokens)
        snapshots = None if states is None else states.snapshots
        return SavedPrefix(self.reusable_ids[:num_tokens], layers, snapshots)

    def snapshots(self) -> Sequence[Snapshot] | None:
        """States of recurrent layers behind some of the tokens, ascending; None without such."""
        return None if self.cache.states is None else self.cache.states.known(self.length)

    def add_reader(self, reader: PrefixReader) -> None:
        """Tell a reader before tokens that are committed now are overwritten."""
        self._readers = [it for it in self._readers if not it.is_over]
        self._readers.append(reader)

    def _before_change(self, length: int) -> None:
        """Tell those who read tokens in place that only the first `length` stay."""
        if length < self.length:
            for reader in self._readers:
                reader.before_change(length)

    def saved_prefix(self) -> SavedPrefix:
        """A copy of `reusable_ids` with their keys and values, and states."""
        token_ids, states = self.reusable_ids.copy(), self.cache.states
        layers = self.cache.copied(len(token_ids))
        return SavedPrefix(token_ids, layers, None if states is None else states.saved(self.length))

    def restore_prefix(self, prefix: SavedPrefix, num_tokens: int) -> None:
        """Commit the first `num_tokens` tokens of a saved prefix, in place of all that is there.

        Args:
            prefix: Saved from this session.
            num_tokens: At most as many as the prefix has.

        Raises:
            OptionError: `num_tokens` is negative or no integer.
            ShapeError: The prefix has fewer tokens.
        """
        num_tokens = arguments.count("num_tokens", num_tokens, least=0)
        if num_tokens > len(prefix.token_ids):
            raise ShapeError(
                f"a prefix of {len(prefix.token_ids)} tokens cannot give back {num_tokens}"
            )
        reached = prefix.reachable(num_tokens)
        self._before_change(0)
        self._num_canonical = self.cache.length = 0  # until all is there
        if self.cache.states is not None:
            self.cache.states.put(prefix.states or (), reached)
        self.cache.put(prefix.layers, reached)
        self._token_ids[:num_tokens] = prefix.token_ids[:num_tokens]
        self._forget_hidden(reached)
        self._num_canonical = self._written = self._run_at = reached
        self._read_again(num_tokens)


def turn_of(session: CachedSession, num_tokens: int) -> int:
    """Where a turn may end in so many tokens that are to be read, so that states are to be kept.

    As a number of committed tokens; 0 where there are no states, or others have just been kept.
    """
    states, turn = session.cache.states, session.length + num_tokens - _ANSWER_BEGINS
    return turn if states is not None and states.is_due(turn) else 0
