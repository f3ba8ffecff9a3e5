"""A bundle of Genie on the HTP emulator: the tokens of our own bundle of the same graphs."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest

from answers import step_of, token_by_token, tokens_of
from coordgen_rs import Tokenizer, open_bundle, plain
from coordgen_rs.errors import BlockLoadError, BundleDamagedError, BundleError, ProviderError
from coordgen_rs.formats.genie import device as device_module
from coordgen_rs.formats.genie.binary import read_binary
from coordgen_rs.formats.genie.device import GenieDevice
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice
from coordgen_rs.runtime.qnn.options import QnnOptions
from coordgen_rs.runtime.qnn.provider import QnnVersion, qnn_session
from genie_bundles import CONFIG_NAME, Form, write_genie
from qnn_bundles import check_tokens, needs_emulator

pytestmark = needs_emulator

PROMPT = "The cat sat down. The cat sat"
NEW_TOKENS = 4


def hashes(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def written(own, tmp_path_factory):
    """A bundle with graphs for 1 and 8 tokens; not to be changed."""
    form = Form(widths=(1, 8), context=48)
    return write_genie(own, tmp_path_factory.mktemp("genie") / "bundle", form)


@pytest.fixture(scope="module")
def session(written):
    return OrtSession(GenieDevice(open_bundle(written)))


@pytest.fixture
def prompt(own):
    return Tokenizer.of(own).encode(PROMPT)


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "bundle")


def test_compiled_graphs_are_not_for_the_cpu(written):
    with pytest.raises(BundleError, match="no CPU can run: on_cpu"):
        GenieDevice(open_bundle(written), options=QnnOptions(on_cpu=True))


def test_tokens_are_those_of_our_own_bundle_with_and_without_drafts(own, written, session, prompt):
    before = hashes(written)
    with OrtSession(QnnDevice(own)) as ours:
        expected = tokens_of(plain(ours, prompt, max_new_tokens=NEW_TOKENS))
    check_tokens(session, prompt, expected)
    assert hashes(written) == before


def test_every_path_of_a_tree_is_what_one_row_after_another_gives(session, prompt):
    """Rows 0, 2 and 4 are a side branch; committed, its keys move."""
    session.rewind(0)
    session.prefill(prompt)
    start = session.length
    rows = step_of(session, [60, 70, 61, 71, 62], [0, 0, 0, 1, 2])[[0, 2, 4]]
    session.commit(np.array([0, 2, 4], np.uint32))
    after = step_of(session, [63])
    session.rewind(start)
    expected = token_by_token(session, [60, 61, 62, 63])
    assert np.array_equal(np.concatenate([rows, after]), expected)


def test_a_saved_prefix_is_put_back_for_all_widths(session, prompt):
    session.rewind(0)
    session.prefill(prompt)
    saved = session.saved_prefix()
    views = [
        array[:, :, : len(prompt)].copy() for pair in session.cache.copied(99) for array in pair
    ]
    session.rewind(0)
    session.prefill(prompt[::-1].copy())
    session.restore_prefix(saved, len(prompt))
    again = [array[:, :, : len(prompt)] for pair in session.cache.copied(99) for array in pair]
    assert all(map(np.array_equal, views, again))
    narrow, wide = session.step_inputs
    rows = []
    for inputs in (narrow, wide):
        inputs.fill_chain(np.array([60], np.uint32), session.length)
        rows.append(session.step(inputs)[0].copy())
    assert np.array_equal(*rows)


def test_parts_of_a_chunk_see_each_other(session, prompt):
    """As when graphs for chunks are not in memory, and narrower ones stand in."""
    session.rewind(0)
    session.prefill(prompt[:8])
    expected = session.cache.copied(8)
    session.rewind(0)
    forward = session.forward
    forward.cut_chunk(1)
    forward.chunk.inputs.fill_chain(prompt[:8], 0)
    for row in range(8):
        piece = forward.chunk.part(row, 1)
        piece.write_index[0] = row
        session.device.run(0, "decode", piece)
    session.cache.commit(np.arange(8, dtype=np.uint32))
    forward.cut_chunk(session.widths[-1])
    pairs = zip(expected, session.cache.copied(8), strict=True)
    assert all(np.array_equal(*arrays) for pair in pairs for arrays in zip(*pair, strict=True))


def test_a_bundle_without_metadata_tells_the_same_by_its_binaries(folder):
    described = open_bundle(folder)
    (folder / "metadata.json").unlink()
    assert open_bundle(folder).model == described.model


def rewritten(name, change):
    """An edit of a file's bytes."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def of_another_export(folder):
    document = json.loads((folder / "metadata.json").read_text())
    graph = document["model_files"]["ar8_cl48_1_of_1"]
    graph["inputs"]["past_key_0_in"]["quantization_parameters"]["scale"] *= 2
    (folder / "metadata.json").write_text(json.dumps(document))


