"""A random model of every family says what it said before, also as a GGUF file."""

import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")

from assistants import write_pair
from checkpoints import write_checkpoint
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.families.table import FAMILIES
from gguf_files import write_gguf
from hybrids import write_hybrid
from lossless import ALL_SOURCES
from miniatures import MINIATURES, NOT_IN_GGUF, write_miniature, write_miniature_gguf
from recorded_tokens import Subject, held_out, requests, together

IN_INTEGERS = ("llama", "qwen2", "smollm3", "granite", "phi3", "lfm2", "qwen3_moe")
"""Families whose weights have 8 bits here: rounding to them is the same everywhere, while a search
of 4 bits sums floats as NumPy does. OLMo and Gemma stay in floats: some of their norms are ONNX
Runtime's, whose last bits depend on the processor, and integers would make more of such a bit."""
KV_CACHES = {"qwen3": "f16", "mistral": "q8"}
MIXES = {
    "gguf-in-k-blocks": {"attn_": "Q4_K", "ffn_down": "Q6_K", "ffn_": "Q5_K", "token_embd": "Q8_0"},
    "gguf-in-small-blocks": {"attn_v": "Q5_0", "attn_": "Q4_0", "ffn_up": "Q4_1", "ffn_": "IQ4_NL"},
}
"""Types of a GGUF file, by a part of a tensor's name."""
WITH_HEADS = ("qwen3_5-with-a-head", "gemma4-with-a-drafter")
_CHARS = 150


def subject_of(name, bundle, **options):
    return Subject(
        name, bundle, lambda number: requests(*held_out(number, _CHARS), number), options, few=True
    )


def check(subject):
    subject.check_plain()
    subject.check("all sources", few=True, draft=ALL_SOURCES)
    subject.check("together", together, few=True, draft="coordgen", parallel=4)


@pytest.mark.parametrize("family", MINIATURES)
def test_a_family_says_what_is_recorded_also_as_a_gguf_file(tmp_path, family):
    checkpoint = write_miniature(tmp_path / "checkpoint", family)
    weights = "keep" if family == "gpt_oss" else "int8" if family in IN_INTEGERS else "fp32"
    options = {"kv_cache": KV_CACHES.get(family, "f32")}
    export_checkpoint(checkpoint, tmp_path / "bundle", weights=weights, blocks=2)
    check(subject_of(family, tmp_path / "bundle", **options))
    if family in NOT_IN_GGUF:
        return
    file = write_miniature_gguf(tmp_path / "model.gguf", family, checkpoint)
    tokenizer = checkpoint / "tokenizer.json"
    export_checkpoint(file, tmp_path / "of-gguf", weights=weights, tokenizer=tokenizer)
    subject_of(family, tmp_path / "of-gguf", **options).check(
        "GGUF", few=True, draft="prompt-lookup"
    )


@pytest.mark.parametrize("name", MIXES)
def test_weights_that_gguf_files_have_in_blocks_say_what_is_recorded(tmp_path, name):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", hidden=256, ffn=512, max_positions=1024)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, MIXES[name])
    export_checkpoint(file, tmp_path / "bundle", weights="keep")
    check(subject_of(name, tmp_path / "bundle"))


@pytest.mark.parametrize("name", WITH_HEADS)
def test_drafts_of_the_models_own_head_say_what_is_recorded(tmp_path, name):
    assistant = None
    if name.startswith("qwen"):
        checkpoint = write_hybrid(tmp_path / "checkpoint", "qwen3_5", mtp="fitted")
    else:
        checkpoint, assistant = write_pair(tmp_path, "gemma4", "fitted")
    export_checkpoint(checkpoint, tmp_path / "bundle", weights="fp32", assistant=assistant)
    subject = subject_of(name, tmp_path / "bundle")
    check(subject)
    subject.check("auto", few=True)
    subject.check("mtp", few=True, draft="mtp")


def test_blocks_that_are_switched_or_streamed_say_what_is_recorded(tmp_path):
    checkpoint = write_miniature(tmp_path / "checkpoint", "llama")
    export_checkpoint(checkpoint, tmp_path / "bundle", weights="int8", blocks=2)
    subject = subject_of("llama", tmp_path / "bundle")
    size = max(path.stat().st_size for path in subject.bundle.glob("block_*.weights"))
    subject.check("switched", few=True, draft="coordgen", switch="just_in_time")
    budget = int(1.5 * size)
    subject.check("streamed", few=True, draft="coordgen", memory_budget=budget)


def test_every_family_is_recorded():
    assert {family.name for family in FAMILIES} == set(MINIATURES)
