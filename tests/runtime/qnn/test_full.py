"""Long runs on the HTP emulator: held-out prompts of every task, on four versions of the HTP."""

import pytest

from answers import tokens_of
from checkpoints import CHECKPOINTS, ROOT
from coordgen_rs import Bundle, Tokenizer, plain
from coordgen_rs.convert.qnn.compile import compile_bundle
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.lab.check import check
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice
from corpus import HELD_OUT_SEEDS, TASKS, example
from qnn_bundles import check_tokens, needs_emulator
from real_model import GGUF, QUESTIONS, chat, needs_real_model

pytestmark = [needs_emulator, pytest.mark.qnn_full]

SOCS = ("8-gen-2", "8-gen-3", "8-elite", "8-elite-gen-5")
STORIES = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside. " * 3,
    "Tom and Sam were playing with a red ball. The red ball",
)


def prompts(name, soc):
    """Of the embedded model's tasks two a chip, so that each is asked on two of them."""
    if name != "embedded":
        return STORIES
    number = SOCS.index(soc)
    tasks = (TASKS[number % len(TASKS)], TASKS[(number + 1) % len(TASKS)])
    return [example(task, HELD_OUT_SEEDS[number]).prompt for task in tasks]


@pytest.mark.parametrize("soc", SOCS)
@pytest.mark.parametrize("name", ["embedded", "TinyStories-656K"])
def test_drafting_changes_no_token(tmp_path, name, soc):
    if not CHECKPOINTS[name].exists():
        pytest.skip(f"no {name} here")
    out = tmp_path / "bundle"
    calibration = ROOT / "models" / "calibration.jsonl" if name == "embedded" else None
    sizes = {"context": 512, "prefill_rows": 128, "decode_rows": 32, "blocks": 2}
    export_qnn(CHECKPOINTS[name], out, soc=soc, calibration=calibration, **sizes)
    compile_bundle(out)
    session = OrtSession(QnnDevice(Bundle.open(out)))
    tokenizer = Tokenizer.of(session.bundle)
    for text in prompts(name, soc):
        prompt = tokenizer.encode(text)
        check_tokens(session, prompt, tokens_of(plain(session, prompt, max_new_tokens=32)))
    report = check(session, tokenizer.encode(prompts(name, soc)[0]), max_new_tokens=16)
    assert report.exact_commits == ("canonical", "compact")
    assert all(item.identical for item in report.comparisons)


@needs_real_model
@pytest.mark.parametrize(("soc", "weights"), [("8-gen-2", "int8"), ("8-elite", "int4")])
def test_a_real_model_says_the_same_at_every_width_and_with_drafts(tmp_path, soc, weights):
    out = tmp_path / "bundle"
    sizes = {"context": 128, "prefill_rows": 64, "decode_rows": 8, "blocks": 6}
    report = export_qnn(GGUF, out, soc=soc, weights=weights, **sizes)
    assert report.argmax_agreement > (0.8 if weights == "int8" else 0.5)
    compile_bundle(out)
    session = OrtSession(QnnDevice(Bundle.open(out)))
    tokenizer = Tokenizer.of(session.bundle)
    prompt = tokenizer.encode(chat(QUESTIONS[0]))[:60]
    check_tokens(session, prompt, tokens_of(plain(session, prompt, max_new_tokens=16)))
    checked = check(session, prompt[:24], max_new_tokens=6)
    assert checked.exact_commits == ("canonical", "compact")
    assert all(item.identical for item in checked.comparisons), checked.comparisons
