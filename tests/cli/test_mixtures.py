"""What `info` and `doctor` tell of models with mixtures of experts."""

import json

import pytest

from checkpoints import exported
from coordgen_rs.cli.main import main
from mixtures import CONFIGS, write_mixture

SAID = {
    "qwen3_moe": "experts: 8 of size 40 in 3 of 4 layers, 3 for each token",
    "granitemoehybrid": "experts: 6 of size 40 in 4 of 4 layers, 2 for each token",
    "lfm2_moe": "experts: 8 of size 40 in 3 of 4 layers, 3 for each token",
    "qwen3_5_moe": "experts: 8 of size 40 in 4 of 4 layers, 3 for each token",
}


@pytest.mark.parametrize("family", CONFIGS)
def test_info_and_doctor_tell_of_experts(tmp_path, capsys, family):
    bundle = tmp_path / "bundle"
    exported(write_mixture(tmp_path / "checkpoint", family), bundle, prefill_rows=32, context=128)
    for command in ("info", "doctor"):
        assert main([command, str(bundle)]) == 0
        assert SAID[family] in capsys.readouterr().out.splitlines(), command


def test_models_without_experts_are_told_as_before(bundle_of, capsys):
    bundle = bundle_of("embedded", "fp32")
    for command in ("info", "doctor"):
        assert main([command, str(bundle)]) == 0
        assert "experts" not in capsys.readouterr().out
    assert main(["doctor", str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bundle"]["experts"] is None
