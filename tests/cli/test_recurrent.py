"""What `info` and `doctor` tell of models with recurrent layers."""

import json

import pytest

from checkpoints import exported
from coordgen_rs.cli.main import main
from hybrids import CONFIGS, write_hybrid

SAID = {
    "lfm2": "layers: 4, 3 of them short convolutions",
    "qwen3_5": "layers: 4, 3 of them gated delta nets",
    "granitemoehybrid": "layers: 4, 3 of them Mamba-2",
}


@pytest.mark.parametrize("family", CONFIGS)
def test_info_and_doctor_say_how_many_layers_are_recurrent(tmp_path, capsys, family):
    bundle = tmp_path / "bundle"
    exported(write_hybrid(tmp_path / "checkpoint", family), bundle, prefill_rows=32, context=128)
    for command in ("info", "doctor"):
        assert main([command, str(bundle)]) == 0
        assert SAID[family] in capsys.readouterr().out.splitlines(), command


def test_models_whose_layers_all_have_attention_are_told_as_before(bundle_of, capsys):
    bundle = bundle_of("embedded", "fp32")
    for command in ("info", "doctor"):
        assert main([command, str(bundle)]) == 0
        assert "layers: " not in capsys.readouterr().out
    assert main(["doctor", str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bundle"]["layers"] is None
