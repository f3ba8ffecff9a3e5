"""A bundle on the HTP emulator: lossless, consistent after every ending, and clear in refusal."""

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from answers import prompt_logits, token_by_token, tokens_of
from coordgen_rs import Bundle, Stats, Tokenizer, generate, make_drafter, open_session, plain
from coordgen_rs.convert.qnn.compile import compile_bundle
from coordgen_rs.errors import (
    BlockLoadError,
    BundleDamagedError,
    BundleError,
    DeviceLostError,
    ProviderError,
    ShapeError,
)
from coordgen_rs.generation.drafting import drafter
from coordgen_rs.lab.check import check
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.runtime.ort_session import OrtSession, guessed_costs
from coordgen_rs.runtime.qnn import provider as qnn
from coordgen_rs.runtime.qnn.device import IntegerCache, QnnDevice
from coordgen_rs.runtime.qnn.options import soc_named
from coordgen_rs.runtime.session import StepCost
from coordgen_rs.store.prefixes.pool import PrefixPool
from coordgen_rs.store.prefixes.store import PrefixStore, TargetIdentity
from qnn_bundles import PROMPT, cached_sessions, needs_emulator, qnn_bundle

pytestmark = needs_emulator

NEW_TOKENS = 8


@pytest.fixture(scope="module")
def session_on(tmp_path_factory):
    return cached_sessions(tmp_path_factory.mktemp("qnn"))


@pytest.fixture(scope="module")
def session(session_on):
    return session_on("TinyStories-656K", "8-gen-2")


@pytest.fixture
def prompt(session):
    return Tokenizer.of(session.bundle).encode(PROMPT)


def copied(session, folder, change):
    """A copy of a session's bundle with another manifest."""
    path = Path(shutil.copytree(session.bundle.path, folder / "copy"))
    document = json.loads((path / "manifest.json").read_text())
    change(document)
    (path / "manifest.json").write_text(json.dumps(document))
    return Bundle.open(path)


@pytest.mark.parametrize(
    ("name", "soc"), [("embedded", "8-elite"), ("TinyStories-656K", "8-gen-2")]
)
def test_every_way_to_commit_gives_the_tokens_of_plain(session_on, name, soc):
    session = session_on(name, soc)
    prompt = Tokenizer.of(session.bundle).encode(PROMPT)[:16]
    report = check(session, prompt, max_new_tokens=NEW_TOKENS)
    assert report.exact_commits == ("canonical", "compact")
    assert all(item.identical for item in report.comparisons), report.comparisons
    assert any(item.what.startswith("prefill graph") for item in report.comparisons)
    assert any(item.what.startswith("side branch") for item in report.comparisons)


def test_a_narrow_decode_graph_stands_beside_the_wide_one_and_is_switched_with_it(tmp_path):
    path = qnn_bundle(tmp_path, "TinyStories-656K", "8-gen-2", narrow_rows=2, blocks=2)
    bundle = Bundle.open(path)
    assert bundle.manifest.widths == [2, 8, 32]
    prompt = Tokenizer.of(bundle).encode(PROMPT)[:16]
    with OrtSession(QnnDevice(bundle)) as session:
        assert session.widths == (2, 8)
        report = check(session, prompt, max_new_tokens=NEW_TOKENS)
        assert all(item.identical for item in report.comparisons), report.comparisons
        expected = tokens_of(plain(session, prompt, max_new_tokens=NEW_TOKENS))
        costs = session.switcher.costs
    assert [cost.decode_bytes for cost in costs] == [2 * cost.prefill_bytes for cost in costs]
    assert [cost.decode_load_us for cost in costs] == [2 * cost.prefill_load_us for cost in costs]
    budget = sum(cost.decode_bytes for cost in costs)
    device = QnnDevice(bundle)
    with OrtSession(device, preload=False, switch="greedy", memory_budget=budget) as session:
        session.switcher.only("prefill")
        stats = Stats()
        drafter = make_drafter(session, "auto")
        steps = generate(session, prompt, drafter=drafter, max_new_tokens=NEW_TOKENS, stats=stats)
        assert tokens_of(steps) == expected
        assert stats.switching.peak_bytes <= budget
        assert session.switcher.resident() == [(False, True)] * 2


