"""Experts of a bundle: mapped, kept within a budget, and refused where they do not fit."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from answers import tokens_of
from checkpoints import exported
from coordgen_rs._core import BlockCost
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import (
    BlockLoadError,
    BundleDamagedError,
    MemoryBudgetError,
    SessionClosedError,
)
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.lab.loads.profile import measure
from coordgen_rs.loading.session import open_session
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.ort_session import OrtSession
from mixtures import write_mixture

_FIGURES = ("load_us", "compute_us", "bytes")


not_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="not on Windows")


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    folder, sizes = tmp_path_factory.mktemp("experts"), {"prefill_rows": 32, "context": 128}
    return {
        family: exported(write_mixture(folder / family, family), folder / out, blocks=2, **sizes)
        for family, out in (("qwen3_moe", "one"), ("lfm2_moe", "other"))
    }


@pytest.fixture(scope="module", params=["qwen3_moe", "lfm2_moe"])
def bundle(request, mixtures):
    return mixtures[request.param]


@pytest.fixture
def copy(mixtures, tmp_path):
    """A copy of a bundle, to be damaged."""
    return Bundle.open(shutil.copytree(mixtures["qwen3_moe"].path, tmp_path / "copy"))


def sizes(bundle):
    """Bytes of all blocks' graphs, of the largest, of a layer's experts, and of all experts."""
    manifest = bundle.manifest
    graphs = [manifest.files[block.weights].num_bytes for block in manifest.blocks]
    layers = [region.num_bytes for region in manifest.experts.layers]
    return sum(graphs), max(graphs), max(layers), sum(layers)


def answer(session, decode, stats=None):
    prompt = np.tile(np.arange(40, 60, dtype=np.uint32), 3)
    return tokens_of(decode(session, prompt, max_new_tokens=24, ignore_eos=True, stats=stats))


@not_on_windows
@pytest.mark.parametrize("decode", [plain, generate])
def test_answers_within_a_budget_are_those_without(bundle, decode):
    graphs, _, layer, experts = sizes(bundle)
    without = Stats()
    expected = answer(OrtSession(CpuDevice(bundle)), decode, without)
    assert without.experts is without.to_json()["experts"] is None
    for budget in (graphs + layer, graphs + (layer + experts) // 2, graphs + 2 * experts):
        device, stats = CpuDevice(bundle), Stats()
        session = OrtSession(device, memory_budget=budget)
        assert answer(session, decode, stats) == expected
        assert device.experts.budget == min(budget - graphs, experts)
        assert stats.experts.asked > 0
        assert stats.experts.held_bytes <= device.experts.budget
        assert stats.to_json()["experts"]["asked"] == stats.experts.asked
        assert "experts: " in str(stats)
    assert stats.experts.misses <= experts // 4096  # all of them are read once at most


@not_on_windows
def test_blocks_are_streamed_where_the_budget_has_no_room_for_all(bundle):
    _, largest, layer, _ = sizes(bundle)
    expected = answer(OrtSession(CpuDevice(bundle)), plain)
    session = OrtSession(CpuDevice(bundle), memory_budget=largest + layer)
    assert answer(session, plain) == expected
    assert session.switcher.memory_budget == largest
    assert session.switcher.is_streaming
    with pytest.raises(MemoryBudgetError, match=f"{largest + layer} bytes are the least"):
        OrtSession(CpuDevice(bundle), memory_budget=largest + layer - 1)


@not_on_windows
@pytest.mark.parametrize("has_budget", [False, True])
def test_a_file_that_is_cut_short_while_a_session_runs_is_named(bundle, tmp_path, has_budget):
    graphs, _, layer, _ = sizes(bundle)
    region = bundle.manifest.experts.layers[-1]
    path = bundle.file(region.file)
    whole = path.read_bytes()
    session = OrtSession(CpuDevice(bundle), memory_budget=graphs + layer if has_budget else None)
    expected = answer(session, plain)
    try:
        with path.open("r+b") as stream:
            stream.truncate(region.offset)
        with pytest.raises(BundleDamagedError, match=rf"{path} cannot be read: it was cut short"):
            answer(session, plain)
    finally:
        path.write_bytes(whole)
    assert answer(session, plain) == expected


@pytest.fixture(scope="module")
def profile(bundle):
    return measure(bundle.path, repeats=1)


@not_on_windows
def test_with_a_profile_a_budget_holds_what_its_figures_say(bundle, profile):
    """Also where graphs take more than their files, as they do in memory; it counts no experts."""
    files, blocks = bundle.manifest.files, bundle.manifest.blocks
    weights = [files[block.weights].num_bytes for block in blocks]
    assert [cost.prefill_bytes for cost in profile.block_costs()] == weights
    assert [cost.decode_bytes for cost in profile.block_costs()] == weights
    _, _, layer, experts = sizes(bundle)
    expected = answer(OrtSession(CpuDevice(bundle)), plain)
    for grown in (0, 1 << 20):
        costs = [heavier(cost, grown) for cost in profile.block_costs()]
        graph_bytes = [max(cost.prefill_bytes, cost.decode_bytes) for cost in costs]
        for budget in (max(graph_bytes) + layer, sum(graph_bytes) + layer):
            session = OrtSession(CpuDevice(bundle), memory_budget=budget, costs=costs)
            assert answer(session, plain) == expected
            assert session.switcher.memory_budget == budget - layer
            assert layer <= session.device.experts.budget <= experts
    session = open_session(bundle.path, memory_budget=budget, profile=profile)
    assert answer(session, plain) == expected


def heavier(cost, num_bytes):
    """The cost of a block whose decode graph takes so many bytes more."""
    names = [f"{graph}_{what}" for graph in ("prefill", "decode") for what in _FIGURES]
    figures = {name: getattr(cost, name) for name in names}
    return BlockCost(**figures | {"decode_bytes": cost.decode_bytes + num_bytes})


@not_on_windows
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("has_budget", [False, True])
def test_a_closed_session_holds_no_experts(bundle, has_budget):
    graphs, _, layer, _ = sizes(bundle)
    threads = num_threads()
    session = OrtSession(CpuDevice(bundle), memory_budget=graphs + layer if has_budget else None)
    answer(session, generate)
    assert is_mapped(bundle.path)
    session.close()
    assert not is_mapped(bundle.path)
    assert num_threads() == threads
    assert session.expert_report() is None
    with pytest.raises(SessionClosedError, match="the session is closed"):
        answer(session, plain)
    with pytest.raises(SessionClosedError, match="the session is closed"):
        answer(OrtSession(session.device), plain)


def is_mapped(folder):
    """Whether the process maps a folder's experts."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(str(folder) in line and line.endswith(".experts") for line in lines)


