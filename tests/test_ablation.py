"""`coordgen bench --ablation`: every combination, every answer the same, figures that add up."""

import json

import numpy as np
import pytest

from coordgen_rs.bench.ablation import (
    BASES,
    ROWS,
    NotLosslessError,
    PromptsError,
    Row,
    ablate,
    read_prompts,
)
from coordgen_rs.cli import main
from prompts import PROMPTS


def test_json_has_a_row_for_every_combination(bundle_of, data, capsys):
    bundle = bundle_of("embedded", "fp32")
    arguments = ["bench", str(bundle), str(data), "--ablation", "--max-new-tokens", "24", "--json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num_prompts"] == {"rag": 1, "ui": 1, "all": 2}
    assert len(report["ablation"]) == len(ROWS) == 4 * len(BASES)
    for row in report["ablation"]:
        assert set(row["tokens_per_step"]) == {"rag", "ui", "all"}
        assert min(row["tokens_per_step"].values()) >= 1
        assert ("calibration" in row["sources"]) == row["calibration"]
        if not (row["calibration"] or row["reuse"]):
            assert set(row["gain"].values()) == {1}


def test_the_table_names_tasks_and_bases(bundle_of, data, capsys):
    bundle = bundle_of("embedded", "fp32")
    assert main(["bench", str(bundle), str(data), "--ablation", "--max-new-tokens", "9"]) == 0
    shown = capsys.readouterr().out
    for word in ("prompt-lookup", "rag", "all", "tokens_per_step"):
        assert word in shown


def test_other_tokens_than_plain_are_an_error(session_of, monkeypatch):
    session = session_of("embedded", "fp32")
    monkeypatch.setattr("coordgen_rs.bench.ablation.generate", lambda *_, **__: iter([]))
    with pytest.raises(NotLosslessError, match="lookup"):
        ablate(session, PROMPTS[:1], max_new_tokens=8)


def test_gains_are_relative_to_the_base(session_of):
    result = ablate(session_of("embedded", "fp32"), PROMPTS[:1], max_new_tokens=16)
    for row in ROWS:
        base = result.tokens_per_step[Row(row.base, ())]["rag"]
        assert result.gain(row, "rag") * base == pytest.approx(result.tokens_per_step[row]["rag"])


@pytest.mark.parametrize("line", ["{}", "[1]", "not json", '{"task": "rag"}'])
def test_unusable_prompts_are_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"task": "rag", "prompt": "x"}) + "\n\n" + line + "\n")
    with pytest.raises(PromptsError, match="line 3"):
        read_prompts(path)
    path.write_text("\n")
    with pytest.raises(PromptsError, match="no prompt"):
        read_prompts(path)


def test_the_limit_holds_for_each_task(data):
    assert [prompt.task for prompt in read_prompts(data, limit=1)] == ["rag", "ui"]
    assert np.all([prompt in PROMPTS for prompt in read_prompts(data)])
