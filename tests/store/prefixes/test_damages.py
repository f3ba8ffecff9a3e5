"""1,000 damaged stores, mostly 100: what is wrong costs computing, and gives no other bit."""

import os
import shutil
from random import Random

import numpy as np
import pytest

from coordgen_rs.store.prefixes import directory as blocks
from coordgen_rs.store.prefixes.directory import DamagedFileError, Head
from coordgen_rs.store.prefixes.prefix import BLOCK_TOKENS
from coordgen_rs.store.prefixes.store import PrefixStore
from damages import damaged
from stored_prefixes import TARGET, files, found, keep

NUM_DAMAGES, USUAL_DAMAGES, AT_ONCE = 1_000, 100, 50
PROMPT = np.arange(200, dtype=np.uint32)
TURNS = (70, 150, 199)


def swapped(path, random):
    other = random.choice([it for it in files(path.parent, "*") if it.suffix == path.suffix])
    if other.is_file():
        path.write_bytes(other.read_bytes())


def a_link_to_itself_elsewhere(path, _):
    moved = path.with_name(f"moved-{path.name}")
    path.rename(moved)
    path.symlink_to(moved)


def linked(path, random):
    path.symlink_to(
        random.choice([path.parent / "about.json", path.parent, "/dev/zero", "nowhere"])
    )


def instead(make):
    """Something else in a file's place."""

    def replace(path, random):
        path.unlink()
        make(path, random)

    return replace


NO_FILES = [
    instead(lambda path, _: path.mkdir()),
    instead(linked),
    instead(lambda path, _: os.mkfifo(path)),
]
KINDS = (
    lambda path, random: path.write_bytes(damaged(path.read_bytes(), random)),
    lambda path, _: path.write_bytes(b""),
    swapped,
    lambda path, random: path.write_bytes(random.randbytes(path.stat().st_size)),
    *NO_FILES,
    a_link_to_itself_elsewhere,
    lambda path, _: path.chmod(0),
    lambda path, _: path.unlink(),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with blocks and states, as it should be."""
    path = tmp_path_factory.mktemp("whole")
    store = PrefixStore(path, TARGET)
    for namespace in "ab":
        keep(store, PROMPT, namespace)
    keep(store, PROMPT, "states", turns=TURNS)
    store.close()
    return path


@pytest.mark.filterwarnings("ignore::coordgen_rs.errors.PrefixStoreWarning")
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(it, marks=[pytest.mark.damage_full] * (it >= USUAL_DAMAGES))
        for it in range(0, NUM_DAMAGES, AT_ONCE)
    ],
)
def test_a_damaged_file_never_gives_another_bit(tmp_path, whole, first):
    for number in range(first, first + AT_ONCE):
        random, path = Random(number), tmp_path / str(number)
        shutil.copytree(whole, path)
        for victim in random.sample(files(path, "*/*.[ks]*"), random.choice((1, 1, 3))):
            random.choice(KINDS)(victim, random)
        store = PrefixStore(path, TARGET)
        for _ in range(4):  # each time what is found to be damaged is written anew
            for namespace, turns in (("a", None), ("b", None), ("states", TURNS)):
                found(store, [*PROMPT, 1], namespace, turns=turns)  # checks all bits
                keep(store, PROMPT, namespace, turns=turns)
        again = [found(store, [*PROMPT, 1], namespace) for namespace in "ab"]
        again.append(found(store, [*PROMPT, 1], "states", turns=TURNS))
        has_squatter = any(it.is_dir() for it in files(path, "*/*.[ks]*"))
        assert has_squatter or again == [192, 192, 199]
        store.close()


def test_what_is_no_file_keeps_nothing_open(tmp_path):
    before = os.open(tmp_path, os.O_RDONLY)
    os.close(before)
    for number, kind in enumerate(NO_FILES):
        path = tmp_path / str(number)
        path.touch()
        kind(path, Random(1))
        with pytest.raises(DamagedFileError):
            blocks.read(path, Head(bytes(16), bytes(16), 0, 1), np.empty(4, np.uint8))
        assert blocks.num_tokens_of(path) == 0
    after = os.open(tmp_path, os.O_RDONLY)
    os.close(after)
    assert after == before


def test_every_single_bit_and_every_length_is_checked(tmp_path):
    path, head = tmp_path / "file.kv", Head(bytes(16), b"n" * 16, 64, 2)
    content, read = np.arange(24, dtype=np.uint8), np.empty(24, np.uint8)
    blocks.write(path, head, content, 1)
    blocks.read(path, head, read)
    assert np.array_equal(read, content)
    written = path.read_bytes()
    for other in [*map(written.__getitem__, map(slice, range(len(written)))), written + b"\0"]:
        path.write_bytes(other)
        with pytest.raises(DamagedFileError):
            blocks.read(path, head, read)
    for bit in range(8 * len(written)):
        other = bytearray(written)
        other[bit // 8] ^= 1 << bit % 8
        path.write_bytes(other)
        with pytest.raises(DamagedFileError):
            blocks.read(path, head, read)
    path.write_bytes(written)
    for other in ({"scope": b"s" * 16}, {"name": bytes(16)}, {"start": 0}, {"num_tokens": 3}):
        with pytest.raises(DamagedFileError):
            blocks.read(path, head._replace(**other), read)
    with pytest.raises(FileNotFoundError):
        blocks.read(tmp_path / "none", head, read)


def test_a_block_of_other_tokens_under_the_same_name_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_hashed", lambda kind, before, more: bytes(16))
    store = PrefixStore(tmp_path, TARGET)
    keep(store, PROMPT[:BLOCK_TOKENS])
    assert found(store, np.arange(100, 140)) == 0
    assert store.counts.damaged == 1