def num_threads():
    """Threads that load or read."""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("coordgen-load") for name in names)


def test_a_layers_experts_are_the_files_own_memory(copy):
    """What is written to the file afterwards is seen through the mapping."""
    files, region = ExpertFiles(copy), copy.manifest.experts.layers[1]
    assert region.file == "block_01.experts"
    assert files.inputs(1) == {}
    ((name, value),) = files.inputs(region.layer).items()
    assert (name, value.shape()) == ("experts_2", [region.num_bytes])
    with copy.file(region.file).open("r+b") as stream:
        stream.seek(region.offset + 5)
        stream.write(b"\x5a")
    assert value.numpy()[5] == 0x5A


def test_experts_begin_at_pages_and_take_what_the_manifest_says(copy):
    experts = copy.manifest.experts
    for region in experts.layers:
        stride = experts.stride(region, 64)
        assert (region.offset % 4096, stride % 4096) == (0, 0)
        assert region.num_bytes == 8 * stride
        assert copy.file(region.file).stat().st_size >= region.offset + region.num_bytes


def test_a_graph_of_other_experts_is_refused(copy):
    region = copy.manifest.experts.layers[0]
    object.__setattr__(region, "num_bytes", region.num_bytes + 4096)
    with pytest.raises(BlockLoadError, match="does not fit its manifest: experts_0 is"):
        OrtSession(CpuDevice(copy))


def test_a_file_that_became_shorter_or_went_is_named(copy):
    region = copy.manifest.experts.layers[-1]
    path = copy.file(region.file)
    with path.open("r+b") as stream:
        stream.truncate(region.offset + 4096)
    with pytest.raises(BundleDamagedError, match=r"block_01.experts is damaged: it ends inside"):
        ExpertFiles(copy).inputs(region.layer)
    with pytest.raises(BundleDamagedError, match=r"block_01.experts is damaged: .* expected"):
        Bundle.open(copy.path)
    path.unlink()
    with pytest.raises(BundleDamagedError, match=r"block_01.experts cannot be mapped"):
        ExpertFiles(copy).inputs(region.layer)


def test_experts_are_among_what_is_verified(copy):
    path = copy.file("block_00.experts")
    content = np.fromfile(path, np.uint8)
    content[100] ^= 1
    content.tofile(path)
    with pytest.raises(BundleDamagedError, match=r"block_00.experts is damaged: its SHA-256"):
        Bundle.open(copy.path).verify()
