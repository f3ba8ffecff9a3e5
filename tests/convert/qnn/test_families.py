"""Families on QNN: the float graphs compute what transformers does, and the rest is refused."""

import numpy as np
import pytest

from centred import assert_centring_changes_no_output
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.qnn import preparation
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.convert.qnn.outliers import rotated
from coordgen_rs.lab.check import check
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice
from families import needs_transformers, random_model, tokens, write_safetensors
from qnn_bundles import SMALL, float_logits, needs_emulator

pytestmark = needs_transformers

ON_HTP = (
    *("Qwen3", "Mistral", "SmolLM3", "Granite 3", "Phi-3.5-mini", "Phi-4-mini"),
    *("Qwen3, YaRN", "Ministral 3, tied, short", "Granite 4 dense"),
)


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory):
    """A function from a case to its model and a Hugging Face directory of it."""

    def write(name):
        model = random_model(name)
        return model, write_safetensors(model, tmp_path_factory.mktemp("family") / "checkpoint")

    return write


@pytest.mark.parametrize("change", [lambda source: source, rotated], ids=["as it is", "rotated"])
@pytest.mark.parametrize("name", ON_HTP)
def test_float_graphs_compute_what_transformers_does(checkpoint_of, name, change):
    import torch

    model, path = checkpoint_of(name)
    ids = tokens(100).astype(np.int64)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    got = float_logits(change(open_checkpoint(path)), ids, 4)
    assert np.abs(got - expected).max() < 1e-3


@pytest.mark.parametrize(("name", "layer"), [("Qwen3", 0), ("SmolLM3", 3), ("Phi-4-mini", 1)])
def test_centred_keys_and_values_change_no_output(checkpoint_of, name, layer):
    _, path = checkpoint_of(name)
    assert_centring_changes_no_output(open_checkpoint(path), layer)


@needs_emulator
@pytest.mark.parametrize(
    ("name", "blocks", "weights", "apart"),
    [("Qwen3", 1, "int8", []), ("SmolLM3", 4, "int4", [3, 40])],
)
def test_drafts_change_no_token_on_the_emulator(
    checkpoint_of, tmp_path, monkeypatch, name, blocks, weights, apart
):
    monkeypatch.setattr(preparation, "channels_apart", lambda sizes: apart)
    _, path = checkpoint_of(name)
    options = {"soc": "8-elite", "blocks": blocks, "weights": weights, **SMALL}
    report = export_qnn(path, tmp_path / "bundle", **options)
    assert min(report.block_cosine) > (0.95 if weights == "int8" else 0.7)
    session = OrtSession(QnnDevice(Bundle.open(tmp_path / "bundle")))
    checked = check(session, tokens(30), max_new_tokens=8)
    assert checked.exact_commits == ("canonical", "compact")
    assert all(item.identical for item in checked.comparisons), checked.comparisons
