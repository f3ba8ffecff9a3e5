"""Bundles of Genie: what is read of their texts, and what is refused in one line that says why."""

import contextlib
import json

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
from json_values import JSON_VALUES


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
    edit(written, CONFIG_NAME, lambda it: positions(it).pop("rope-scaling"))
    plain = open_bundle(written).rope_tables()
    assert np.allclose(np.arccos(plain["cos"][1]), [1.0, 500000**-0.5], atol=1e-3)


def positions(document):
    return document["dialog"]["engine"]["model"]["positional-encoding"]


def model(document):
    return document["dialog"]["engine"]["model"]


def backend(document):
    return document["dialog"]["engine"]["backend"]


def ctx_bins(*names):
    return lambda it: model(it)["binary"].update({"ctx-bins": list(names)})


def context(**fields):
    return lambda it: it["dialog"]["context"].update(fields)


CONFIGS = {
    "a dialog of type 'spd' has more than one model": lambda it: it["dialog"].update(type="spd"),
    "has 2 engines": lambda it: it["dialog"].update(engine=[{}, {}]),
    "the backend 'QnnGenAiTransformer'": lambda it: backend(it).update(type="QnnGenAiTransformer"),
    "the model is of type 'library'": lambda it: model(it).update(type="library"),
    "has LoRA adapters": lambda it: model(it)["binary"].update(lora={"version": 1}),
    r"part\.dlc is a DLC": ctx_bins("part.dlc"),
    "ctx-bins is empty": ctx_bins(),
    r"names '\.\./part\.bin'": ctx_bins("../part.bin"),
    "positions are encoded as 'absolute'": lambda it: positions(it).update(type="absolute"),
    "rope-type 'longrope' is not": lambda it: positions(it)["rope-scaling"].update(LONG_ROPE),
    "rope-scaling llama3 lacks a figure": lambda it: positions(it)["rope-scaling"].pop("factor"),
    "rope-theta is None": lambda it: positions(it).pop("rope-theta"),
    "eos-token is": context(**{"eos-token": ["end"]}),
    "token 99 is not in the vocabulary": context(**{"eos-token": 99}),
    "has 100 tokens, the graphs give 24": context(**{"n-vocab": 100}),
    "dialog has no field context": lambda it: it["dialog"].pop("context"),
    "does not describe a dialog": lambda it: it.pop("dialog"),
}
LONG_ROPE = {"rope-type": "longrope"}


@pytest.mark.parametrize("match", CONFIGS)
def test_configs_of_what_cannot_run(written, match):
    refuse(edit(written, CONFIG_NAME, CONFIGS[match]), match)


def wide(part, way, change):
    """An edit of the graph for 8 tokens of a part."""

    def change_graph(document):
        change(document["model_files"][f"ar8_cl32_{part}_of_2"][way])

    return change_graph


def inside(document):
    for graph in document["model_files"].values():
        for way in ("inputs", "outputs"):
            for name in [each for each in graph[way] if each.startswith("past_")]:
                del graph[way][name]


def inside_of_one_part(document):
    inside(
        {
            "model_files": {
                name: it for name, it in document["model_files"].items() if "_2_of" in name
            }
        }
    )


def only_one_row(document):
    for name in [each for each in document["model_files"] if each.startswith("ar8")]:
        del document["model_files"][name]


def other_names(document):
    document["model_files"] = {"decoder": {"inputs": {}, "outputs": {}}}


def without(part, way, name):
    return wide(part, way, lambda it: it.pop(name))


def with_tensors(part, way, **tensors):
    return wide(part, way, lambda it: it.update(tensors))


def altered(part, way, name, **fields):
    return wide(part, way, lambda it: it[name].update(fields))


def encoded(part, way, name, **fields):
    return wide(part, way, lambda it: it[name]["quantization_parameters"].update(fields))


def chipset(**fields):
    return lambda document: document["chipset_attributes"].update(fields)


HIDDEN, PAST = genie_facts.HIDDEN_NAMES[1], "past_key_0_in"
LONGER = {PAST: tensor("uint8", 2, 1, 4, 30), "past_value_0_in": tensor("uint8", 2, 1, 30, 4)}
GRAPHS = {
    "the logits of the last row only": with_tensors(
        2, "outputs", logits=tensor("uint16", 1, 1, 24)
    ),
    "keep keys and values inside": inside,
    "its graphs keep keys and values inside": inside_of_one_part,
    "so no draft can be verified": only_one_row,
    r"different hidden sizes: \[8, 16\]": altered(2, "inputs", HIDDEN, shape=[1, 8, 8]),
    "has no metadata.json that tells of its graphs": other_names,
    "it reads state_0, expected": with_tensors(1, "inputs", state_0=tensor("uint16", 1, 8, 4)),
    "it has no attention_mask": without(1, "inputs", "attention_mask"),
    "it has no position_ids_sin": without(2, "inputs", "position_ids_sin"),
    "the values of layer 1 are not both": without(2, "outputs", "past_value_1_out"),
    "attention_mask has the shape": altered(1, "inputs", "attention_mask", shape=[1, 1, 8, 24]),
    "its caches have 30 slots, expected 24": with_tensors(1, "inputs", **LONGER),
    "past_key_0_in is float16, expected uint8": altered(1, "inputs", PAST, dtype="float16"),
    "encode keys and values differently": encoded(1, "inputs", PAST, scale=0.7),
    "encode the hidden states behind part 1": encoded(2, "inputs", HIDDEN, scale=0.7),
    "encode logits differently": encoded(2, "outputs", "logits", zero_point=3),
    "logits is encoded as .*scale=0.0.* which": encoded(2, "outputs", "logits", scale=0.0),
    "attention_mask is encoded as .*zero_point=65536.* which cannot be": encoded(
        1, "inputs", "attention_mask", zero_point=65536
    ),
    "input_ids is int64, expected int32": altered(1, "inputs", "input_ids", dtype="int64"),
    "disagree about the soc_model: 60 .* and 69": chipset(soc_model=60),
    "disagree about the HTP version: 73 .* and 79": chipset(htp_version=73),
    "of 3 parts, but there are 2 binaries": lambda it: it["model_files"].update(
        ar8_cl32_1_of_3={"inputs": {}, "outputs": {}}
    ),
    "shape is str": altered(1, "inputs", "input_ids", shape="many"),
}


@pytest.mark.parametrize("match", GRAPHS)
def test_graphs_that_cannot_run(written, match):
    refuse(edit(written, METADATA_NAME, GRAPHS[match]), match)


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
    edit(written, METADATA_NAME, wide(1, "inputs", lambda it: it.pop("attention_mask")))
    other = folder.read_metadata(written, None).graphs
    with pytest.raises(BundleError, match=r"part\.bin disagree about attention_mask of ar8_cl32_1"):
        described.compared(written, other, found)
    edit(written, METADATA_NAME, wide(1, "inputs", lambda it: it["input_ids"].update(shape=[1, 9])))
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
    document = json.loads(original)
    *parents, last = data.draw(st.sampled_from([path for path in paths_into(document) if path]))
    place = document
    for key in parents:
        place = place[key]
    place[last] = data.draw(JSON_VALUES)
    try:
        path.write_text(json.dumps(document))
        with contextlib.suppress(BundleError):
            open_bundle(written).rope_tables()
    finally:
        path.write_text(original)


def paths_into(document):
    """The path to every value in a JSON document."""
    if not isinstance(document, dict | list):
        return [[]]
    items = document.items() if isinstance(document, dict) else enumerate(document)
    return [[]] + [[key, *path] for key, value in items for path in paths_into(value)]
