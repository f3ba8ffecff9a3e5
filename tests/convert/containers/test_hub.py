"""Checkpoints by name, from a hub on the loopback address."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoints import write_checkpoint
from coordgen_rs import Bundle
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.hugging_face import hub_name
from coordgen_rs.errors import CheckpointError, OptionError
from hub_server import COMMIT, hub_of


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """A model in shards, one in one file, one that cannot be exported, and one that is gated."""
    folder = tmp_path_factory.mktemp("hub")
    small = {"hidden": 32, "ffn": 32, "layers": 2}
    write_checkpoint(folder / "owner" / "shards", shards=2, **small)
    write_checkpoint(folder / "owner" / "one", **small)
    write_checkpoint(folder / "owner" / "odd", **small, hidden_act="relu")
    write_checkpoint(folder / "owner" / "gated", **small)
    (folder / "owner" / "gated" / "gated").touch()
    (folder / "owner" / "part" / "f").mkdir(parents=True)
    (folder / "owner" / "part" / "f" / "a-00001-of-00002.gguf").touch()
    texts = {"chat_template": {"chat_template": "x"}, "special_tokens_map": {"eos_token": "</s>"}}
    for name, content in texts.items():
        (folder / "owner" / "one" / f"{name}.json").write_text(json.dumps(content))
    for name in ("extra.safetensors", "README.md", "original.bin"):
        (folder / "owner" / "one" / name).write_bytes(bytes(100))
    return folder


def export(url: str, cache: Path, *runs: tuple[str, Path], offline: bool = False):
    """`coordgen export NAME OUT` in turn, each a line in the output: its exit status.

    A program of its own, because huggingface_hub reads its environment when it is imported.
    """
    code = """if True:
        import sys
        from coordgen_rs.cli.main import main
        for name, out in zip(sys.argv[1::2], sys.argv[2::2]):
            print(main(["export", name, out]))
    """
    ours = {"HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_OFFLINE": str(int(offline))}
    ours |= {f"HF_HUB_{what}_TIMEOUT": "600" for what in ("ETAG", "DOWNLOAD")}
    done = subprocess.run(
        [sys.executable, "-c", code, *(str(part) for run in runs for part in run)],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr.splitlines()


def test_only_what_is_read_is_fetched_and_only_once(tmp_path, repositories):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    one, cache = f"hf:owner/one@{COMMIT}", tmp_path / "cache"
    with hub_of(repositories) as hub:
        runs = ("hf:owner/one", tmp_path / "a"), (one, tmp_path / "b")
        states, _ = export(hub.url, cache, *runs, ("hf:owner/shards@v1", tmp_path / "c"))
    assert states == ["0", "0", "0"]
    assert hub.fetched[:5] == [
        "config.json",
        "special_tokens_map.json",
        "chat_template.json",
        "tokenizer.json",
        "model.safetensors",
    ]
    assert sorted(hub.fetched[5:]) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    states, said = export(hub.url, cache, (one, tmp_path / "d"), offline=True)
    assert states == ["0"], said
    export_checkpoint(repositories / "owner" / "one", tmp_path / "local")
    manifests = [Bundle.open(tmp_path / name).manifest for name in ("a", "b", "d", "local")]
    assert [it.chat and it.chat.tokens for it in manifests] == [{"eos_token": "</s>"}] * 4
    files = [manifest.files for manifest in manifests]
    assert files[0] == files[1] == files[2] == files[3]


def test_what_the_hub_refuses_is_one_clear_line(tmp_path, repositories):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    expected = {
        "hf:owner/absent": "the hub has no such repository, or it is private",
        "hf:owner/one@v7": "the repository has no such revision",
        "hf:owner/one/a.gguf": "the repository has no file a.gguf",
        "hf:owner/part/f/a-00001-of-00002.gguf": "the repository has no file f/a-00002-of-00002.",
        "hf:owner/gated": "is gated: accept its terms",
        "hf:owner/odd": "hidden_act = 'relu' is not supported",
    }
    runs, cache = [(name, tmp_path / "out") for name in expected], tmp_path / "cache"
    with hub_of(repositories) as hub:
        states, said = export(hub.url, cache, *runs)
    assert "0" not in states
    for message, line in zip(expected.values(), said, strict=True):
        assert message in line
    assert "model.safetensors" not in hub.fetched
    assert not (tmp_path / "out").exists()
    # Offline, because the package asks a hub that does not answer six times, for 23 seconds.
    _, said = export(hub.url, cache, ("hf:owner/new", tmp_path / "out"), offline=True)
    assert len(said) == 1
    assert "hf:owner/new: config.json cannot be fetched, because the hub cannot be" in said[0]


@pytest.mark.parametrize(
    ("name", "repository", "file", "revision"),
    [
        ("hf:Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None, None),
        ("hf:a/b@refs/pr/1", "a/b", None, "refs/pr/1"),
        ("hf:a/b/c.Q4_0.gguf", "a/b", "c.Q4_0.gguf", None),
        ("hf:a/b/d/c.gguf@v1", "a/b", "d/c.gguf", "v1"),
    ],
)
def test_names_have_parts(name, repository, file, revision):
    found = hub_name(Path(name))
    assert (found.repository, found.file, found.revision) == (repository, file, revision)
    assert str(found) == name


@pytest.mark.parametrize("name", ["hf:", "hf:a", "hf:a/b/c.bin", "hf:a/b@", "hf:a b/c"])
def test_malformed_names_are_refused(name):
    with pytest.raises(OptionError, match="must be hf:OWNER/NAME"):
        hub_name(Path(name))


def test_a_part_behind_the_first_is_refused_with_the_name_of_the_first():
    with pytest.raises(OptionError, match=r"part 2 of 3: give the first part, .*c-00001-of-00003"):
        hub_name(Path("hf:a/b/d/c-00002-of-00003.gguf@v1"))


def test_a_local_path_is_no_name_even_if_it_looks_like_one(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "hf:owner" / "name", hidden=32, ffn=32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    export_checkpoint("hf:owner/name", tmp_path / "bundle")
    assert Bundle.open(tmp_path / "bundle").manifest.model.hidden_size == 32
    with pytest.raises(CheckpointError, match=r"does not exist; .* hf:OWNER/NAME"):
        export_checkpoint("owner/name", tmp_path / "other")


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OptionError, match=r"hf:a/b needs the package .*install.*\[hub\]"):
        export_checkpoint("hf:a/b", tmp_path / "bundle")
