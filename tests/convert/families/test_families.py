"""Every family: what transformers computes, the same bits at every width, drafts change nothing."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordgen_rs import generate, make_drafter, plain
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.ort_session import OrtSession
from families import (
    CASES,
    MODELS,
    chain_logits,
    compare,
    exported_model,
    needs_transformers,
    prompt_logits,
    tokens,
)
from scripted import ScriptedDrafter, Tree

pytestmark = needs_transformers

NEW_FAMILIES = [name for name in MODELS if name not in ("Llama", "Qwen2")]
"""The others are tested without transformers, too."""
RECURRENT = ["LFM2", "Qwen3.5", "Granite 4 hybrid"]
MIXTURES = ["Qwen3-MoE, two layers dense", "LFM2-MoE", "Granite 4 with experts", "Qwen3.5-MoE"]
GEMMA4 = ["Gemma 4 E2B", "Gemma 4, keys are values"]
CUT = ["SmolLM3", "Gemma 3", "OLMo 3", "Ministral 3", "gpt-oss", *GEMMA4, *RECURRENT, *MIXTURES]
"""Families whose layers are of different kinds."""


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Bundle]]:
    """A function from a case, a format and options of the export to a model and its bundle."""

    @cache
    def export(name: str, file_format: str = "safetensors", weights: str = "fp32") -> Any:
        folder: Path = tmp_path_factory.mktemp("family")
        return exported_model(name, folder, file_format, weights=weights)

    return export


@pytest.mark.parametrize(("name", "file_format"), CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(model_of, name, file_format):
    result = compare(*model_of(name, file_format))
    assert result.difference < 1e-3
    assert result.same_greedy


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("name", NEW_FAMILIES)
def test_rows_are_bit_equal_at_every_width(model_of, name, weights):
    session = OrtSession(CpuDevice(model_of(name, weights=weights)[1]))
    ids = tokens(70)
    expected = chain_logits(session, ids, 1)
    for width in session.widths[1:]:
        assert np.array_equal(chain_logits(session, ids, width), expected), width
    assert np.array_equal(prompt_logits(session, ids), expected)


def draft_of(answer: list[int], rng: np.random.Generator) -> Callable[[int], Tree]:
    """Trees in which right tokens stand on the first path, on side branches, or nowhere."""

    def script(given: int) -> Tree:
        nodes, parents, right = [], [], 0
        for token in answer[given : given + int(rng.integers(0, 12))]:
            wrong = [int(token + 1 + i) % 128 for i in range(int(rng.integers(0, 3)))]
            siblings = [*wrong, token] if rng.random() < 0.7 else [token, *wrong]
            first = len(nodes) + 1
            nodes += siblings
            parents += [right] * len(siblings)
            right = first + siblings.index(token)
        return nodes[:31], parents[:31]

    return script


@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.parametrize("name", NEW_FAMILIES)
def test_drafts_change_no_token(model_of, name, weights):
    session = OrtSession(CpuDevice(model_of(name, weights=weights)[1]))
    rng, prompt = np.random.default_rng(3), tokens(50)
    answer = [
        token for step in plain(session, prompt, max_new_tokens=90) for token in step.token_ids
    ]
    assert len(answer) == 90
    drafters = {
        "auto": make_drafter(session),
        "scripted": ScriptedDrafter(make_drafter(session), draft_of(answer, rng)),
    }
    for kind, drafter in drafters.items():
        steps = generate(session, prompt, max_new_tokens=90, drafter=drafter)
        assert [token for step in steps for token in step.token_ids] == answer, kind


@pytest.mark.parametrize("name", CUT)
def test_a_block_of_one_kind_of_layers_computes_the_same(model_of, tmp_path, name):
    _, whole = model_of(name)
    _, cut = exported_model(name, tmp_path, blocks=4)
    expected, got = (prompt_logits(OrtSession(CpuDevice(it)), tokens()) for it in (whole, cut))
    assert np.array_equal(got, expected)


def test_queries_grow_only_in_a_context_that_reaches_so_far(model_of, tmp_path):
    _, whole = model_of("Ministral 3")
    _, short = exported_model("Ministral 3", tmp_path, context=32)
    assert whole.manifest.query_scaling == QueryScaling(0.3, 32)
    assert short.manifest.query_scaling is None
    expected, got = (prompt_logits(OrtSession(CpuDevice(it)), tokens(32)) for it in (whole, short))
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("name", ["OLMo 3", "Ministral 3", "Granite 4 dense", *RECURRENT])
def test_a_calibration_text_brings_four_bits_nearer(model_of, tmp_path, name):
    text, ids = tmp_path / "text.txt", tokens(4_000) % 95 + 4
    text.write_text("".join(chr(28 + token) for token in ids))
    _, rounded = model_of(name, weights="int4")
    _, calibrated = exported_model(name, tmp_path, weights="int4", calibration=text)
    exact, *others = (
        prompt_logits(OrtSession(CpuDevice(it)), ids[:90])
        for it in (model_of(name)[1], calibrated, rounded)
    )
    errors = [np.square(other - exact).mean() for other in others]
    assert errors[0] < errors[1]
