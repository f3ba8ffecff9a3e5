"""Sessions and stores of prefixes for tests: what a token's keys and values must be is known."""

import os
import signal
from pathlib import Path

import numpy as np

from coordgen_rs.store.background import TaskQueue
from coordgen_rs.store.prefixes import directory as blocks
from coordgen_rs.store.prefixes.directory import StoreDirectory, stored_files
from coordgen_rs.store.prefixes.prefix import SavedPrefix, Snapshot
from coordgen_rs.store.prefixes.store import PrefixStore, TargetIdentity

HEADS, SIZE = 2, 8
TOKEN_BYTES = 2 * 2 * HEADS * SIZE * 4
TARGET = TargetIdentity(b"a target", "bundle", "f32", "1.0")


def computed(token_ids, heads=HEADS):
    """Per layer keys and values of tokens: their numbers tell token, place, head and layer."""
    of_tokens = token_ids * np.float32(1000) + np.arange(len(token_ids), dtype=np.float32)
    layers = []
    for layer in range(2):
        keys = np.empty((1, heads, len(token_ids), SIZE), np.float32)
        for head in range(heads):
            keys[0, head] = of_tokens[:, np.newaxis] + (layer * heads + head) / 16
        layers.append((keys.view(np.uint8), (keys + 0.5).view(np.uint8)))
    return layers


def states_of(token_ids):
    """The state that tokens leave."""
    return np.frombuffer(np.uint64(hash(tuple(token_ids.tolist())) & 2**63 - 1).tobytes() * 8, "u1")


class ReadSession:
    """Holds tokens as a session does that has just read them."""

    def __init__(self, token_ids=(), turns=None):
        self.held = np.array(token_ids, np.uint32)
        self.layers = computed(self.held)
        self.turns, self.state_sizes = turns, () if turns is None else (64,)
        self.readers = []

    @property
    def reusable_ids(self):
        return self.held

    def reachable(self, length):
        return length

    def prefix_in_place(self, num_tokens):
        layers = [
            (keys[:, :, :num_tokens], values[:, :, :num_tokens]) for keys, values in self.layers
        ]
        return SavedPrefix(self.held[:num_tokens], layers)

    def saved_prefix(self):
        token_ids, layers, states = self.prefix_in_place(len(self.held))
        copies = [(keys.copy(), values.copy()) for keys, values in layers]
        return SavedPrefix(token_ids.copy(), copies, states)

    def restore_prefix(self, prefix, num_tokens):
        self.overwrite(prefix.token_ids[:num_tokens])

    def snapshots(self):
        if self.turns is None:
            return None
        return [Snapshot(it, [states_of(self.held[:it])], is_turn=True) for it in self.turns]

    def add_reader(self, reader):
        self.readers.append(reader)

    def overwrite(self, token_ids):
        """Hold other tokens, in the same memory."""
        for reader in self.readers:
            reader.before_change(0)
        for pair in self.layers:
            for array in pair:
                array[:] = 0xEE
        self.held = np.array(token_ids, np.uint32)
        self.layers = computed(self.held)


class LateQueue(TaskQueue):
    """Tasks that are done when somebody waits for them, by who does."""

    def try_add(self, task):
        self._tasks.append(self._queued(task))

    def flush(self):
        self._run()

    join = flush


def keep(store, token_ids, namespace="a", since=0, turns=None):
    """Have tokens in a store."""
    store.save(ReadSession(token_ids, turns), namespace, since, ends=True)
    store.flush()


def stored(path, token_ids, namespace="a", turns=None, **options):
    """A store in which tokens are."""
    store = PrefixStore(path, TARGET, **options)
    keep(store, token_ids, namespace, turns=turns)
    return store


def found(store, prompt, namespace="a", held=0, turns=None):
    """How many tokens of a prompt are found, all of them as computing them gives them."""
    prompt = np.array(prompt, np.uint32)
    prefix = store.find(ReadSession(turns=turns), prompt, namespace, held)
    if prefix is None:
        return 0
    check(prefix, prompt)
    return len(prefix.token_ids)


def check(prefix, prompt):
    """Check that a prefix is the prompt's, bit for bit."""
    length = len(prefix.token_ids)
    assert np.array_equal(prefix.token_ids, prompt[:length])
    for pair, expected in zip(prefix.layers, computed(prompt[:length]), strict=True):
        for array, of_these in zip(pair, expected, strict=True):
            assert np.array_equal(array, of_these)
    for snapshot in prefix.states or ():
        assert np.array_equal(snapshot.states[0], states_of(prompt[: snapshot.length]))


def files(path, pattern="*/*.kv"):
    return sorted(path.glob(pattern))


def keep_and_die(path, left):
    """Have tokens in a store, and be killed before one of the calls that change a file."""

    def counted(call):
        def done(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return done

    Path.replace, os.utime = counted(Path.replace), counted(os.utime)
    keep(PrefixStore(path, TARGET), np.arange(200))


def write(directory, folder, number, num_bytes):
    """Write a file of so many bytes, and check that all are within the limit meanwhile."""
    content = np.zeros(num_bytes - blocks.HEAD_BYTES, np.uint8)
    path = folder / f"{number:032x}.kv"
    with directory.room_for(num_bytes):
        there = sum(it.num_bytes for it in stored_files(directory.path))
        assert there + num_bytes <= directory.most_bytes
        blocks.write(path, blocks.Head(bytes(16), bytes(16), 0, 1), content, number)
    return path


def write_many(path, which):
    """Write files beside others who write some."""
    directory = StoreDirectory(path, 30_000)
    folder = directory.make_folder(bytes(16), {})
    for number in range(60):
        write(directory, folder, number * 3 + which, 700 + 100 * (number % 7))
