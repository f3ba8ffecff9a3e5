"""Bundles of Genie: what is read of their texts, and what is refused in one line that says why."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import genie_facts
from coordgen_rs import open_bundle
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.formats.genie import folder
from coordgen_rs.formats.genie import metadata as described
from coordgen_rs.formats.genie.folder import GenieFolder
from coordgen_rs.formats.genie.graphs import CacheName, GraphName
from coordgen_rs.formats.genie.metadata import version_numbers
from genie_facts import CONFIG_NAME, METADATA_NAME, edit, tensor
from json_values import altered, changed, table_rows

POSITIONS = "dialog engine model positional-encoding"
INPUTS = "model_files ar8_cl32_1_of_2 inputs"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A bundle whose binaries nobody can read, so that metadata.json has to tell of them."""
    monkeypatch.setattr(folder, "can_read", lambda: False)
    return genie_facts.write_described(tmp_path / "bundle")


def refuse(path, match, error=BundleError):
    with pytest.raises(error, match=match) as caught:
        open_bundle(path)
    assert "\n" not in str(caught.value)


def test_a_bundle_is_opened_by_its_folder_and_by_its_config(written):
    for path in (written, written / CONFIG_NAME):
        bundle = open_bundle(path)
        assert isinstance(bundle, GenieFolder)
        assert bundle.path == written
        assert bundle.manifest.provider == "qnn"


def test_what_a_session_needs_is_read_from_the_texts(written):
    manifest = open_bundle(written).manifest
    assert manifest.widths == manifest.decode_widths == [1, 8]
    assert manifest.context == 32 - 8  # what the widest graph can see behind its own rows
    assert [block.layers for block in manifest.blocks] == [range(1), range(1, 2)]
    assert (manifest.model.hidden_size, manifest.model.vocab_size) == (16, 24)
    assert (manifest.qnn.soc_model, manifest.qnn.htp_arch) == (69, 79)
    assert manifest.qnn.is_exact
    assert manifest.end_token_ids == [2, 3]
    assert manifest.bos_token_id is None


def test_the_longest_context_that_the_config_allows_is_chosen(written):
    def add_contexts(document):
        for rows, part in ((1, 1), (1, 2), (8, 1), (8, 2)):
            graph = genie_facts.graph(rows, part, 64)
            document["model_files"][f"ar{rows}_cl64_{part}_of_2"] = graph

    edit(written, METADATA_NAME, add_contexts)
    assert open_bundle(written).model.context == 32
    edit(written, CONFIG_NAME, lambda it: it["dialog"]["context"].update(size=64))
    assert open_bundle(written).model.context == 64


def test_positions_are_rotated_as_the_config_says(written):
    tables = open_bundle(written).rope_tables()
    assert tables["cos"].shape == (32, 2)
    edit(written, CONFIG_NAME, lambda it: changed(it, f"{POSITIONS} rope-scaling"))
    plain = open_bundle(written).rope_tables()
    assert np.allclose(np.arccos(plain["cos"][1]), [1.0, 500000**-0.5], atol=1e-3)


REFUSED = table_rows(Path(__file__).with_name("refused.jsonl"))


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[1])
def test_texts_of_what_cannot_run(written, row):
    name, match, *change = row
    refuse(edit(written, name, lambda it: changed(it, *change)), match)


def of_few(graphs, change):
    """An edit of the graphs whose name has a part."""

    def change_some(document):
        files = document["model_files"]
        for name in [name for name in files if graphs in name]:
            change(files, name)

    return change_some


def without_caches(files, name):
    for way in ("inputs", "outputs"):
        kept = {each: it for each, it in files[name][way].items() if "past_" not in each}
        files[name][way] = kept


