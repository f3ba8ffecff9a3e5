"""A bundle on the HTP emulator is measured, and its switching compared, as one on CPU is."""

import dataclasses
import json

import pytest

from coordgen_rs.convert.qnn.compile import compile_bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.lab.bench.switching import COLUMNS, bench_switching
from coordgen_rs.lab.bench.workbench import STRATEGIES, Settings
from coordgen_rs.lab.profile import block_bytes, measure
from coordgen_rs.lab.tables import Column
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.loading.profile import Profile, fitting_costs, stale_facts
from coordgen_rs.runtime.onnx_runtime import set_threads
from qnn_bundles import needs_emulator, qnn_bundle

pytestmark = needs_emulator


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Two blocks, compiled."""
    folder = tmp_path_factory.mktemp("qnn-profile")
    return compile_bundle(qnn_bundle(folder, "TinyStories-656K", "8-gen-2", blocks=2)).bundle


@pytest.fixture(scope="module")
def measured(bundle):
    return measure(bundle.path, repeats=1)


def test_every_block_graph_and_width_has_its_figures(bundle, measured):
    widths = set(bundle.manifest.decode_widths)
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
    for graph, rows in (("prefill", 32), ("decode", 8)):
        binaries = [next(bundle.path.glob(f"block_0{n}.{rows}.*.bin")) for n in range(2)]
        assert sizes[graph] == [path.stat().st_size for path in binaries]
    assert "files" in how


def test_every_strategy_of_switching_says_the_same(bundle, measured):
    costs = fitting_costs(measured, bundle, set_threads(None))
    bench = bench_switching(
        Settings(bundle.path, prompt_len=70, repeats=1), costs, max_new_tokens=2
    )
    assert list(bench.answers) == list(STRATEGIES)
    assert len({tuple(one.answered.tokens) for [one] in bench.answers.values()}) == 1
    assert bench.row("sync")[COLUMNS.index(Column("loads", "ms", 1))] > 0


def test_a_bundle_for_another_provider_or_chip_is_refused(bundle, measured):
    with pytest.raises(BundleError, match="was made for qnn, not for cpu"):
        measure(bundle.path, provider=ProviderChoice("cpu"))
    costs = fitting_costs(measured, bundle, set_threads(None))
    with pytest.raises(BundleError, match="is for 8-gen-2, not for 8-elite"):
        bench_switching(Settings(bundle.path, provider=ProviderChoice(soc="8-elite")), costs)


def test_the_commands_take_the_provider(bundle, measured, tmp_path, coordgen, refused):
    out, kept = tmp_path / "profile.json", tmp_path / "kept.json"
    measured.write(kept)
    chosen = ("--provider", "qnn", "--soc", "8-gen-2")
    told = coordgen("profile", bundle.path, *chosen, "--repeats", 1, "--out", out).out
    assert "on 8-gen-2, emulated by " in told
    assert Profile.read(out).device["provider"] == "qnn"
    switch = ("bench", bundle.path, "--sections", "switching", "--prompt-len", 70, "--repeats", 1)
    switch += ("--profile", kept)
    told = coordgen(*switch, *chosen, "--strategies", "sync,async", "--json", "-").out
    section = json.loads(told)["sections"]["switching"]
    assert [row["strategy"] for row in section["rows"]] == ["sync", "async"]
    assert section["how"] == "simulated"
    assert "was made for qnn, not for cpu" in refused("profile", bundle.path, "--provider", "cpu")
    assert "was made for qnn, not for cpu" in refused(*switch, "--provider", "cpu")
