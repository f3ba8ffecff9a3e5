"""Rotation, channels of like size, rounding with compensation, and mixed bits."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from centred import assert_centring_changes_no_output
from checkpoints import write_checkpoint
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.gptq import (
    BLOCK,
    ColumnIntegers,
    bits_taken,
    may_have_blocks,
    output_error,
    rounded,
    rounded_in_blocks,
    spreading,
)
from coordgen_rs.convert.graph_builder import float_info
from coordgen_rs.convert.qnn.calibration import WatchedGraph
from coordgen_rs.convert.qnn.exporter import mixed_bits
from coordgen_rs.convert.qnn.graph import block_graph, text_inputs
from coordgen_rs.convert.qnn.outliers import (
    channels_apart,
    key_channels,
    orthogonal_matrix,
    usual_first,
)
from coordgen_rs.convert.qnn.quantize import matrix_tensors, read_in_blocks
from coordgen_rs.convert.qnn.report import mean_cosine
from coordgen_rs.convert.qnn.resume import Matrix
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads, shared_options


@pytest.mark.parametrize("size", [3, 64, 576, 896])
def test_turns_are_orthogonal_and_spread_a_single_channel(size):
    turn = orthogonal_matrix(size).astype(np.float64)
    assert np.abs(turn @ turn.T - np.eye(size)).max() < 1e-6
    assert np.abs(turn).max() < max(4 / np.sqrt(size), 0.95)
    assert (turn == orthogonal_matrix(size)).all()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_centred_and_equalised_keys_and_values_change_no_output(tmp_path, family):
    path = write_checkpoint(tmp_path / "model", family=family, kv_heads=2)
    assert_centring_changes_no_output(open_checkpoint(path), 1)


def test_a_key_that_stands_still_in_a_text_is_kept_in_range_where_it_turns_on(tmp_path):
    source = open_checkpoint(write_checkpoint(tmp_path / "model", head_dim=16))
    config = source.config
    rows = np.random.default_rng(1).standard_normal((2, 20, 16)).astype(np.float32) + 4
    short, long = (key_channels(config, 0, context, [rows], 0) for context in (20, 4096))
    slow = len(config.inv_freq) - 1
    assert (long.largest[:, slow] > short.largest[:, slow]).all()
    assert (long.largest >= short.largest).all()
    turned = np.hypot(rows[..., :8], rows[..., 8:]).max(1)
    assert (long.largest[:, :8] <= turned * 1.01).all()


def test_texts_mostly_begin_with_one_token():
    assert usual_first([[4, 5], [7, 1], [7, 2]]) == 1


def test_channels_apart_are_those_that_outgrow_all_others_if_they_are_few():
    sizes = np.ones(100, np.float32)
    assert channels_apart(sizes) == []
    sizes[[70, 3]] = 40, 400
    assert channels_apart(sizes) == [3, 70]
    sizes[50] = 30
    assert channels_apart(sizes) == [3, 70]
    sizes[:40] = 40
    assert channels_apart(sizes) == []
    assert channels_apart(sizes[60:]) == [10]


def test_a_feed_forward_with_channels_apart_computes_the_same(tmp_path):
    source = open_checkpoint(write_checkpoint(tmp_path / "model", family="qwen2"))
    config, layers = source.config, range(2)
    hidden = np.random.default_rng(2).standard_normal((1, 20, config.hidden_size))
    inputs = {"hidden": hidden.astype(np.float32), **text_inputs(config, layers, 20)}
    whole, parted = (
        WatchedGraph(block_graph(source, layers, apart=apart)).run(inputs)
        for apart in ({}, {1: [5, 90]})
    )
    assert np.abs(whole["hidden_out"] - parted["hidden_out"]).max() < 1e-4


def entering(num_rows=400, features=96):
    """Rows whose channels go together, and some of which are large."""
    generator = np.random.default_rng(3)
    rows = generator.standard_normal((num_rows, features // 4))
    rows = rows @ generator.standard_normal((features // 4, features))
    rows *= generator.lognormal(0, 1, features)
    return rows.astype(np.float32), generator.standard_normal((features, 40)).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_compensated_rounding_loses_less_than_the_nearest_integers(bits):
    rows, weight = entering()
    products = rows.T @ rows
    got = rounded(weight, products, bits)
    nearest = np.rint(weight / got.steps).clip(-(1 << bits - 1), (1 << bits - 1) - 1)
    plain = ColumnIntegers(nearest.astype(np.int8), got.steps, bits)
    assert np.abs(got.values.astype(int)).max() <= 1 << bits - 1
    assert output_error(weight, products, got) < 0.5 * output_error(weight, products, plain)
    exact = np.square(rows @ (weight - got.values * got.steps)).sum()
    assert output_error(weight, products, got) == pytest.approx(exact, rel=1e-2)


def test_steps_that_differ_between_blocks_lose_less_than_one_for_a_column():
    generator = np.random.default_rng(4)
    mixed = generator.standard_normal((96, 96)) / 10 + np.eye(96)
    read, others = (
        (generator.standard_normal((500, 96)) @ mixed).astype(np.float32) for _ in range(2)
    )
    weight = generator.standard_normal((96, 40)).astype(np.float32)
    products, unseen = read.T @ read, others.T @ others
    got = rounded_in_blocks(weight, products, 4, len(read))
    plain = rounded(weight, products, 4)
    assert output_error(weight, unseen, got) < 0.9 * output_error(weight, unseen, plain)
    assert got.multiples.shape == (len(weight) // BLOCK, weight.shape[1])
    assert (got.multiples.max(0) == 16).all()  # or the HTP takes other steps
    assert got.multiples.min() >= 1


def test_a_matrix_has_blocks_where_they_divide_its_inputs():
    assert may_have_blocks(3 * BLOCK, 4)
    assert not any(may_have_blocks(*it) for it in ((3 * BLOCK, 8), (BLOCK + 1, 4), (BLOCK, 4)))
    assert bits_taken((64, 10), 4) == 10 * (64 * 4 + 2 * 8 + 32)
    assert bits_taken((64, 10), 8) == 10 * (64 * 8 + 32)


def test_a_graph_reads_weights_in_blocks_as_they_were_rounded():
    rows, weight = entering()
    integers = rounded_in_blocks(weight, rows.T @ rows, 4, len(rows))
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["m.values", "m.steps", "m.zeros"], ["m"], axis=1),
            helper.make_node("MatMul", ["x", "m"], ["y"]),
        ],
        "product",
        [float_info("x", len(rows), len(weight))],
        [float_info("y", len(rows), weight.shape[1])],
        matrix_tensors("m", integers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    read_in_blocks(model, "m")
    set_threads(None)
    content, expected = model.SerializeToString(), rows @ integers.floats()
    (got,) = cpu_session(content, as_written=True).run(None, {"x": rows})
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()
    (got,) = cpu_session(content).run(None, {"x": rows})  # as ONNX Runtime computes others' models
    (usual,) = onnxruntime.InferenceSession(content, shared_options()).run(None, {"x": rows})
    assert np.array_equal(got, usual)


@pytest.mark.parametrize("features", [1, 7, 256, 600])
def test_errors_spread_by_the_upper_factor_of_the_inverse(features):
    rows = np.random.default_rng(5).standard_normal((2 * features, features))
    rows[:, features // 2] = 0
    products = (rows.T @ rows).astype(np.float32)
    damped = products.astype(np.float64)
    damped[features // 2, features // 2] = 1
    damped += np.eye(features) * 0.01 * np.diagonal(damped).mean()
    expected = np.linalg.cholesky(np.linalg.inv(damped)).T
    got = spreading(products)
    assert got.dtype == np.float32
    assert np.array_equal(got, np.triu(got))
    assert np.allclose(got, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_an_input_that_is_always_zero_and_a_column_of_zeros_are_rounded():
    rows, weight = entering()
    rows[:, 5], weight[:, 7] = 0, 0
    products = rows.T @ rows
    for got in (rounded(weight, products, 4), rounded_in_blocks(weight, products, 4, len(rows))):
        assert np.isfinite(got.steps).all()
        assert not got.values[:, 7].any()


def test_integers_of_4_bits_are_packed_as_onnx_reads_them():
    values = np.arange(-8, 7, dtype=np.int8).reshape(3, 5)
    tensors = matrix_tensors("m", ColumnIntegers(values, np.ones(5, np.float32), 4))
    assert (numpy_helper.to_array(tensors[0]).astype(np.int8) == values).all()
    assert tensors[2].data_type == onnx.TensorProto.INT4
    assert not numpy_helper.to_array(tensors[2]).astype(np.int8).any()


def test_the_most_sensitive_matrices_get_8_bits_as_far_as_they_go():
    losses = {"a": 0.3, "b": 0.1, "c": 0.2}
    matrices = {name: Matrix({}, {4: loss, 8: 0.0}, (100, 1)) for name, loss in losses.items()}
    assert mixed_bits(matrices, 4.0) == {"a": 4, "b": 4, "c": 4}
    assert mixed_bits(matrices, 7.0) == {"a": 8, "b": 4, "c": 8}
    assert mixed_bits(matrices, 8.4) == {"a": 8, "b": 8, "c": 8}


def test_a_row_that_is_rounded_to_zeros_counts_as_unlike_any():
    exact = np.eye(4, 8, dtype=np.float32)
    got = exact.copy()
    got[0] = 0
    assert mean_cosine([got], [exact]) == pytest.approx(np.sqrt(3 / 4))