def longer_caches(files, name):
    keys, values = tensor("uint8", 2, 1, 4, 30), tensor("uint8", 2, 1, 30, 4)
    files[name]["inputs"].update(past_key_0_in=keys, past_value_0_in=values)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (of_few("_of_", without_caches), "keep keys and values inside"),
        (of_few("_2_of", without_caches), "its graphs keep keys and values inside"),
        (of_few("ar8", dict.pop), "so no draft can be verified"),
        (of_few("ar8_cl32_1", longer_caches), "its caches have 30 slots, expected 24"),
    ],
)
def test_graphs_that_cannot_run(written, change, match):
    refuse(edit(written, METADATA_NAME, change), match)


def test_a_bundle_whose_chip_nobody_names_is_refused(written):
    edit(written, METADATA_NAME, lambda it: it.pop("chipset_attributes"))
    (written / "htp_backend_ext_config.json").unlink()
    refuse(written, "neither its metadata nor its binaries say the soc_model")


@pytest.mark.parametrize("name", ["part_2_of_2.bin", "tokenizer.json"])
def test_a_missing_file_is_named(written, name):
    (written / name).unlink()
    refuse(written, f"{name} is missing", BundleDamagedError)


def test_metadata_of_other_binaries_is_refused(written):
    graphs = folder.read_metadata(written, None).graphs
    found = {name: ("part.bin", facts) for name, facts in graphs.items()}
    described.compared(written, graphs, found)
    edit(written, METADATA_NAME, lambda it: changed(it, f"{INPUTS} attention_mask"))
    other = folder.read_metadata(written, None).graphs
    with pytest.raises(BundleError, match=r"part\.bin disagree about attention_mask of ar8_cl32_1"):
        described.compared(written, other, found)
    edit(written, METADATA_NAME, lambda it: changed(it, f"{INPUTS} input_ids shape", [1, 9]))
    del found["ar1_cl32_1_of_2"]
    with pytest.raises(BundleError, match="tells of ar1_cl32_1_of_2, which no binary has"):
        described.compared(written, graphs, found)


def test_metadata_that_says_less_does_not_matter(written):
    graphs = folder.read_metadata(written, None).graphs
    found = {name: ("part.bin", facts) for name, facts in graphs.items()}

    def say_less(document):
        files = document["model_files"]
        files["ar1_cl32_1_of_2"] = {"inputs": {}, "outputs": {}}
        files["part.bin"] = files.pop("ar8_cl32_1_of_2")
        del files["ar8_cl32_2_of_2"]["inputs"]["attention_mask"]["quantization_parameters"]

    edit(written, METADATA_NAME, say_less)
    less = folder.read_metadata(written, None).graphs
    assert less != graphs
    described.compared(written, less, found)


def test_cosines_and_sines_may_be_encoded_differently(written):
    def encode(document):
        for graph in document["model_files"].values():
            graph["inputs"]["position_ids_sin"]["quantization_parameters"]["scale"] = 0.25

    model = open_bundle(edit(written, METADATA_NAME, encode)).model
    assert (model.cos.scale, model.sin.scale) == (0.5, 0.25)


def test_names_of_all_generations_are_known():
    assert GraphName.of("token_ar1_cl4096_2_of_3") == GraphName(1, 4096, 2, 3)
    assert GraphName.of("ar128_cl512_1_of_5") == GraphName(128, 512, 1, 5)
    assert GraphName.of("model") is None
    assert CacheName.of("past_key_12_in") == CacheName("key", 12, None, True)
    native = CacheName.of("past_nativekvcache__value_3_head_7_out")
    assert native == CacheName("value", 3, 7, False)
    assert CacheName.of("attention_mask") is None


def test_versions_are_compared_by_their_first_two_numbers():
    assert version_numbers("v2.45.0.260326154327") == version_numbers("2.45.9") == (2, 45)
    assert version_numbers("2.51.0") > version_numbers("2.9.9")


@pytest.mark.parametrize("name", [CONFIG_NAME, METADATA_NAME, "htp_backend_ext_config.json"])
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_altered_text_opens_or_raises_a_bundle_error(written, name, data):
    path = written / name
    original = path.read_text()
    try:
        path.write_text(json.dumps(altered(data, json.loads(original))))
        with contextlib.suppress(BundleError):
            open_bundle(written).rope_tables()
    finally:
        path.write_text(original)
