"""Context binaries: the same tokens from them, and clear words where they cannot be used."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from answers import tokens_of
from coordgen_rs import Bundle, Tokenizer, plain
from coordgen_rs.convert.qnn import compile as qnn_compile
from coordgen_rs.convert.qnn.compile import compile_bundle
from coordgen_rs.errors import BundleError, OptionError, ProviderError
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn import device as qnn_device
from coordgen_rs.runtime.qnn.device import QnnDevice
from coordgen_rs.runtime.qnn.provider import is_emulator, qnn_session
from qnn_bundles import PROMPT, needs_emulator, qnn_bundle

pytestmark = needs_emulator

_GENERATE = """
import sys
from coordgen_rs import Bundle, Tokenizer, plain
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice
session = OrtSession(QnnDevice(Bundle.open(sys.argv[1])))
prompt = Tokenizer.of(session.bundle).encode(sys.argv[2])
steps = plain(session, prompt, max_new_tokens=8)
print([token for step in steps for token in step.token_ids])
"""
_LOAD_SHARED = """
import sys
from pathlib import Path
from coordgen_rs.runtime.qnn.provider import qnn_session
from coordgen_rs.runtime.qnn.options import soc_named
entries = {"ep.share_ep_contexts": "1"}
sessions = [qnn_session(Path(path), soc_named("8-gen-2"), None, entries) for path in sys.argv[1:]]
print("loaded")
"""


def child(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A bundle of two blocks without binaries."""
    folder = tmp_path_factory.mktemp("qnn-compile")
    return qnn_bundle(folder, "TinyStories-656K", "8-gen-2", blocks=2)


@pytest.fixture(scope="module")
def report(exported, tmp_path_factory):
    path = Path(shutil.copytree(exported, tmp_path_factory.mktemp("compiled") / "bundle"))
    return compile_bundle(path, shared=True)


@pytest.fixture(scope="module")
def compiled(report):
    """The same with weight-shared binaries and single ones."""
    return report.bundle


@pytest.fixture
def copy(compiled, tmp_path):
    return Path(shutil.copytree(compiled.path, tmp_path / "copy"))


def binaries(bundle, kind):
    sizes = bundle.manifest.files.items()
    return {name: r.num_bytes for name, r in sizes if f".{kind}-" in name and name.endswith(".bin")}


def changed(path, **fields):
    """The bundle, its binaries said to be made otherwise."""
    document = json.loads((path / "manifest.json").read_text())
    document["qnn"]["compiled"] |= fields
    document["qnn"]["shared"] = None
    (path / "manifest.json").write_text(json.dumps(document))
    return Bundle.open(path)


