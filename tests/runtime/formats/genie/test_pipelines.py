"""Pipelines of GenAI for QNN: what is read, and what is refused; `test_full.py` runs them."""

import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from coordgen_rs import open_bundle
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.formats.genie import pipeline as pipeline_module
from coordgen_rs.formats.genie.pipeline import PipelineFolder
from genie_bundles import Form
from genie_pipelines import CONFIG_NAME, write_pipeline
from qnn_bundles import needs_emulator

pytestmark = needs_emulator

PROMPT = "The cat sat down. The cat sat"
PROMPT_FILE = "embedded_prompt_1_of_1.onnx"


@pytest.fixture(scope="module")
def written(own, tmp_path_factory):
    """A pipeline with graphs for 1 and 8 tokens; not to be changed."""
    out = tmp_path_factory.mktemp("pipeline") / "folder"
    return write_pipeline(own, out, Form(widths=(1, 8), context=48))


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "folder")


def refuse(folder, match, error=BundleError):
    with pytest.raises(error, match=match) as caught:
        open_bundle(folder)
    assert "\n" not in str(caught.value)


def test_a_pipeline_holds_the_graphs_of_a_bundle_of_genie(own, written):
    bundle = open_bundle(written / CONFIG_NAME)
    assert isinstance(bundle, PipelineFolder)
    assert bundle.manifest.widths == [1, 8]
    assert bundle.manifest.end_token_ids == own.manifest.end_token_ids
    assert (bundle.manifest.qnn.soc_model, bundle.manifest.qnn.htp_arch) == (43, 73)


def test_cosines_and_sines_are_those_of_the_graph_for_positions(own, written):
    tables = open_bundle(written).rope_tables()
    for name, table in own.rope_tables().items():
        assert np.array_equal(tables[name][:40], table)
        assert len(tables[name]) == 48


def config(change):
    def edit(folder):
        document = json.loads((folder / CONFIG_NAME).read_text())
        change(document["model"])
        (folder / CONFIG_NAME).write_text(json.dumps(document))

    return edit


def stages(change):
    return config(lambda model: change(model["decoder"]["pipeline"][0]))


def graph(name, change):
    def edit(folder):
        model = onnx.load(folder / name)
        change(model.graph)
        onnx.save(model, folder / name)

    return edit


def attribute(**values):
    """An edit of the node that names a binary."""

    def change(graph):
        node = graph.node[0]
        kept = [item for item in node.attribute if item.name not in values]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(*item) for item in values.items())])

    return graph(PROMPT_FILE, change)


def attention_on_cpu(graph):
    """As in pipelines of Olive."""
    node = helper.make_node("GroupQueryAttention", ["q"], ["a"], domain="com.microsoft")
    graph.node.insert(0, node)


def scale_of_mask(graph):
    tensor = next(each for each in graph.initializer if each.name == "attention_mask_scale")
    tensor.CopyFrom(numpy_helper.from_array(np.array(9, np.float32), tensor.name))


def another_graph(graph):
    graph.node[0].name = "prompt_ar8_cl48_2_of_2"


def damaged_names(folder):
    """Bytes that are no UTF-8 in the name of an input."""
    content = (folder / PROMPT_FILE).read_bytes()
    (folder / PROMPT_FILE).write_bytes(content.replace(b"attention_mask", b"\xffttention_mask"))


def another_input(graph):
    graph.node[0].input[0] = "ids"


REFUSED = {
    "no stage of its pipeline is a context binary": stages(
        lambda them: [them.pop(name) for name in list(them) if name.startswith("embedded")]
    ),
    "makes cosines of position_ids": stages(lambda them: them.pop("position-processor")),
    r"position-processor\.onnx is missing": lambda it: (it / "position-processor.onnx").unlink(),
    r"names '\.\./x\.onnx', not a file beside it": stages(
        lambda them: them["quantizer"].update(filename="../x.onnx")
    ),
    "quantizer.onnx cannot be read": lambda it: (it / "quantizer.onnx").write_bytes(b"x" * 99),
    "model has no field vocab_size": config(lambda model: model.pop("vocab_size")),
    "eos_token_id is": config(lambda model: model.update(eos_token_id="end")),
    "has 9999 tokens, the graphs give": config(lambda model: model.update(vocab_size=9999)),
    "as pipelines of Olive do": graph(PROMPT_FILE, attention_on_cpu),
    "refers to a DLC": attribute(ep_context_type="dlc"),
    r"names '\.\./part\.bin'": attribute(ep_cache_context="../part.bin"),
    "which is not a file beside it": attribute(embed_mode=1),
    "has no graph prompt_ar8_cl48_2_of_2": graph(PROMPT_FILE, another_graph),
    "disagree about attention_mask": damaged_names,
    "context_length is 1": config(lambda model: model.update(context_length=10**30)),
    "disagree about ids": graph(PROMPT_FILE, another_input),
    "disagree about the scale of attention_mask": graph("quantizer.onnx", scale_of_mask),
}


@pytest.mark.parametrize("match", REFUSED)
def test_pipelines_that_cannot_run(folder, match):
    REFUSED[match](folder)
    refuse(folder, match)


def test_a_missing_binary_is_named(folder):
    (folder / "embedded_token_part_1_of_1.bin").unlink()
    refuse(folder, r"embedded_token_part_1_of_1\.bin is missing", BundleDamagedError)


def test_without_the_library_that_reads_binaries_the_message_says_what_to_install(
    written, monkeypatch
):
    monkeypatch.setattr(pipeline_module, "can_read", lambda: False)
    refuse(written, r"pip install .*\[genie\]")


def test_a_graph_for_positions_that_fails_is_named(folder):
    graph("position-processor.onnx", lambda it: it.node[0].input.__setitem__(0, "gone"))(folder)
    with pytest.raises(BundleError, match=r"position-processor\.onnx: ONNX Runtime cannot run it"):
        open_bundle(folder).rope_tables()
