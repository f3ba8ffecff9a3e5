"""The commands for QNN as a user types them."""

import json

import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs import Bundle
from qnn_bundles import PROMPT, needs_emulator


@needs_emulator
def test_a_bundle_is_exported_compiled_checked_and_answers(coordgen, tmp_path):
    if not CHECKPOINTS["TinyStories-656K"].exists():
        pytest.skip("no TinyStories-656K here")
    bundle, prompt = tmp_path / "bundle", tmp_path / "prompt.txt"
    sizes = ("--context", 128, "--prefill-rows", 32, "--decode-rows", 8)
    chip = ("--provider", "qnn", "--soc", "8-elite")
    told = coordgen("export", CHECKPOINTS["TinyStories-656K"], bundle, *chip, *sizes).err
    assert "block 0: cosine 0.99" in told
    assert "same next token as float: " in told
    assert "block_00.weights: " in told
    told = coordgen("compile", bundle, "--shared", "--qnn-option", "finalization_mode=1").err
    assert "3 graphs, " in told
    assert "weight-shared binaries of the blocks: " in told
    asked = ("--prompt", PROMPT, "--max-new-tokens", 8, "--compare", "--json")
    report = json.loads(coordgen("generate", "--model", bundle, *chip[:2], *asked).out)
    assert (report["provider"], report["identical"], report["new_tokens"]) == ("qnn", True, 8)
    shown = coordgen("info", bundle).out
    assert "provider: qnn, 8-elite" in shown
    assert "requests: take turns, as all do on qnn" in shown
    Bundle.open(bundle).verify()
    prompt.write_text("Once upon a time there was a cat.")
    found = coordgen("check", bundle, *chip[:2], "--prompt-file", prompt).out
    assert "prefill graph against decode graphs: identical" in found
    assert "side branch against first path: identical" in found
    assert "exact under commit: canonical, compact" in found