def test_a_fresh_process_says_the_same_from_binaries(exported, compiled):
    session = OrtSession(QnnDevice(Bundle.open(exported)))
    prompt = Tokenizer.of(session.bundle).encode(PROMPT)
    expected = tokens_of(plain(session, prompt, max_new_tokens=8))
    done = child(_GENERATE, compiled.path, PROMPT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
    assert "weight-shared binaries cannot be loaded here" in done.stderr


def test_binaries_are_enough_to_load(copy):
    """The graphs they stand for are not read."""
    bundle = Bundle.open(copy)
    for block in bundle.manifest.blocks:
        for name in [block.weights, *block.graphs.values()]:
            size = bundle.manifest.files[name].num_bytes
            (copy / name).write_bytes(bytes(size))
    with pytest.warns(UserWarning, match="weight-shared"):
        assert OrtSession(QnnDevice(Bundle.open(copy))).length == 0


def test_pairs_that_load_stay_in_memory_together(compiled, monkeypatch):
    """The emulator refuses them, so a fake device loads them: single graphs in their place."""
    target, loaded = compiled.manifest.qnn, []
    single = {
        compiled.file(file): compiled.file(target.compiled.graphs[graph])
        for graph, file in target.shared.graphs.items()
    }

    def load(model, soc, options=None, entries=None):
        loaded.append((Path(model), entries))
        return qnn_session(single.get(Path(model), model), soc, options)

    monkeypatch.setattr(qnn_device, "qnn_session", load)
    monkeypatch.setattr(qnn_device, "is_emulator", lambda: False)
    session = OrtSession(QnnDevice(compiled))
    assert session.device.is_shared
    assert session.switcher.keeps_both
    shared = [file for file, entries in loaded if entries == {"ep.share_ep_contexts": "1"}]
    assert sorted(shared) == sorted(single)  # each once, the one that was tried included
    assert len(tokens_of(plain(session, [1, 2, 3], max_new_tokens=2))) == 2
    assert all(session.device.is_loaded(b, g) for b in range(2) for g in ("prefill", "decode"))


def test_pairs_that_a_device_refuses_are_replaced_by_single_graphs(compiled, monkeypatch):
    def load(model, soc, options=None, entries=None):
        if entries:
            raise ProviderError(f"{model}: not supported")
        return qnn_session(model, soc, options)

    monkeypatch.setattr(qnn_device, "qnn_session", load)
    monkeypatch.setattr(qnn_device, "is_emulator", lambda: False)
    with pytest.warns(UserWarning, match="cannot be loaded here.*not supported"):
        session = OrtSession(QnnDevice(compiled))
    assert not session.device.is_shared
    assert len(tokens_of(plain(session, [1, 2, 3], max_new_tokens=2))) == 2


def test_every_graph_that_runs_has_a_binary(compiled):
    target, manifest = compiled.manifest.qnn, compiled.manifest
    wanted = {name for block in manifest.blocks for name in block.graphs.values()}
    assert set(target.shared.graphs) == wanted
    assert set(target.compiled.graphs) == wanted | {manifest.head.graphs[8]}
    assert len(binaries(compiled, "context")) == 5
    assert len(binaries(compiled, "shared")) == 2  # the head is run at one width
    compiled.verify()


def test_a_shared_pair_takes_little_more_than_one(report):
    assert report.shared_bytes <= 0.6 * report.apart_bytes
    context, shared = (
        sum(binaries(report.bundle, kind).values()) for kind in ("context", "shared")
    )
    assert (report.binary_bytes, report.shared_bytes) == (context, shared)
    assert 0 < report.apart_bytes < context


def test_a_narrow_decode_graph_shares_the_weights_of_the_others(tmp_path):
    path = qnn_bundle(tmp_path, "TinyStories-656K", "8-gen-2", narrow_rows=4)
    report = compile_bundle(path, shared=True)
    manifest = report.bundle.manifest
    assert set(manifest.qnn.shared.graphs) == {f"block_00.{n}.onnx" for n in (4, 8, 32)} | {
        f"head.{n}.onnx" for n in (4, 8)
    }
    assert report.shared_bytes <= 0.5 * report.apart_bytes
    report.bundle.verify()


@pytest.mark.skipif(not is_emulator(), reason="not on a device")
def test_the_emulator_cannot_load_weight_shared_binaries(compiled):
    shared = compiled.manifest.qnn.shared.graphs
    files = [shared[name] for name in compiled.manifest.blocks[0].graphs.values()]
    done = child(_LOAD_SHARED, *[compiled.file(name) for name in files])
    assert done.returncode != 0
    assert "loaded" not in done.stdout


def test_binaries_of_another_version_or_chip_are_refused_or_compiled_again(compiled, copy):
    kept = (compiled.path / "manifest.json").read_text()
    for fields in ({"provider_version": "1.0.0"}, {"qnn_version": "2.0"}, {"soc_model": 69}):
        (copy / "manifest.json").write_text(kept)
        bundle = changed(copy, **fields)
        with pytest.raises(ProviderError, match="run coordgen compile again, or allow recompiling"):
            OrtSession(QnnDevice(bundle))
    session = OrtSession(QnnDevice(bundle, recompile=True))
    assert session.bundle.manifest.qnn.compiled is None
    assert len(tokens_of(plain(session, [1, 2, 3], max_new_tokens=2))) == 2


def test_compiling_again_replaces_all_binaries(copy):
    before = Bundle.open(copy)
    after = compile_bundle(copy, soc="8-elite").bundle
    assert after.manifest.qnn.soc == "8-elite"
    assert after.manifest.qnn.shared is None
    assert not binaries(before, "context").keys() & binaries(after, "context").keys()
    assert {path.name for path in copy.iterdir()} == {*after.manifest.files, "manifest.json"}
    after.verify()
    assert OrtSession(QnnDevice(after)).length == 0


def test_a_failure_leaves_the_bundle_as_it_was(exported, tmp_path, monkeypatch):
    path = Path(shutil.copytree(exported, tmp_path / "copy"))
    before = sorted(file.name for file in path.iterdir())
    real, calls = qnn_compile.qnn_session, []

    def fail_at_the_third(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise ProviderError("block_01.8.onnx: no")
        return real(*arguments)

    monkeypatch.setattr(qnn_compile, "qnn_session", fail_at_the_third)
    with pytest.raises(ProviderError, match="no"):
        compile_bundle(path)
    assert sorted(file.name for file in path.iterdir()) == before
    assert Bundle.open(path).manifest.qnn.compiled is None


def test_only_bundles_for_qnn_are_compiled(bundle_of, exported):
    with pytest.raises(BundleError, match="is for CPU"):
        compile_bundle(bundle_of("embedded", "fp32"))
    with pytest.raises(OptionError, match="soc is 'abacus'"):
        compile_bundle(exported, soc="abacus")
