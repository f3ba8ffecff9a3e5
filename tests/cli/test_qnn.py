"""The commands for QNN as a user types them."""

import json

import pytest

from checkpoints import CHECKPOINTS
from command_line import coordgen, refused
from coordgen_rs import Bundle
from qnn_bundles import PROMPT, needs_emulator

SIZES = ("--context", 128, "--prefill-rows", 32, "--decode-rows", 8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    if not CHECKPOINTS["TinyStories-656K"].exists():
        pytest.skip("no TinyStories-656K here")
    out = tmp_path_factory.mktemp("qnn-cli") / "bundle"
    done = coordgen(
        *("export", CHECKPOINTS["TinyStories-656K"], out),
        *("--provider", "qnn", "--soc", "8-elite", *SIZES),
    )
    assert done.returncode == 0, done
    assert "block 0: cosine 0.99" in done.stderr
    assert "same next token as float: " in done.stderr
    assert "block_00.weights: " in done.stderr
    return out


@needs_emulator
def test_compiled_bundle_generates_checks_and_tells_its_chip(bundle):
    done = coordgen("compile", bundle, "--shared", "--qnn-option", "finalization_mode=1")
    assert done.returncode == 0, done
    assert "3 graphs, " in done.stderr
    assert "weight-shared binaries of the blocks: " in done.stderr
    arguments = ("--prompt", PROMPT, "--max-new-tokens", 8, "--compare", "--json")
    done = coordgen("generate", "--model", bundle, "--provider", "qnn", *arguments)
    report = json.loads(done.stdout)
    assert report["provider"] == "qnn"
    assert report["identical"]
    assert report["new_tokens"] == 8
    shown = coordgen("info", bundle).stdout
    assert "provider: qnn, 8-elite" in shown
    assert "requests: take turns, as all do on qnn" in shown
    Bundle.open(bundle).verify()


@needs_emulator
def test_check_says_under_which_commits_the_bundle_is_exact(bundle, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Once upon a time there was a cat.")
    done = coordgen("check", bundle, "--provider", "qnn", "--prompt-file", prompt)
    assert done.returncode == 0, done
    assert "prefill graph against decode graphs: identical" in done.stdout
    assert "side branch against first path: identical" in done.stdout
    assert "exact under commit: canonical, compact" in done.stdout


def test_mistakes_are_one_clear_line(bundle_of, tmp_path):
    export = ("export", CHECKPOINTS["embedded"], tmp_path / "out")
    assert "--provider qnn needs --soc NAME" in refused(*export, "--provider", "qnn")
    assert "--soc is for --provider qnn" in refused(*export, "--soc", "8-elite")
    assert "soc is 'x'" in refused(*export, "--provider", "qnn", "--soc", "x")
    assert "weights is 'fp32'" in refused(
        *export, "--provider", "qnn", "--soc", "8-elite", "--weights", "fp32"
    )
    cpu = bundle_of("embedded", "fp32")
    assert "is for CPU" in refused("compile", cpu)
    generate = ("generate", "--model", cpu, "--prompt", "x")
    assert "was made for cpu, not for qnn" in refused(*generate, "--provider", "qnn")
    assert "vtcm_mb is 'lots'" in refused(*generate, "--qnn-option", "vtcm_mb=lots")
    assert not (tmp_path / "out").exists()
