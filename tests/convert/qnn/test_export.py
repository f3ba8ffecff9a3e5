"""Bundles for QNN: what is in the graphs, and how near they are to the checkpoint."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import reference
from checkpoints import CHECKPOINTS, write_checkpoint
from coordgen_rs import Bundle
from coordgen_rs.cli.main import main
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.qnn import graph as qnn_graph
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.convert.qnn.outliers import rotated
from coordgen_rs.errors import OptionError, UnsupportedModelError
from qnn_bundles import SMALL, float_logits

HTP_OPERATORS = {
    *("Add", "Concat", "DequantizeLinear", "MatMul", "Mul", "QuantizeLinear", "RMSNormalization"),
    *("Reshape", "Sigmoid", "Softmax", "Split", "Sub", "Transpose"),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A bundle of a random model with grouped heads and biases, in two blocks."""
    folder = tmp_path_factory.mktemp("qnn-export")
    source = write_checkpoint(folder / "checkpoint", family="qwen2", layers=3)
    export_qnn(source, folder / "bundle", soc="8-gen-3", blocks=2, narrow_rows=2, **SMALL)
    return Bundle.open(folder / "bundle")


@pytest.mark.parametrize("change", [lambda source: source, rotated], ids=["as it is", "rotated"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_float_graphs_compute_what_the_checkpoint_says(tmp_path, family, kv_heads, change):
    path = write_checkpoint(tmp_path / "model", family=family, kv_heads=kv_heads)
    token_ids = np.random.default_rng(1).integers(0, 128, 150)
    expected = reference.forward(*reference.load_checkpoint(path), token_ids)
    got = float_logits(change(open_checkpoint(path)), token_ids, 2)
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.fixture(scope="module")
def graphs(small):
    """All of it by their files' names."""
    return {
        name: onnx.load(small.file(name), load_external_data=False).graph
        for name in small.manifest.files
        if name.endswith(".onnx")
    }


@pytest.fixture
def decoding(small, graphs):
    """Those of 8 rows, by block."""
    return [graphs[block.graphs[8]] for block in small.manifest.blocks]


def test_only_operators_that_the_htp_runs_between_integers_of_fixed_shape(graphs):
    for name, graph in graphs.items():
        assert {node.op_type for node in graph.node} <= HTP_OPERATORS, name
        for item in [*graph.input, *graph.output]:
            tensor = item.type.tensor_type
            assert tensor.elem_type in (TensorProto.UINT8, TensorProto.UINT16)
            assert all(dim.dim_value > 0 for dim in tensor.shape.dim), item


def test_all_widths_of_a_block_are_the_same_graph(small, graphs):
    assert small.manifest.widths == [2, 8, 32]
    assert small.manifest.decode_widths == [2, 8]
    for files in [it.graphs for it in (*small.manifest.blocks, small.manifest.head)]:
        one, *others = (graphs[files[rows]] for rows in (2, 8, 32))
        for other in others:
            assert one.node == other.node
            assert one.initializer == other.initializer


def test_keys_and_values_are_tied_around_the_middle(small, decoding):
    qnn = small.manifest.qnn
    assert qnn.is_exact
    for block, graph in zip(small.manifest.blocks, decoding, strict=True):
        constants = {item.name: item for item in graph.initializer}
        for number in block.layers:
            for kind in ("key", "value"):
                names = qnn_graph.key_value_names(number, kind)
                found = {
                    tuple(float(numpy_helper.to_array(constants[name])) for name in node.input[1:])
                    for node in graph.node
                    if node.op_type in ("QuantizeLinear", "DequantizeLinear")
                    and any(text.startswith(names[0]) for text in (node.input[0], node.output[0]))
                    and "by_row" not in node.name
                }
                encoding = getattr(qnn.caches[number], kind)
                assert found == {(encoding.scale, 128.0)}


def test_only_what_is_stored_has_8_bits(small, decoding):
    caches = [encoding for it in small.manifest.qnn.caches for encoding in (it.key, it.value)]
    scales = {(encoding.scale, 128) for encoding in caches}
    for graph in decoding:
        constants = {item.name: item for item in graph.initializer}
        found = {
            tuple(numpy_helper.to_array(constants[name]).item() for name in node.input[1:])
            for node in graph.node
            if node.op_type == "QuantizeLinear"
            and constants[node.input[2]].data_type == TensorProto.UINT8
        }
        assert found
        assert found <= scales
    # Blocks hand on hidden states under one encoding.
    assert len(small.manifest.qnn.hidden) == 3
    assert small.embedding().dtype == np.uint16


def test_held_out_text_is_answered_like_the_float_model(tmp_path):
    texts = CHECKPOINTS["embedded"].parent / "calibration.jsonl"
    few = tmp_path / "few.jsonl"
    few.write_text("".join(texts.read_text().splitlines(keepends=True)[:6]))
    chosen = {"soc": "8-gen-2", "calibration": few, **SMALL}
    report = export_qnn(CHECKPOINTS["embedded"], tmp_path / "bundle", **chosen)
    assert report.tokens > 200
    assert report.argmax_agreement > 0.9
    assert min(report.block_cosine) > 0.99
    assert report.file_bytes.keys() == Bundle.open(tmp_path / "bundle").manifest.files.keys()
    assert report.lines()[1].startswith("same next token as float: 9")
    assert 0 < report.divergence < 0.05
    assert list(report.stage_seconds) == ["start", "layer", "head", "block", "comparing"]
    assert report.seconds == sum(report.stage_seconds.values()) > 0
    assert report.lines()[-2].startswith("time: ")
    assert report.lines()[-1].startswith("memory: ")
    assert report.peak_bytes > report.float_bytes > 4 * 1_000_000
    assert report.perplexity == pytest.approx(report.float_perplexity, rel=0.05)


@pytest.mark.parametrize("options", [{"weights": "int4"}, {"cache_type": "uint16"}])
def test_other_precisions_are_written(tmp_path, options):
    source = write_checkpoint(tmp_path / "checkpoint")
    report = export_qnn(source, tmp_path / "bundle", soc="8-gen-2", **SMALL, **options)
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.qnn.is_exact
    assert bundle.manifest.qnn.caches[0].key.dtype == options.get("cache_type", "uint8")
    assert bundle.manifest.weights == options.get("weights", "int8")
    assert min(report.block_cosine) > (0.7 if "weights" in options else 0.95)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soc": "nokia"}, "soc is 'nokia'"),
        ({"weights": "fp32"}, "weights is 'fp32'"),
        ({"cache_type": "int4"}, "cache_type is 'int4'"),
        ({"decode_rows": 64}, "decode_rows is 64, expected at most prefill_rows, 32"),
        ({"narrow_rows": 8}, "narrow_rows is 8, but must be at most 7"),
        ({"context": 9999}, "context is 9999"),
        ({"blocks": 0}, "blocks is 0"),
    ],
)
def test_wrong_options_leave_nothing_behind(tmp_path, options, message):
    source = write_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(OptionError, match=message):
        export_qnn(source, tmp_path / "bundle", **({"soc": "8-gen-2"} | SMALL | options))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_tokens_that_no_answer_may_hold_are_refused_by_name(tmp_path):
    source = write_checkpoint(tmp_path / "checkpoint")
    (source / "generation_config.json").write_text('{"suppress_tokens": [5, 7]}')
    with pytest.raises(UnsupportedModelError, match="has 2 tokens that no answer may hold"):
        export_qnn(source, tmp_path / "bundle", soc="8-gen-3", **SMALL)


def test_an_interrupted_export_says_that_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    def interrupted(checkpoint, out, **options):
        folder = out.with_name(f".{out.name}.export")
        folder.mkdir()
        (folder / "layer_0.npz").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("coordgen_rs.convert.qnn.exporter.export_qnn", interrupted)
    command = ["export", str(tmp_path), str(tmp_path / "out"), "--provider", "qnn", "--soc", "X"]
    assert main(command) == 130
    assert capsys.readouterr().err == (
        "1 graph kept: the same command goes on from here\ncoordgen: error: interrupted\n"
    )
