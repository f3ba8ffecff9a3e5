"""Tokens that a checkpoint's makers let no answer hold, as Gemma 4's marks of pictures."""

import json

import pytest

from answers import tokens_of
from checkpoints import exported, sums, write_checkpoint
from coordgen_rs import OrtSession, generate, make_drafter, plain
from coordgen_rs.errors import CheckpointError
from coordgen_rs.runtime.cpu import CpuDevice
from gemma4 import CONFIGS, write_gemma4
from gguf_files import write_gguf

PROMPT = [1, 3, 4, 1, 5]
SMALL = {"prefill_rows": 32, "context": 128}


def written(path, family):
    return write_gemma4(path, family) if family in CONFIGS else write_checkpoint(path)


def say(checkpoint, value):
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps({"suppress_tokens": value}))


def answer(bundle):
    """What is said, which is the same with drafts."""
    session = OrtSession(CpuDevice(bundle))
    asked = {"max_new_tokens": 24, "ignore_eos": True}
    told = tokens_of(plain(session, PROMPT, **asked))
    assert tokens_of(generate(session, PROMPT, drafter=make_drafter(session), **asked)) == told
    return told


@pytest.mark.parametrize("family", ["llama", *CONFIGS])
@pytest.mark.parametrize("is_file", [False, True], ids=["safetensors", "GGUF"])
def test_no_answer_holds_them(tmp_path, family, is_file):
    checkpoint = written(tmp_path / "model", family)
    usual = answer(exported(checkpoint, tmp_path / "usual", **SMALL))
    never = [*set(usual)][:2]
    beyond = [*never, 10**9, -1]
    say(checkpoint, beyond)
    if is_file:
        metadata = {"tokenizer.ggml.suppress_tokens": beyond}
        checkpoint = write_gguf(tmp_path / "model.gguf", checkpoint, metadata=metadata)
    found = answer(exported(checkpoint, tmp_path / "held", **SMALL))
    assert not set(found) & set(never)


@pytest.mark.parametrize("given", [None, [], [10**9]])
def test_a_checkpoint_that_names_none_makes_the_same_bundle(tmp_path, given):
    checkpoint = write_checkpoint(tmp_path / "model")
    usual = exported(checkpoint, tmp_path / "usual")
    say(checkpoint, given)
    assert sums(exported(checkpoint, tmp_path / "same")) == sums(usual)


@pytest.mark.parametrize("given", [5, ["a"], [1.5], [True], {"a": 1}])
def test_what_is_no_list_of_tokens_is_refused_by_name(tmp_path, given):
    checkpoint = write_checkpoint(tmp_path / "model")
    say(checkpoint, given)
    with pytest.raises(CheckpointError, match="suppress_tokens is "):
        exported(checkpoint, tmp_path / "bundle")