def test_extreme_values_of_unseen_rows_change_nothing(session):
    """Their slots are masked; with other zero points they would disturb whole columns."""
    bundle, outputs = session.bundle, []
    for extreme in (0, 255, 1, 254):
        device = QnnDevice(bundle)
        for pair in device.cache.past(8):
            for array in pair:
                array[:, :, 5:] = extreme
        device.load(0, "decode")
        buffers = device.buffers(8)
        buffers.inputs.fill_chain(np.arange(8, dtype=np.uint32), 5)
        buffers.write_index[0] = 5
        buffers.hidden[0][0] = bundle.embedding()[np.arange(8)]
        device.run(0, "decode", buffers)
        outputs.append(device.hidden_out(buffers).copy())
    assert all(np.array_equal(outputs[0], other) for other in outputs[1:])


@pytest.fixture(scope="module")
def two_blocks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qnn-blocks")
    path = qnn_bundle(folder, "TinyStories-656K", "8-gen-2", blocks=2, narrow_rows=4)
    return compile_bundle(path).bundle


STRATEGIES = ["resident", "sync", "just_in_time", "single", "auto", "streamed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_the_same_tokens(session, two_blocks, strategy):
    prompt = np.random.default_rng(3).integers(3, 500, 70).astype(np.uint32)
    expected = tokens_of(plain(session, prompt, max_new_tokens=4))
    options = {"preload": strategy == "resident", "switch": strategy}
    if strategy == "streamed":
        files, blocks = two_blocks.manifest.files, two_blocks.manifest.blocks
        copies = 2 * max(files[block.weights].num_bytes for block in blocks)  # narrow and wide
        options = {"memory_budget": copies}
    switched = OrtSession(QnnDevice(two_blocks), **options)
    for _ in range(2):  # there, and back again
        steps = generate(switched, prompt, max_new_tokens=4)
        assert tokens_of(steps) == expected
    if strategy == "streamed":
        assert sum(switched.device.is_loaded(block, "decode") for block in range(2)) < 2
    elif strategy not in ("auto", "single"):
        held = {switched.device.is_loaded(block, "prefill") for block in range(2)}
        assert held == {strategy == "resident"}


def test_a_narrow_graph_beside_the_wide_one_changes_no_token(session, two_blocks, monkeypatch):
    narrow, widths = OrtSession(QnnDevice(two_blocks)), []
    narrow.select([4, 8], [StepCost(1_000, 0), StepCost(1_200, 0)])
    step = narrow.step
    monkeypatch.setattr(narrow, "step", lambda it: widths.append(it.rows) or step(it))
    prompt = Tokenizer.of(session.bundle).encode(PROMPT * 2)
    expected = tokens_of(plain(session, prompt, max_new_tokens=24))
    assert tokens_of(plain(narrow, prompt, max_new_tokens=24)) == expected
    assert set(widths) == {4}
    for commit in ("canonical", "compact"):
        widths.clear()
        drafter = make_drafter(narrow, "auto", commit)
        steps = generate(narrow, prompt, drafter=drafter, max_new_tokens=24)
        assert tokens_of(steps) == expected, commit
        assert set(widths) == {4, 8}, commit


def test_both_decode_graphs_come_and_go_as_one(two_blocks, monkeypatch):
    opened, open_graph = [], QnnDevice.open_graph

    def noted(device, block, rows):
        opened.append((block, rows))
        return open_graph(device, block, rows)

    monkeypatch.setattr(QnnDevice, "open_graph", noted)
    device = QnnDevice(two_blocks)
    device.load(1, "decode")
    assert opened == [(1, 4), (1, 8)]
    device.release(1, "decode")
    assert not device.is_loaded(1, "decode")
    target = two_blocks.manifest.qnn
    for cost in guessed_costs(
        replace(two_blocks.manifest, qnn=replace(target, shared=target.compiled))
    ):
        assert cost.decode_bytes == cost.prefill_bytes
        assert cost.decode_load_us == cost.prefill_load_us


def test_a_narrow_graph_that_is_damaged_or_missing_is_named(two_blocks, tmp_path):
    path = Path(shutil.copytree(two_blocks.path, tmp_path / "copy"))
    name = two_blocks.manifest.qnn.compiled.graphs["block_01.4.onnx"]
    (path / name).write_bytes(bytes(two_blocks.manifest.files[name].num_bytes))
    with pytest.raises(BundleDamagedError, match=rf"{name} is damaged: its SHA-256 differs"):
        open_session(path)
    with pytest.raises(BlockLoadError, match=rf"block 1: its decode graph .*{name}"):
        OrtSession(QnnDevice(Bundle.open(path)))
    (path / name).unlink()
    with pytest.raises(BundleDamagedError, match=name):
        Bundle.open(path)


_LOAD_AND_RELEASE = """
import sys
from pathlib import Path
from coordgen_rs import Bundle
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice
blocks = OrtSession(QnnDevice(Bundle.open(sys.argv[1])), preload=False).device
for number in range(24):
    blocks.load(0, "decode")
    blocks.release(0, "decode")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * 4096)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
def test_released_graphs_give_their_memory_back(tmp_path):
    bundle = compile_bundle(qnn_bundle(tmp_path, "embedded", "8-gen-2")).bundle
    command = [sys.executable, "-c", _LOAD_AND_RELEASE, str(bundle.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    held = list(map(int, done.stdout.split()))
    sizes = {name: record.num_bytes for name, record in bundle.manifest.files.items()}
    (binary,) = (sizes[n] for n in sizes if n.startswith("block_00.8.") and n.endswith(".bin"))
    assert held[-1] - held[11] < 12 * binary / 4  # twelve loads; what is kept is the provider's


def test_prefill_gives_the_logits_of_every_prompt_token(session, prompt):
    by_chunk = prompt_logits(session, prompt)
    session.rewind(0)
    assert np.array_equal(by_chunk, token_by_token(session, prompt))


def test_the_last_slot_of_the_cache_can_be_used(session):
    prompt = np.resize(np.arange(3, 40, dtype=np.uint32), session.capacity)
    session.rewind(0)
    session.prefill(prompt[:-1])
    assert len(tokens_of(plain(session, prompt, max_new_tokens=5))) == 1
    with pytest.raises(ShapeError):
        session.prefill(prompt[:2])


def test_first_opening_tests_the_widths_and_keeps_the_result(session, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    opened = open_session(session.bundle.path, provider=ProviderChoice("qnn", "8-gen-2"))
    assert opened.device.provider == "qnn"
    assert len(opened.step_costs) == len(opened.widths) == 1
    assert len(list((tmp_path / "coordgen_rs").glob("*.json"))) == 1


def test_a_device_lost_while_running_closes_the_session(session, prompt, monkeypatch):
    lost = OrtSession(QnnDevice(session.bundle))
    steps = generate(lost, prompt, max_new_tokens=NEW_TOKENS)
    next(steps)
    length = lost.length

    def fail(*_):
        raise RuntimeError("error code 1003: the subsystem was restarted")

    with monkeypatch.context() as broken:
        broken.setattr(onnxruntime.InferenceSession, "run_with_iobinding", fail)
        with pytest.raises(DeviceLostError, match=r"block 0.*subsystem was restarted"):
            next(steps)
    assert lost.length == length
    with pytest.raises(DeviceLostError, match="the session is closed: block 0"):
        next(plain(lost, prompt))


def test_keys_without_a_common_encoding_are_warned_of_and_never_compacted(
    session, tmp_path, monkeypatch
):
    def untie(document):
        document["qnn"]["caches"][0]["key_new"]["scale"] *= 1.5

    bundle = copied(session, tmp_path, untie)
    with pytest.warns(UserWarning, match="canonical way only"):
        untied = OrtSession(QnnDevice(bundle))
    assert untied.allowed_commits == ("canonical",)
    asked = []
    monkeypatch.setattr(drafter, "Drafter", lambda *_, commit, **__: asked.append(commit))
    make_drafter(untied, commit="compact")
    make_drafter(session, commit="compact")
    assert asked == ["canonical", "compact"]


def test_a_side_branch_beyond_the_last_slot_is_committed(session):
    layer = session.bundle.manifest.qnn.caches[0]
    cache = IntegerCache([layer], 1, 1, {8: 10})
    cache.length = 7
    keys, values = cache.new_rows(8)[0]
    keys[:], values[:] = np.arange(8)[:, None], np.arange(8)[:, None] + 50
    cache.store([0], 8, 7)
    assert cache.past(8)[0][0][0, 0, 7:, 0].tolist() == [0, 1, 2]
    cache.commit(np.array([0, 5, 7], np.uint32))
    assert cache.past(8)[0][0][0, 0, 7:, 0].tolist() == [0, 5, 7]
    assert cache.past(8)[0][1][0, 0, 7:, 0].tolist() == [50, 55, 57]
    assert cache.length == 10


def test_bundle_for_another_chip_or_provider_is_refused(session, bundle_of):
    htp, cpu = session.bundle.path, bundle_of("embedded", "fp32")
    for path, choice, why in (
        (htp, ("qnn", "x-elite"), "is for 8-gen-2, not for x-elite"),
        (htp, ("cpu",), "was made for qnn, not for cpu"),
        (cpu, ("qnn",), "was made for cpu, not for qnn"),
    ):
        with pytest.raises(BundleError, match=why):
            open_session(path, provider=ProviderChoice(*choice))
    with pytest.raises(BundleError, match="export it with --provider qnn"):
        QnnDevice(Bundle.open(cpu))


def test_a_node_that_the_htp_cannot_run_is_named(tmp_path):
    nodes = [
        helper.make_node("Abs", ["x"], ["y"], name="layer_0.abs"),
        helper.make_node("NonZero", ["y"], ["z"], name="layer_0.strange"),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 4])],
        [helper.make_tensor_value_info("z", TensorProto.INT64, None)],
    )
    path = tmp_path / "block_03.32.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    with pytest.raises(ProviderError, match=r"block_03.*layer_0\.strange \(NonZero\)"):
        qnn.qnn_session(path, soc_named("8-gen-2"))


def test_a_block_that_cannot_be_loaded_is_named(session, tmp_path):
    def misname(document):
        document["blocks"][0]["graphs"]["8"] = "head.8.onnx"

    damaged = copied(session, tmp_path, misname)
    (damaged.path / "head.8.onnx").write_bytes(
        bytes(damaged.manifest.files["head.8.onnx"].num_bytes)
    )
    with pytest.raises(BlockLoadError, match=r"block 0: its decode graph .*head\.8\.onnx"):
        OrtSession(QnnDevice(damaged))


def test_missing_backend_library_is_named(session, monkeypatch, tmp_path):
    import onnxruntime_qnn

    monkeypatch.setattr(onnxruntime_qnn, "get_qnn_htp_path", lambda: str(tmp_path / "gone.so"))
    with pytest.raises(ProviderError, match=r"gone\.so is missing"):
        QnnDevice(session.bundle)


def test_an_old_c_library_or_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(qnn, "_registered", None)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "x86_64")
        patch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
        with pytest.raises(ProviderError, match=r"needs glibc 2\.35 or newer, here is 2\.31"):
            qnn.devices()
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(ProviderError, match=r"pip install 'coordgen-rs\[qnn\]'"):
        qnn.devices()


def test_a_prompt_that_was_stored_gives_the_tokens_of_one_that_is_read(
    session, tmp_path, monkeypatch
):
    prompt = Tokenizer.of(session.bundle).encode(PROMPT * 2)
    expected = tokens_of(plain(session, prompt, max_new_tokens=4))
    monkeypatch.setattr(session, "is_exact_after_prefill", True)
    store = PrefixStore(tmp_path, TargetIdentity(b"npu"))
    pool = PrefixPool(0, store=store)
    pool.store_up(session)
    session.forget()
    store.flush()
    stats = Stats()
    options = {"max_new_tokens": 4, "reuse_prefix": True, "prefixes": pool, "stats": stats}
    assert tokens_of(plain(session, prompt, **options)) == expected
    assert stats.reused_tokens == store.counts.read_tokens > 0
    store.close()
