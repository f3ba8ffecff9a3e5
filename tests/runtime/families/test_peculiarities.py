"""What Gemma 4 and gpt-oss have that others have not, and that it is used."""

import numpy as np
import pytest

from answers import prompt_logits
from checkpoints import exported, save_weights
from coordgen_rs import Bundle, OrtSession, open_session
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleDamagedError, OptionError
from coordgen_rs.runtime.cpu import CpuDevice
from gemma4 import CONFIGS, write_gemma4
from gpt_oss import write_gpt_oss
from lossless import fresh_logits, prompt_of


def test_layers_that_share_keys_and_values_have_none(bundles):
    manifest = Bundle.open(bundles("gemma4")).manifest
    assert [manifest.cache_of(layer).written_by for layer in range(6)] == [0, 1, 2, 1, 1, 2]
    assert manifest.cached_layers == [0, 1, 2]
    assert manifest.cache_heads == [(2, 16), (2, 16), (2, 32)]
    cache = CpuDevice(Bundle.open(bundles("gemma4"))).cache
    slots = manifest.slots
    assert cache.nbytes == slots * 4 * 2 * 2 * (16 + 16 + 32)
    one = Bundle.open(bundles("gemma4_unified")).manifest
    assert one.cached_layers == [0, 1, 2, 3, 4, 5]
    assert one.cache_heads == [(2, 16), (2, 16), (1, 32)] * 2


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_stay_below_the_cap(bundles, family, tmp_path):
    session = open_session(bundles(family))
    logits = np.abs(fresh_logits(session, prompt_of(1)))
    assert 1 < logits.max() < 20
    capped = write_gemma4(tmp_path / "capped", "gemma4", seed=3, final_logit_softcapping=0.5)
    export_checkpoint(capped, tmp_path / "bundle", weights="fp32", context=1024)
    logits = np.abs(fresh_logits(open_session(tmp_path / "bundle"), prompt_of(1)))
    assert 0.4 < logits.max() <= 0.5


def resident(path):
    """Bytes of a mapped file that are in this process's memory, and of its mappings."""
    found, size = 0, 0
    with open("/proc/self/smaps") as lines:  # noqa: PTH123
        is_of_it = False
        for line in lines:
            fields = line.split()
            if not fields[0].endswith(":"):
                is_of_it = fields[-1] == str(path)
            elif is_of_it and fields[0] in ("Rss:", "Size:"):
                found += int(fields[1]) * 1024 * (fields[0] == "Rss:")
                size += int(fields[1]) * 1024 * (fields[0] == "Size:")
    return found, size


def test_the_embedding_of_layers_stays_on_disk(tmp_path):
    """Opened and used, of a table of 48 MB what was asked for is in memory, and pages beside it."""
    wide = {"hidden_size_per_layer_input": 1344}
    checkpoint = write_gemma4(tmp_path / "checkpoint", "gemma4", **wide)
    export_checkpoint(checkpoint, tmp_path / "bundle", weights="fp32", context=64, prefill_rows=32)
    table = tmp_path / "bundle" / "per_layer.weights"
    assert table.stat().st_size == 1536 * 6 * 1344 * 4
    session = OrtSession(CpuDevice(Bundle.open(tmp_path / "bundle")))
    in_memory, mapped = resident(table)
    assert mapped >= table.stat().st_size
    assert in_memory == 0
    session.prefill(np.array([5, 6, 7], np.uint32))
    in_memory, _ = resident(table)
    assert 0 < in_memory < table.stat().st_size / 8


def test_a_table_that_is_cut_short_is_told(bundles, tmp_path):
    bundle = Bundle.open(bundles("gemma4"))
    table = bundle.file("per_layer.weights")
    content = table.read_bytes()
    try:
        table.write_bytes(content[:-100])
        with pytest.raises(BundleDamagedError, match=r"per_layer.weights is damaged"):
            Bundle.open(bundle.path)
        with pytest.raises(BundleDamagedError, match=r"per_layer.weights cannot be mapped"):
            bundle.per_layer_embedding()
    finally:
        table.write_bytes(content)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_calibration_text_is_refused_by_name(tmp_path, family):
    checkpoint, text = write_gemma4(tmp_path / "checkpoint", family), tmp_path / "text.txt"
    text.write_text("some words " * 40)
    with pytest.raises(OptionError, match=f"calibration is not known for {family}, whose layers"):
        export_checkpoint(checkpoint, tmp_path / "out", weights="int4", calibration=text)


def test_sinks_and_biases_change_what_is_said(tmp_path):
    """That all of them are read: what is said differs without any of them."""
    from safetensors.numpy import load_file

    logits = {}
    for part in ("", "sinks", "o_proj.bias", "router.bias", "gate_up_proj_bias", "down_proj_bias"):
        source = write_gpt_oss(tmp_path / f"{part}-source", num_hidden_layers=2)
        weights = load_file(source / "model.safetensors")
        for name, values in weights.items():
            if part and name.endswith(part):
                weights[name] = np.zeros_like(values) - (50 if part == "sinks" else 0)
        save_weights(source, weights)
        exported(source, tmp_path / f"{part}-out", decode_rows=8)
        logits[part] = prompt_logits(open_session(tmp_path / f"{part}-out"), prompt_of(1))
    for part, rows in logits.items():
        assert part == "" or np.abs(rows - logits[""]).max() > 0.1, part
