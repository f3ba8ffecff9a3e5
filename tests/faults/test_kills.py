"""Processes that are killed at random points: what there is, is whole, and nothing is left over."""

import random
import shutil
import warnings
from pathlib import Path

import pytest

from checkpoints import write_checkpoint
from coordgen_rs import Bundle, LookupTable
from coordgen_rs._core import remove_abandoned
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.qnn import compile as qnn_compile
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.errors import LeftoverWarning
from fault_workers import (
    KEY,
    VOCAB_SIZE,
    compile_forever,
    export_forever,
    save_forever,
    stub_compiler,
    table,
)
from killed import kill_at_random, names


def kills(short, full):
    return pytest.mark.parametrize(
        "num_kills", [short, pytest.param(full, marks=pytest.mark.faults)]
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("killed") / "checkpoint")


@pytest.fixture(scope="module")
def for_qnn(checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("qnn") / "bundle"
    options = {"context": 32, "prefill_rows": 8, "decode_rows": 4, "blocks": 2}
    export_qnn(checkpoint, out, soc="8-gen-2", **options)
    return out


@kills(2, 60)
def test_a_killed_export_leaves_a_whole_bundle_or_none(checkpoint, tmp_path, num_kills):
    rng, number = random.Random(num_kills), 0
    num_halves = 0
    for _ in range(num_kills):
        told = kill_at_random(export_forever, checkpoint, tmp_path, number, rng=rng)
        number = told[-1] + 1 if told else number
        if (tmp_path / f"out-{number}").exists():  # killed before it could tell
            number += 1
        whole = [name for name in names(tmp_path) if name.startswith("out-")]
        assert whole == sorted(f"out-{done}" for done in range(number))
        for name in whole[-2:]:
            Bundle.open(tmp_path / name).verify()
        halves = [name for name in names(tmp_path) if name.endswith(".unfinished")]
        assert all(name.startswith(f".out-{number}.") for name in halves)
        assert len(halves) <= 1
        num_halves += len(halves)
        if halves and rng.random() < 0.5:
            with pytest.warns(LeftoverWarning, match="was removed"):
                export_checkpoint(checkpoint, tmp_path / f"out-{number}")
            number += 1
            assert not any(name.endswith(".unfinished") for name in names(tmp_path))
    print(f"{num_kills} kills, {num_halves} in the middle of an export")


@kills(2, 50)
def test_a_killed_compilation_leaves_the_old_binaries_or_the_new(
    for_qnn, tmp_path, monkeypatch, num_kills
):
    rng = random.Random(num_kills)
    bundle = Path(shutil.copytree(for_qnn, tmp_path / "bundle"))
    num_leftovers = 0
    for _ in range(num_kills):
        kill_at_random(compile_forever, bundle, rng=rng)
        opened = Bundle.open(bundle)
        opened.verify()
        num_leftovers += names(bundle) != sorted([*opened.manifest.files, "manifest.json"])
    print(f"{num_kills} kills, {num_leftovers} times with something left over")
    stub_compiler(monkeypatch.setattr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftoverWarning)
        done = qnn_compile.compile_bundle(bundle).bundle
    assert names(bundle) == sorted([*done.manifest.files, "manifest.json"])
    done.verify()


@kills(2, 40)
def test_a_killed_warm_up_leaves_the_old_table_or_the_new(tmp_path, num_kills):
    rng, path = random.Random(num_kills), tmp_path / "bundle.lookup-table"
    for number in range(2):
        table(number).save(tmp_path / str(number), VOCAB_SIZE, KEY)
    expected = {(tmp_path / str(number)).read_bytes() for number in range(2)}
    for _ in range(num_kills):
        kill_at_random(save_forever, path, rng=rng)
        if path.exists():
            assert path.read_bytes() in expected
            LookupTable.open(path, VOCAB_SIZE, KEY)
        assert len(names(tmp_path)) <= 4  # each run removes what the one before left
    remove_abandoned(path)
    assert names(tmp_path) == ["0", "1", "bundle.lookup-table"]
