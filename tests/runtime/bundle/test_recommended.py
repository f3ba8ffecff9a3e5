"""The sampling that a model's makers recommend: from their files to `Model.recommended`."""

import json
import math
from pathlib import Path

import pytest

from checkpoints import write_checkpoint
from coordgen_rs import Model
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.gguf.file import GgufHeader
from coordgen_rs.convert.containers.gguf.tokenizer import generation_config
from coordgen_rs.convert.families.config_json import recommended

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (QWEN3, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        (QWEN3 | {"do_sample": False}, None),
        ({"eos_token_id": 2}, None),
        ({"temperature": 0.6000000238418579}, {"temperature": 0.6}),
        ({"temperature": True, "min_p": 0.05}, {"min_p": 0.05}),
        ({"temperature": "hot", "top_k": 1.5, "top_p": 0, "min_p": -1}, None),
        ({"temperature": math.nan, "top_k": 10**400, "repetition_penalty": math.inf}, None),
        ({"top_k": 0, "repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
    ],
)
def test_what_cannot_be_followed_is_left_out(said, found):
    advice = recommended(said)
    assert (advice and advice.told()) == found


def test_a_bundle_holds_it_and_a_model_tells_it(tmp_path, capsys, bundle_of):
    with Model.open(bundle_of("embedded", "fp32")) as model:
        assert model.recommended == {}
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "generation_config.json").write_text(json.dumps(QWEN3))
    export_checkpoint(checkpoint, tmp_path / "bundle")
    with Model.open(tmp_path / "bundle") as model:
        assert model.recommended == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert main(["info", str(tmp_path / "bundle")]) == 0
    told = capsys.readouterr().out
    assert "recommended sampling: temperature 0.6, top_k 20, top_p 0.95" in told


def test_a_gguf_file_says_it_by_names_of_its_own():
    said = {"temp": 0.6000000238418579, "top_k": 20, "penalty_repeat": 1.5, "mirostat": 2}
    values = {f"general.sampling.{name}": value for name, value in said.items()}
    header = GgufHeader(Path("x.gguf"), {"general.architecture": "llama", **values}, {})
    advice = recommended(generation_config(header))
    assert advice.told() == {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.5}
