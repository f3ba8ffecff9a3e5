"""What kinds of weights cost, side by side."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from checkpoints import exported, write_checkpoint
from coordgen_rs.bundle.manifest import MANIFEST_NAME
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.convert.texts import other_texts, texts_for
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.quality import weights as quality
from coordgen_rs.lab.quality.weights import _Reference as Reference
from coordgen_rs.lab.quality.weights import compare_weights
from reference import forward, load_checkpoint

TEXT = "the ferry runs again from wednesday, twice a day; tickets stay valid for a week. "


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("quality") / "checkpoint")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 12)
    return path


def test_float_is_first_and_its_perplexity_is_that_of_a_numpy_forward_pass(checkpoint, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    report = compare_weights(checkpoint, text=path)
    assert [row.weights for row in report.rows] == ["fp32", "int8", "int4"]
    exact, *others = report.rows
    assert (exact.agreement, exact.divergence) == (1.0, 0.0)
    config, weights = load_checkpoint(checkpoint)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = np.array(tokenizer.encode(TEXT).ids)
    logits = forward(config, weights, ids).astype(np.float64)
    surprises = np.log(np.exp(logits).sum(-1))[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]
    assert report.num_tokens == len(ids)
    assert exact.perplexity == pytest.approx(np.exp(surprises.mean()), rel=1e-3)
    assert all(row.divergence > 0 and row.num_bytes < exact.num_bytes for row in others)
    int8, int4 = others
    assert int8.divergence < int4.divergence
    assert int8.agreement > int4.agreement


def test_a_calibration_adds_a_row_and_is_judged_on_what_it_holds_out(checkpoint, text):
    report = compare_weights(checkpoint, weights=["int4"], calibration=text)
    kinds = [(row.weights, row.is_calibrated) for row in report.rows]
    assert kinds == [("fp32", False), ("int4", False), ("int4", True)]
    whole = compare_weights(checkpoint, weights=["fp32"], text=text)
    assert report.num_tokens < whole.num_tokens


def test_without_a_text_what_is_read_is_never_calibrated_on(checkpoint):
    source = open_checkpoint(checkpoint)
    both, others = texts_for(source, None), other_texts(source)
    report = compare_weights(checkpoint, weights=["fp32"])
    assert report.num_tokens == sum(map(len, others))
    assert not {*map(tuple, others)} & {*map(tuple, both.calibration + both.held_out)}


def test_a_text_is_cut_to_the_tokens_that_are_asked_for(checkpoint, text):
    report = compare_weights(checkpoint, weights=["fp32"], text=text, most_tokens=50)
    assert report.num_tokens == 50


def test_a_kind_that_the_checkpoint_cannot_have_and_a_text_of_one_token_are_refused(
    checkpoint, tmp_path
):
    with pytest.raises(OptionError, match=r"expected some of fp32, int8, int4$"):
        compare_weights(checkpoint, weights=["keep"])
    with pytest.raises(OptionError, match="weights w8a8 is gone: int8 is faster"):
        compare_weights(checkpoint, weights=["w8a8"])
    path = tmp_path / "one.txt"
    path.write_text("a")
    with pytest.raises(OptionError, match="too short"):
        compare_weights(checkpoint, text=path)
    with pytest.raises(OptionError, match="most_tokens is 1"):
        compare_weights(checkpoint, most_tokens=1)


def test_weights_for_qnn_and_an_opened_bundle_are_compared_with_the_same_float_model(
    checkpoint, text, tmp_path
):
    chosen = {"weights": ["int8"], "soc": "8-elite", "cache_type": "uint16"}
    report = compare_weights(checkpoint, text=text, calibration=text, most_tokens=200, **chosen)
    exact, int8 = report.rows
    assert (exact.weights, exact.cache_type, exact.agreement) == ("fp32", None, 1.0)
    assert (int8.weights, int8.cache_type) == ("int8", "uint16")
    assert 0 < int8.divergence < 0.1
    bundle = tmp_path / "bundle"
    sizes = {"context": 256, "prefill_rows": 64, "decode_rows": 16}
    export_qnn(checkpoint, bundle, soc="8-gen-3", cache_type="uint16", calibration=text, **sizes)
    opened = compare_weights(checkpoint, text=text, most_tokens=200, bundles=[bundle]).rows[1]
    # The ranges of keys depend on the context.
    assert opened.divergence == pytest.approx(int8.divergence, rel=0.1)
    assert opened.num_bytes == sum(
        it.stat().st_size for it in bundle.iterdir() if it.name != MANIFEST_NAME
    )


def test_bundles_of_another_model_or_with_too_short_a_context_are_refused(
    checkpoint, text, tmp_path
):
    export_checkpoint(checkpoint, tmp_path / "short", context=20)
    with pytest.raises(OptionError, match="has a context of 20 tokens, a piece of the text 200"):
        compare_weights(checkpoint, text=text, most_tokens=200, bundles=[tmp_path / "short"])
    other = write_checkpoint(tmp_path / "other", ffn=32)
    with pytest.raises(OptionError, match="no bundle of this checkpoint"):
        compare_weights(other, text=text, most_tokens=20, bundles=[tmp_path / "short"])
    with pytest.raises(OptionError, match="weights is 'keep', expected some of int8, int4"):
        compare_weights(checkpoint, weights=["keep"], soc="8-elite", text=text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_an_error(checkpoint, text, monkeypatch):
    monkeypatch.setattr(quality, "_Reference", lambda _: Reference(Path("/dev/full")))
    with pytest.raises(OSError, match="No space left"):
        compare_weights(checkpoint, weights=["fp32"], text=text)


def test_the_command_prints_a_row_for_each_kind(checkpoint, text, capsys):
    assert main(["quality", str(checkpoint), "--text", str(text)]) == 0
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title.endswith("tokens; divergence from fp32 in nats a token")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line]
    assert [row[0] for row in cells if "--" not in row[0]] == ["weights", "fp32", "int8", "int4"]
    assert cells[2][3] == "100.0 %"


def test_export_says_what_other_weights_would_take(checkpoint, tmp_path):
    sizes = export_checkpoint(checkpoint, tmp_path / "int4", weights="int4")
    assert list(sizes) == ["fp32", "int8", "int4"]
    for kind, num_bytes in sizes.items():
        files = exported(checkpoint, tmp_path / f"{kind}-again", weights=kind).manifest.files
        # Each tensor begins at a page of its own in a file, of which there are few here.
        weights = [
            record.num_bytes for name, record in files.items() if name[-3:] in {"hts", "bin"}
        ]
        assert num_bytes <= sum(weights) <= num_bytes + 30 * 4096
