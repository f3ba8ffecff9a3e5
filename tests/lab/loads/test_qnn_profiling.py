"""A bundle on the HTP emulator is measured, and its switching compared, as one on CPU is."""

import dataclasses
import io
import json
from contextlib import redirect_stdout

import pytest

from coordgen_rs.cli.main import main
from coordgen_rs.convert.qnn.compile import compile_bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.lab.bench.switching import bench_switching
from coordgen_rs.lab.bench.workbench import STRATEGIES, Settings
from coordgen_rs.lab.loads.profile import block_bytes, measure
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.loading.profile import Profile, fitting_costs, stale_facts
from coordgen_rs.runtime.onnx_runtime import set_threads
from qnn_bundles import needs_emulator, qnn_bundle

pytestmark = needs_emulator

CHOSEN = ("--provider", "qnn", "--soc", "8-gen-2")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Two blocks, compiled, with a narrow decode graph beside the wide one."""
    folder = tmp_path_factory.mktemp("qnn-profile")
    sizes = {"blocks": 2, "narrow_rows": 4}
    return compile_bundle(qnn_bundle(folder, "TinyStories-656K", "8-gen-2", **sizes)).bundle


@pytest.fixture(scope="module")
def written(bundle, tmp_path_factory):
    """The profile that the command writes."""
    out = tmp_path_factory.mktemp("profile") / "profile.json"
    with redirect_stdout(io.StringIO()) as told:
        command = ["profile", bundle.path, *CHOSEN, "--repeats", 1, "--out", out]
        assert main([str(part) for part in command]) == 0
    assert "on 8-gen-2, emulated by " in told.getvalue()
    return out


@pytest.fixture(scope="module")
def measured(written):
    return Profile.read(written)


def test_every_block_graph_and_width_has_its_figures(bundle, measured):
    widths = set(bundle.manifest.decode_widths)
    assert measured.device["provider"] == "qnn"
    assert len(measured.blocks) == 2
    for block in measured.blocks:
        assert set(block.decode.compute_us_by_width) == widths
        for figures in (block.prefill, block.decode):
            assert min(figures.load_us, figures.compute_us, figures.num_bytes) > 0
    assert set(measured.step_us_by_width) == set(measured.head.compute_us_by_width) == widths


def test_another_version_or_chip_makes_it_stale(bundle, measured):
    threads = set_threads(None)
    assert stale_facts(measured, bundle, threads) == []
    for name, value in (("qnn", "2.0"), ("soc", "8-elite"), ("is_emulator", False)):
        other = dataclasses.replace(measured, device=measured.device | {name: value})
        [fact] = stale_facts(other, bundle, threads)
        assert fact.startswith(f"device.{name} was {value!r}")


def test_on_a_device_a_block_takes_what_its_binaries_do(bundle, monkeypatch):
    monkeypatch.setattr("coordgen_rs.runtime.qnn.device.is_emulator", lambda: False)
    sizes, how = block_bytes(bundle, 1, ProviderChoice())
    for graph, widths in (("prefill", [32]), ("decode", [4, 8])):
        for block in range(2):
            patterns = [f"block_0{block}.{rows}.*.bin" for rows in widths]
            binaries = [path for pattern in patterns for path in bundle.path.glob(pattern)]
            assert len(binaries) == len(widths)
            assert sizes[graph][block] == sum(path.stat().st_size for path in binaries)
    assert "files" in how


def test_without_binaries_each_graph_has_a_copy_of_the_weights(bundle, monkeypatch):
    monkeypatch.setattr("coordgen_rs.runtime.qnn.device.is_emulator", lambda: False)
    target = dataclasses.replace(bundle.manifest.qnn, compiled=None)
    manifest = dataclasses.replace(bundle.manifest, qnn=target)
    sizes, _ = block_bytes(dataclasses.replace(bundle, manifest=manifest), 1, ProviderChoice())
    weights = [manifest.files[block.weights].num_bytes for block in manifest.blocks]
    assert sizes == {"prefill": weights, "decode": [2 * size for size in weights]}


def test_every_strategy_of_switching_says_the_same(bundle, written, coordgen, refused):
    """The bench refuses to go on where one says something else."""
    switch = ("bench", bundle.path, "--sections", "switching", "--prompt-len", 40, "--repeats", 1)
    switch += ("--profile", written)
    section = json.loads(coordgen(*switch, *CHOSEN, "--json", "-").out)["sections"]["switching"]
    assert section["how"] == "simulated"
    rows = {row["strategy"]: row for row in section["rows"]}
    assert list(rows) == list(STRATEGIES)
    assert rows["sync"]["loads"] > 0
    assert "was made for qnn, not for cpu" in refused(*switch, "--provider", "cpu")


def test_a_bundle_for_another_provider_or_chip_is_refused(bundle, measured, refused):
    with pytest.raises(BundleError, match="was made for qnn, not for cpu"):
        measure(bundle.path, provider=ProviderChoice("cpu"))
    costs = fitting_costs(measured, bundle, set_threads(None))
    with pytest.raises(BundleError, match="is for 8-gen-2, not for 8-elite"):
        bench_switching(Settings(bundle.path, provider=ProviderChoice(soc="8-elite")), costs)
    assert "was made for qnn, not for cpu" in refused("profile", bundle.path, "--provider", "cpu")
