"""What a calibration text changes: equalised channels, and rounding errors that are made good."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from checkpoints import exported, save_weights, write_checkpoint
from coordgen_rs.errors import CheckpointError, OptionError
from coordgen_rs.target.device import CpuDevice
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.tools.export.calibration.activations import LayerInputs, LinearInput, watch_inputs
from coordgen_rs.tools.export.calibration.rounding import rounded
from coordgen_rs.tools.export.checkpoints.opening import open_checkpoint
from coordgen_rs.tools.export.cpu import equalisation, exporter
from coordgen_rs.tools.export.cpu.compensation import compensated_blocks, compensated_rows
from coordgen_rs.tools.export.cpu.equalisation import channel_factors, equalised, round_rows
from coordgen_rs.tools.export.cpu.quantize import blocks_of, quantize_rows
from coordgen_rs.tools.export.cpu.w8a8 import joined_columns
from coordgen_rs.tools.export.rotation import rotated
from dequantized import dequantized
from families import needs_transformers, prompt_logits, random_model, write_safetensors
from graph_runner import GraphRunner, tokens
from reference import load_checkpoint

TEXT = "the ferry runs again from wednesday, twice a day; tickets stay valid for a week. " * 8
TEXTS = [[int(token) for token in tokens(48, 128)], [5, 6, 7]]


def with_outliers(path, **options):
    """A random checkpoint some of whose channels are far larger than the others."""
    checkpoint = write_checkpoint(path, **options)
    source = open_checkpoint(checkpoint)
    for name, tensor in source.tensors.items():
        if name.endswith(("input_layernorm.weight", "up_proj.weight")):
            large = np.where(np.arange(tensor.shape[0]) % 17 == 3, 30, 1).astype(np.float32)
            source.tensors[name] = tensor.scaled(rows=large)
    return source


def logits(source, out, monkeypatch, **options):
    """Of a bundle of an opened checkpoint, in float32 unless said."""
    monkeypatch.setattr(exporter, "open_checkpoint", lambda *_: source)
    session = OrtSession(CpuDevice(exported(out, out, **options)))
    return prompt_logits(session, np.array(TEXTS[0], np.uint32))


@pytest.mark.parametrize(
    "options",
    [{}, {"family": "qwen2", "ffn": 100}, {"tied": False, "kv_heads": 4}, {"kv_heads": 1}],
    ids=str,
)
def test_equalisation_leaves_the_float_model_as_it_is(tmp_path, monkeypatch, options):
    source = with_outliers(tmp_path / "checkpoint", **options)
    equal = equalised(source, TEXTS)
    changed = [
        name
        for name, tensor in source.tensors.items()
        if not np.array_equal(equal.tensors[name].load(), tensor.load())
    ]
    assert any("layernorm" in name for name in changed)
    before, after = (
        logits(it, tmp_path / name, monkeypatch) for name, it in (("a", source), ("b", equal))
    )
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 * np.abs(before).max())


def test_norms_with_an_offset_lose_no_bit(tmp_path, monkeypatch):
    source = open_checkpoint(write_checkpoint(tmp_path / "checkpoint"))
    source = replace(source, config=replace(source.config, norm_offset=1.0))

    def factors_of(entering, weight, repeats=None, **_):
        size = weight.shape[1] if repeats is None else repeats[0] * repeats[2]
        return np.exp2(np.arange(size) % 31 - 15).astype(np.float32)

    monkeypatch.setattr(equalisation, "channel_factors", factors_of)
    equal = equalised(source, TEXTS)
    size = source.config.hidden_size
    for name in ("model.layers.1.input_layernorm", "model.layers.0.post_attention_layernorm"):
        before, after = (it.norm_tensor(name, size).load() for it in (source, equal))
        assert np.array_equal(after * factors_of(None, before[None]), before)


def test_an_embedding_that_is_stored_as_the_output_layer_stays_what_it_is(tmp_path):
    source = open_checkpoint(write_checkpoint(tmp_path / "checkpoint"))
    source.tensors["lm_head.weight"] = source.tensors.pop("model.embed_tokens.weight")
    equal = equalised(source, TEXTS)
    stored = source.tensors["lm_head.weight"].load()
    assert np.array_equal(equal.tensors["model.embed_tokens.weight"].load(), stored)


@needs_transformers
@pytest.mark.parametrize("name", ["Phi-3-mini, window 24", "Gemma 3"])
def test_equalisation_folds_into_fused_weights_and_norms_with_an_offset(
    tmp_path, monkeypatch, name
):
    source = open_checkpoint(write_safetensors(random_model(name), tmp_path / "checkpoint"))
    equal = equalised(source, TEXTS)
    before, after = (
        logits(it, tmp_path / name, monkeypatch) for name, it in (("a", source), ("b", equal))
    )
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 * np.abs(before).max())


def test_w8a8_is_equalised_also_without_a_text_of_the_users(tmp_path, monkeypatch):
    source = with_outliers(tmp_path / "checkpoint")
    exact = logits(source, tmp_path / "exact", monkeypatch)
    equal = logits(source, tmp_path / "equal", monkeypatch, weights="w8a8")
    monkeypatch.setattr(exporter, "equalised", lambda source, *_, **__: source)
    alone = logits(source, tmp_path / "alone", monkeypatch, weights="w8a8")
    assert np.square(equal - exact).sum() < 0.8 * np.square(alone - exact).sum()


def test_factors_lower_the_error_of_8_bits_where_a_channel_is_large():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, 96)).astype(np.float32)
    rows[:, 7] *= 100
    weight = rng.standard_normal((32, 96)).astype(np.float32)
    factors = channel_factors(LinearInput(rows), weight)
    exact = rows @ weight.T
    plain = round_rows(rows) @ round_rows(weight).T
    equal = round_rows(rows / factors) @ round_rows(weight * factors).T
    assert factors[7] > factors[8]
    assert np.square(equal - exact).sum() < np.square(plain - exact).sum() / 4


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 1e-40, 1.0, 1e30]))
def test_factors_are_finite_powers_of_two_whatever_comes(seed, size):
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((5, 12)) * rng.choice([0, 1, size], 12)).astype(np.float32)
    weight = (rng.standard_normal((7, 12)) * rng.choice([0, 1, 1e-3], 12)).astype(np.float32)
    factors = channel_factors(LinearInput(rows), weight, (2, 2, 3))
    assert factors.shape == (6,)
    assert np.isfinite(factors).all()
    assert np.array_equal(np.frexp(factors)[0], np.full(6, 0.5))


def test_inputs_are_those_of_each_linear_layer(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    *layers, head = watch_inputs(open_checkpoint(checkpoint), TEXTS)
    config, weights = load_checkpoint(checkpoint)
    assert [type(layer) for layer in layers] == [LayerInputs] * config["num_hidden_layers"]
    x = weights["model.embed_tokens.weight"][np.concatenate(TEXTS)]
    normed = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config["rms_norm_eps"])
    expected = normed * weights["model.layers.0.input_layernorm.weight"]
    np.testing.assert_allclose(layers[0].qkv.rows, expected, atol=1e-5)
    shapes = [it.rows.shape for it in (layers[0].attention_out, layers[0].down, head)]
    assert shapes == [(51, 64), (51, 96), (51, 64)]


@pytest.mark.parametrize("features", [64, 100])
def test_compensated_blocks_change_the_outputs_less_than_rounding_alone(features):
    rng = np.random.default_rng(1)
    mixing = rng.standard_normal((features, features)).astype(np.float32)
    rows = rng.standard_normal((300, features)).astype(np.float32) @ mixing
    weight = rng.standard_normal((24, features)).astype(np.float32)
    integers = compensated_blocks(weight, LinearInput(rows)).read_rows(0, 24)
    compensated = dequantized(blocks_of(integers, 4, "w"), 4)
    alone = dequantized(quantize_rows(weight, 4, "w"), 4)
    errors = [
        np.square(rows @ (got[:, :features] - weight).T).sum() for got in (compensated, alone)
    ]
    assert errors[0] < errors[1] * 0.7


@pytest.mark.parametrize(
    ("compensated", "highest"), [(compensated_blocks, 15), (compensated_rows, 255)]
)
def test_columns_that_are_always_zero_and_few_rows_are_no_trouble(compensated, highest):
    weight = np.random.default_rng(2).standard_normal((6, 64)).astype(np.float32)
    for rows in (np.zeros((1, 64), np.float32), np.eye(1, 64, dtype=np.float32)):
        integers = compensated(weight, LinearInput(rows)).read_rows(0, 6)
        assert np.isfinite(integers.scales).all()
        assert integers.values.max() <= highest


@pytest.mark.parametrize("options", [{}, {"tied": False, "family": "qwen2"}], ids=str)
def test_a_turn_undoes_factors_of_what_norms_give_so_none_are_searched(tmp_path, options):
    source = with_outliers(tmp_path / "checkpoint", **options)
    with_all, without = (
        rotated(equalised(source, TEXTS, is_turned=is_turned)) for is_turned in (False, True)
    )
    assert with_all.tensors.keys() == without.tensors.keys()
    for name, tensor in with_all.tensors.items():
        assert np.array_equal(tensor.load(), without.tensors[name].load()), name
    layer = "model.layers.0.self_attn.q_proj.weight"
    plain = equalised(source, TEXTS, is_turned=True).tensors[layer].load()
    assert np.array_equal(plain, source.tensors[layer].load())
    assert not np.array_equal(equalised(source, TEXTS).tensors[layer].load(), plain)


def test_integers_of_w8a8_come_back_with_their_signs():
    generator = np.random.default_rng(3)
    weight = generator.standard_normal((6, 40), np.float32)
    entering = LinearInput(generator.standard_normal((64, 40), np.float32))
    expected = rounded(weight.T.copy(), entering.rows.T @ entering.rows, 8)
    stored = compensated_rows(weight, entering)
    columns = joined_columns([stored.read_rows(0, 2), stored.read_rows(2, 6)])
    assert np.array_equal(columns.values, expected.values)
    assert np.array_equal(columns.steps, expected.steps)


def test_weights_too_large_for_blocks_of_4_bits_are_refused():
    rows = np.random.default_rng(4).standard_normal((80, 64), np.float32)
    weight = np.ones((6, 64), np.float32)
    weight[3, 40] = 1e7
    with pytest.raises(CheckpointError, match="a layer holds weights too large for 4 bits"):
        compensated_blocks(weight, LinearInput(rows))


@pytest.mark.parametrize("compensated", [compensated_blocks, compensated_rows])
@pytest.mark.parametrize("size", [1e20, 1e30])
def test_inputs_that_cannot_be_compensated_for_are_named(size, compensated):
    rows = np.full((4, 64), size, np.float32)
    with pytest.raises(CheckpointError, match="too large or too uneven to round weights"):
        compensated(np.ones((6, 64), np.float32), LinearInput(rows))


@pytest.mark.parametrize("weights", ["int4", "w8a8"])
@pytest.mark.parametrize("options", [{"ffn": 100}, {"family": "qwen2"}], ids=str)
def test_a_calibrated_bundle_is_as_large_and_nearer_on_its_text(tmp_path, options, weights):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **options)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    plain = exported(checkpoint, tmp_path / "plain", weights=weights, blocks=2)
    calibrated = exported(
        checkpoint, tmp_path / "calibrated", weights=weights, blocks=2, calibration=text
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


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_calibration_that_would_change_nothing_is_refused(tmp_path, weights):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(OptionError, match=f"calibration changes nothing in {weights}"):
        exported(checkpoint, tmp_path / "out", weights=weights, calibration=tmp_path / "absent")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("weights", ["int8", "int4", "w8a8"])
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