def of_another_chip(folder):
    rewritten("htp_backend_ext_config.json", lambda text: text.replace(b"43", b"60"))(folder)
    (folder / "metadata.json").unlink()


WIDE, NARROW, ANY = "part_1_ar8.bin", "part_1_ar1.bin", (BundleDamagedError, BlockLoadError)
OTHER_BYTES = np.random.default_rng(0).bytes(1 << 16)


@pytest.mark.parametrize(
    ("change", "match", "error"),
    [
        (of_another_export, "disagree about past_key_0_in of ar8_cl48_1_of_1", BundleError),
        (of_another_chip, r"soc_model: 43 \(part_1_ar1\.bin\) and 60", BundleError),
        (rewritten(WIDE, lambda _: b""), r"part_1_ar8\.bin", ANY),
        (rewritten(WIDE, lambda content: content[:100]), r"part_1_ar8\.bin", ANY),
        (rewritten(WIDE, lambda content: content[:5000]), r"part_1_ar8\.bin", ANY),
        (rewritten(WIDE, lambda _: OTHER_BYTES), "ar8.bin is not a context binary", ANY),
        (
            lambda folder: shutil.copy(folder / WIDE, folder / NARROW),
            r"both part_1_ar1\.bin and part_1_ar8\.bin have ar8_cl48",
            BundleError,
        ),
    ],
)
def test_bundles_whose_files_are_damaged_or_disagree_are_refused(folder, change, match, error):
    change(folder)
    with pytest.raises(error, match=match):
        OrtSession(GenieDevice(open_bundle(folder)))


def test_another_chip_or_provider_than_the_bundle_is_for_is_refused(written):
    bundle = open_bundle(written)
    with pytest.raises(BundleError, match="is for 8-gen-2, not for x-elite"):
        ProviderChoice(soc="x-elite").device(bundle)
    with pytest.raises(BundleError, match="was made for qnn, not for cpu"):
        ProviderChoice("cpu").device(bundle)
    with pytest.raises(BundleError, match="no graphs that could be compiled again"):
        ProviderChoice(recompile=True).device(bundle)
    assert ProviderChoice(soc="8-gen-2").device(bundle).provider == "qnn"


def test_binaries_of_a_later_version_are_refused_before_they_are_loaded(written, monkeypatch):
    monkeypatch.setattr(device_module, "version", lambda: QnnVersion("2.1.0", "2.31.0.250130"))
    with pytest.raises(ProviderError, match=r"made by QAIRT v2\.\d+.*here is 2\.31.*2\.1\.0"):
        GenieDevice(open_bundle(written))


def test_several_graphs_in_a_binary_share_it_on_a_device_and_are_refused_here(written, monkeypatch):
    bundle = open_bundle(written)
    bundle = dataclasses.replace(bundle, num_graphs=dict.fromkeys(bundle.num_graphs, 2))
    with pytest.raises(BlockLoadError, match=r"part_1_ar.*several graphs, which the HTP emulator"):
        OrtSession(GenieDevice(bundle))
    asked = []

    def load(path, soc, options, entries, content):
        asked.append(entries.pop("ep.share_ep_contexts"))
        return qnn_session(path, soc, options, entries, content)

    monkeypatch.setattr(device_module, "is_emulator", lambda: False)
    monkeypatch.setattr(device_module, "qnn_session", load)
    session = OrtSession(GenieDevice(bundle))
    assert asked == ["1", "1"]  # each graph once, though the wide one is for chunks, too
    assert session.switcher.keeps_both


def test_what_a_binary_says_of_itself_is_read(written):
    facts = read_binary(written / "part_1_ar8.bin")
    assert facts.soc_model == 43
    (graph,) = facts.graphs.values()
    assert graph.inputs["input_ids"].dtype == "int32"
    assert graph.inputs["past_key_0_in"].encoding.is_symmetric
    assert (written / CONFIG_NAME).exists()
