"""What a calibration text changes: rounding errors that are made good."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from checkpoints import exported, save_weights, write_checkpoint
from coordgen_rs.convert.cpu.calibration import compensated_rows, watch_inputs
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.quantize import quantize_rows
from coordgen_rs.errors import CheckpointError, OptionError
from dequantized import dequantized
from graph_runner import GraphRunner, tokens
from mixtures import CONFIGS as MIXTURES
from mixtures import write_mixture
from reference import load_checkpoint

TEXT = "the ferry runs again from wednesday, twice a day; tickets stay valid for a week. " * 8
TEXTS = [[int(token) for token in tokens(48, 128)], [5, 6, 7]]


def test_inputs_are_those_of_each_linear_layer(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    layers = list(watch_inputs(open_checkpoint(checkpoint), TEXTS))
    config, weights = load_checkpoint(checkpoint)
    assert len(layers) == config["num_hidden_layers"]
    x = weights["model.embed_tokens.weight"][np.concatenate(TEXTS)]
    normed = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config["rms_norm_eps"])
    expected = normed * weights["model.layers.0.input_layernorm.weight"]
    np.testing.assert_allclose(layers[0]["qkv"], expected, atol=1e-5)
    shapes = {"qkv": (51, 64), "attention_out": (51, 64), "gate_up": (51, 64), "down": (51, 96)}
    assert all({name: it.shape for name, it in layer.items()} == shapes for layer in layers)


@pytest.mark.parametrize("features", [64, 100])
def test_compensated_blocks_change_the_outputs_less_than_rounding_alone(features):
    rng = np.random.default_rng(1)
    mixing = rng.standard_normal((features, features)).astype(np.float32)
    rows = rng.standard_normal((300, features)).astype(np.float32) @ mixing
    weight = rng.standard_normal((24, features)).astype(np.float32)
    compensated = dequantized(compensated_rows(weight, rows), 4)
    alone = dequantized(quantize_rows(weight, 4, "w"), 4)
    errors = [
        np.square(rows @ (got[:, :features] - weight).T).sum() for got in (compensated, alone)
    ]
    assert errors[0] < errors[1] * 0.7


def test_columns_that_are_always_zero_and_few_rows_are_no_trouble():
    weight = np.random.default_rng(2).standard_normal((6, 64)).astype(np.float32)
    for rows in (np.zeros((1, 64), np.float32), np.eye(1, 64, dtype=np.float32)):
        assert np.isfinite(dequantized(compensated_rows(weight, rows), 4)).all()


def test_weights_too_large_for_blocks_of_4_bits_are_refused():
    rows = np.random.default_rng(4).standard_normal((80, 64), np.float32)
    weight = np.ones((6, 64), np.float32)
    weight[3, 40] = 1e7
    with pytest.raises(CheckpointError, match="a layer holds weights too large for 4 bits"):
        compensated_rows(weight, rows)


@pytest.mark.parametrize("size", [1e20, 1e30])
def test_inputs_that_cannot_be_compensated_for_are_named(size):
    rows = np.full((4, 64), size, np.float32)
    with pytest.raises(CheckpointError, match="too large or too uneven to round weights"):
        compensated_rows(np.ones((6, 64), np.float32), rows)


@pytest.mark.parametrize("options", [{"ffn": 100}, {"family": "qwen2"}], ids=str)
def test_a_calibrated_bundle_is_as_large_and_nearer_on_its_text(tmp_path, options):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **options)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    plain = exported(checkpoint, tmp_path / "plain", weights="int4", blocks=2)
    calibrated = exported(
        checkpoint, tmp_path / "calibrated", weights="int4", blocks=2, calibration=text
    )
    sizes = [
        {name: record.num_bytes for name, record in bundle.manifest.files.items()}
        for bundle in (plain, calibrated)
    ]
    assert sizes[0] == sizes[1]
    ids = Tokenizer.from_str(open_checkpoint(checkpoint).read_tokenizer()).encode(TEXT).ids[:200]
    exact = GraphRunner(exported(checkpoint, tmp_path / "exact")).feed_all(ids, 8)
    errors = [
        np.square(GraphRunner(bundle).feed_all(ids, 8) - exact).sum()
        for bundle in (plain, calibrated)
    ]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("family", MIXTURES)
def test_a_calibration_text_decides_on_what_is_beside_experts(tmp_path, family):
    checkpoint = write_mixture(tmp_path / "checkpoint", family)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    plain = exported(checkpoint, tmp_path / "plain", weights="int4")
    calibrated = exported(checkpoint, tmp_path / "calibrated", weights="int4", calibration=text)
    experts, others = "block_00.experts", "block_00.weights"
    assert plain.manifest.files[experts] == calibrated.manifest.files[experts]
    assert plain.manifest.files[others] != calibrated.manifest.files[others]
    layers = zip(plain.manifest.experts.layers, calibrated.manifest.experts.layers, strict=True)
    assert all(one == other for one, other in layers)


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_calibration_that_would_change_nothing_is_refused(tmp_path, weights):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(OptionError, match=f"calibration changes nothing in {weights}"):
        exported(checkpoint, tmp_path / "out", weights=weights, calibration=tmp_path / "absent")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_that_are_not_finite_are_refused_before_they_are_rounded(tmp_path, weights, value):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    stored = load_file(checkpoint / "model.safetensors")
    stored["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_weights(checkpoint, stored)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    for calibration in (None, text) if weights == "int4" else (None,):
        with pytest.raises(CheckpointError, match="NaN or infinite values"):
            exported(checkpoint, tmp_path / "out", weights=weights, calibration=calibration)
