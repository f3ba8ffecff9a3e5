"""`coordgen chat` without a model: those of this machine, and what to type."""

import json
import os
import shutil

import pytest

from command_line import coordgen
from coordgen_rs.cli.commands.chat.models_here import models_here


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory and a working directory in which nothing is."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "XDG_CACHE_HOME", "COORDGEN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return home


def gguf(path, content=b"GGUF and more"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_without_any_it_says_what_to_type(home):
    done = coordgen("chat", input="")
    assert done.returncode == 0
    assert "There is no model here." in done.stdout
    assert "coordgen chat MODEL" in done.stdout


def test_models_of_the_directory_and_of_other_programs_are_found(home, bundle_of):
    cache = home / ".cache"
    gguf(cache / "huggingface/hub/models--a--b/snapshots/1/b.gguf")
    gguf(cache / "llama.cpp/c.gguf")
    gguf(home / ".lmstudio/models/d/e-00001-of-00002.gguf")
    gguf(home / ".lmstudio/models/d/e-00002-of-00002.gguf")
    gguf(home / "here.gguf")
    gguf(home.parent / "here/my model.gguf")
    gguf(home.parent / "here/mmproj-vision.gguf")
    gguf(home.parent / "here/split-00001-of-00002.gguf")
    gguf(home.parent / "here/split-00002-of-00002.gguf")
    gguf(home.parent / "here/none.gguf", b"something else")
    os.mkfifo(home.parent / "here/pipe.gguf")
    folder = home.parent / "here/llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    shutil.copytree(bundle_of("embedded", "fp32"), home.parent / "here/plain")  # no template
    names = [os.path.relpath(it.name, home) for it in models_here()]
    assert names == [
        "../here/llama",
        "../here/my model.gguf",
        "../here/split-00001-of-00002.gguf",
        ".cache/huggingface/hub/models--a--b/snapshots/1/b.gguf",
        ".cache/llama.cpp/c.gguf",
        ".lmstudio/models/d/e-00001-of-00002.gguf",
    ]
    done = coordgen("chat", input="")
    assert done.returncode == 0
    assert "'my model.gguf'" in done.stdout
    assert done.stdout.endswith("  coordgen chat llama\n")


def test_a_bundle_with_a_template_is_listed_and_a_broken_manifest_is_not(home, bundle_of):
    here = home.parent / "here"
    for name in ("good", "broken"):
        shutil.copytree(bundle_of("embedded", "fp32"), here / name)
    manifest = json.loads((here / "good/manifest.json").read_text())
    manifest["chat"] = {"templates": {"default": "chat_template.jinja"}}
    (here / "good/manifest.json").write_text(json.dumps(manifest))
    (here / "broken/manifest.json").write_text("{")
    assert [(it.name, it.kind) for it in models_here()] == [("good", "bundle")]


def test_names_steer_no_terminal(home):
    gguf(home.parent / "here" / "a\x1b[2Jb.gguf")
    done = coordgen("chat", input="")
    assert "\x1b" not in done.stdout
