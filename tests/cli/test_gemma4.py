"""What `info` and `doctor` tell of Gemma 4."""

from checkpoints import exported
from coordgen_rs.cli.main import main
from gemma4 import write_gemma4


def test_info_says_which_layers_share_keys_and_how_large_their_embedding_is(tmp_path, capsys):
    bundle = tmp_path / "bundle"
    exported(write_gemma4(tmp_path / "model", "gemma4"), bundle, prefill_rows=32, context=128)
    shared = "layers: 6, 3 of them with the keys and values of earlier ones"
    assert main(["info", str(bundle)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert shared in lines
    table = "embeddings of layers: 32 numbers each, F32, 1.2 MB that stay on disk"
    assert table in lines
    assert main(["doctor", str(bundle)]) == 0
    assert shared in capsys.readouterr().out.splitlines()


def test_larger_models_have_no_such_embedding(tmp_path, capsys):
    bundle = tmp_path / "bundle"
    checkpoint = write_gemma4(tmp_path / "model", "gemma4_unified")
    exported(checkpoint, bundle, prefill_rows=32, context=128)
    assert main(["info", str(bundle)]) == 0
    told = capsys.readouterr().out
    assert "layers: 6, 0 of them with the keys and values of earlier ones" in told.splitlines()
    assert "embeddings of layers" not in told
