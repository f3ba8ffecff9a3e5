"""`coordgen doctor` and `info`: what they find, say of a model, and say is missing."""

import json
import sys
import tomllib

import pytest

import hybrids
import mixtures
from checkpoints import ROOT, exported, write_checkpoint
from coordgen_rs import open_session
from coordgen_rs._core import kernel_processor
from coordgen_rs.cli.commands import doctor
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.errors import ProviderError
from gemma4 import write_gemma4
from qnn_bundles import SMALL

SAID = {
    "qwen3_moe": "experts: 8 of size 40 in 3 of 4 layers, 3 for each token",
    "granitemoehybrid": "experts: 6 of size 40 in 4 of 4 layers, 2 for each token",
    "lfm2_moe": "experts: 8 of size 40 in 3 of 4 layers, 3 for each token",
    "qwen3_5_moe": "experts: 8 of size 40 in 4 of 4 layers, 3 for each token",
    "lfm2": "layers: 4, 3 of them short convolutions",
    "qwen3_5": "layers: 4, 3 of them gated delta nets",
    "hybrid granitemoehybrid": "layers: 4, 3 of them Mamba-2",
    "gemma4": "layers: 6, 3 of them with the keys and values of earlier ones",
    "gemma4_unified": "layers: 6, 0 of them with the keys and values of earlier ones",
}
"""Of families of models: what both commands say."""


def written(folder, family):
    """A checkpoint of a family."""
    if family.startswith("gemma4"):
        return write_gemma4(folder, family)
    name = family.removeprefix("hybrid ")
    of_hybrids = family != "granitemoehybrid" and name in hybrids.CONFIGS
    return (hybrids.write_hybrid if of_hybrids else mixtures.write_mixture)(folder, name)


def test_every_extra_of_the_package_is_looked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert doctor.EXTRAS.keys() == project["optional-dependencies"].keys()


def test_a_missing_extra_is_named_with_how_to_install_it(coordgen, monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "plots", ("no_such_module", "plots of benchmarks"))
    rows = coordgen("doctor").out.splitlines()
    line = next(row for row in rows if row.startswith("plots"))
    assert "missing no_such_module: pip install" in line
    assert "[plots]" in line


def test_the_report_has_versions_machine_and_extras(coordgen):
    found = json.loads(coordgen("doctor", "--json").out)
    assert found["versions"]["python"].split(".")[:2] == [str(n) for n in sys.version_info[:2]]
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["kernels"] == kernel_processor()
    assert found["extras"]["export"]["missing"] == []
    assert found["records"]["is_writable"] is True


def test_the_report_names_the_kernels_processor_and_why_there_is_none(coordgen, monkeypatch):
    assert f"\nkernels: {kernel_processor()}\n" in coordgen("doctor").out

    def fail():
        raise ProviderError("no kernels here")

    monkeypatch.setattr(doctor, "kernel_library", fail)
    assert "\nkernels: no kernels here\n" in coordgen("doctor").out
    machine = json.loads(coordgen("doctor", "--json").out)["machine"]
    assert (machine["kernels"], machine["kernels_problem"]) == (None, "no kernels here")


def test_a_bundle_that_was_opened_here_shows_what_was_found(
    coordgen, bundle_of, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = bundle_of("embedded", "fp32")
    assert "not yet tested on this machine: run coordgen check" in coordgen("doctor", path).out
    session = open_session(path)
    found = json.loads(coordgen("doctor", path, "--json").out)["bundle"]
    assert found["is_tested"] is True
    assert found["exact_widths"] == list(session.widths)


def test_a_home_that_cannot_be_written_to_is_told(coordgen, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert json.loads(coordgen("doctor", "--json").out)["records"]["is_writable"] is False


def test_what_is_no_bundle_is_refused_behind_the_rest_of_the_report(coordgen, tmp_path):
    said = coordgen("doctor", tmp_path, code=2)
    assert str(tmp_path) in said.err
    assert "cores that may be used" in said.out


def test_a_bundle_for_qnn_is_told_of_without_the_provider(coordgen, tmp_path, monkeypatch):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=1)
    export_qnn(checkpoint, tmp_path / "bundle", soc="8-elite", **SMALL)

    def missing(*_):
        raise ProviderError("onnxruntime-qnn is not installed")

    monkeypatch.setattr("coordgen_rs.runtime.qnn.provider._library", missing)
    lines = coordgen("doctor", tmp_path / "bundle").out.splitlines()
    assert lines[-2].endswith("bundle: int8, for qnn")
    assert lines[-1] == "cannot be opened here: onnxruntime-qnn is not installed"
    assert any(line.startswith("cores that may be used") for line in lines)
    found = json.loads(coordgen("doctor", tmp_path / "bundle", "--json").out)["bundle"]
    assert found["problem"] == "onnxruntime-qnn is not installed"
    assert found["widths"] == [8]
    assert found["is_tested"] is False


@pytest.mark.parametrize("family", SAID)
def test_what_is_peculiar_to_a_model_is_told(tmp_path, coordgen, family):
    bundle = tmp_path / "bundle"
    exported(written(tmp_path / "checkpoint", family), bundle, prefill_rows=32, context=128)
    for command in ("info", "doctor"):
        lines = coordgen(command, bundle).out.splitlines()
        assert SAID[family] in lines, command
        table = "embeddings of layers: 32 numbers each, F32, 1.2 MB that stay on disk"
        assert (table in lines) == (command == "info" and family == "gemma4")


def test_every_family_of_mixtures_and_hybrids_is_told_of():
    assert {*mixtures.CONFIGS, *hybrids.CONFIGS} == {
        name.removeprefix("hybrid ") for name in SAID if not name.startswith("gemma4")
    }


def test_models_without_peculiarities_are_told_as_before(bundle_of, coordgen):
    bundle = bundle_of("embedded", "fp32")
    for command in ("info", "doctor"):
        told = coordgen(command, bundle).out
        assert "experts" not in told
        assert "layers: " not in told
    found = json.loads(coordgen("doctor", bundle, "--json").out)["bundle"]
    assert (found["experts"], found["layers"]) == (None, None)
