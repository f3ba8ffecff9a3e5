"""The profile of a bundle: complete, true to the bundle, and known to be stale when it is."""

import dataclasses
import io
import warnings
from contextlib import redirect_stdout

import pytest

from checkpoints import write_checkpoint
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleError, ProfileError, StaleProfileWarning
from coordgen_rs.lab.loads.profile import block_bytes, measure
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.loading.profile import Profile, fitting_costs, stale_facts
from coordgen_rs.runtime.onnx_runtime import set_threads


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Three layers in two blocks: the second has one layer less."""
    directory = tmp_path_factory.mktemp("profile")
    write_checkpoint(directory / "checkpoint", layers=3, hidden=256, ffn=1024)
    export_checkpoint(directory / "checkpoint", directory / "bundle", blocks=2, prefill_rows=64)
    return Bundle.open(directory / "bundle")


@pytest.fixture(scope="module")
def measured(bundle, tmp_path_factory):
    """What the command writes; it prints a line a block and graph."""
    out = tmp_path_factory.mktemp("profile") / "profile.json"
    threads = set_threads(None)  # those of this process
    options = ["--repeats", 1, "--out", out, "--threads", threads]
    with redirect_stdout(io.StringIO()) as told:
        assert main([str(part) for part in ("profile", bundle.path, *options)]) == 0
    assert [told.getvalue().count(f" block {block} ") for block in (0, 1)] == [2, 2]
    profile = Profile.read(out)
    assert profile.device["threads"] == threads
    return profile


def test_every_block_graph_and_width_has_its_figures(bundle, measured):
    widths = set(bundle.manifest.decode_widths)
    assert (measured.prefill_rows, measured.decode_rows) == (64, 32)
    assert len(measured.blocks) == 2
    for block in measured.blocks:
        assert set(block.decode.compute_us_by_width) == widths
        assert block.decode.compute_us == block.decode.compute_us_by_width[32]
        for figures in (block.prefill, block.decode):
            assert min(figures.load_us, figures.compute_us) > 0
    assert set(measured.step_us_by_width) == set(measured.head.compute_us_by_width) == widths


def test_a_block_takes_its_weights_in_memory(bundle):
    grown, how = block_bytes(bundle, set_threads(None), ProviderChoice())
    assert "resident" in how
    for sizes in grown.values():
        for block, num_bytes in zip(bundle.manifest.blocks, sizes, strict=True):
            assert num_bytes > bundle.manifest.files[block.weights].num_bytes / 2


def test_without_figures_of_the_system_files_are_counted(bundle, monkeypatch):
    monkeypatch.setattr("coordgen_rs.lab.loads.profile.resident_bytes", lambda: 0)
    sizes, how = block_bytes(bundle, 1, ProviderChoice())
    weights = [bundle.manifest.files[block.weights].num_bytes for block in bundle.manifest.blocks]
    assert sizes == {"prefill": weights, "decode": weights}
    assert "files" in how


def test_what_makes_it_stale_is_named(bundle, measured, bundle_of):
    threads = set_threads(None)
    assert stale_facts(measured, bundle, threads) == []
    other = Bundle.open(bundle_of("embedded", "fp32"))
    [digest] = stale_facts(measured, other, threads)
    assert digest.startswith("bundle.manifest_sha256 was ")
    assert stale_facts(measured, bundle, threads + 1) == [
        f"device.threads was {threads}, is {threads + 1}"
    ]
    older = dataclasses.replace(measured, device=measured.device | {"onnxruntime": "1.0"})
    assert "device.onnxruntime was '1.0'" in stale_facts(older, bundle, threads)[0]


def test_a_stale_profile_is_a_warning_and_one_of_other_blocks_an_error(bundle, measured, bundle_of):
    threads = set_threads(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs = fitting_costs(measured, bundle, threads)
    assert [cost.decode_bytes for cost in costs] == [
        block.decode.num_bytes for block in measured.blocks
    ]
    with pytest.warns(StaleProfileWarning, match=r"measure again .* device.threads was"):
        assert fitting_costs(measured, bundle, threads + 1) == costs
    with pytest.raises(ProfileError, match="has 2 blocks"):
        fitting_costs(measured, Bundle.open(bundle_of("embedded", "fp32")), threads)


def test_a_profile_is_replaced_as_a_whole_or_not_at_all(measured, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("another")
    measured.write(path)
    assert Profile.read(path) == measured
    with pytest.raises(OSError, match="absent"):
        measured.write(tmp_path / "absent" / "profile.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]


def test_wrong_options_are_named(bundle, tmp_path, refused):
    with pytest.raises(BundleError, match="was made for cpu, not for qnn"):
        measure(bundle.path, provider=ProviderChoice("qnn"))
    with pytest.raises(BundleError, match="not a bundle"):
        measure(tmp_path)
    assert "not a bundle" in refused("profile", tmp_path)
