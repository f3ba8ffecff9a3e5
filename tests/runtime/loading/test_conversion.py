"""A checkpoint that is opened as it is: converted once, by what it holds, and never half."""

import builtins
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from answers import tokens_of
from checkpoints import write_checkpoint
from coordgen_rs import Bundle, Model, convert, generate, open_bundle, open_session
from coordgen_rs._core import Lock
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import (
    BlockLoadError,
    BundleDamagedError,
    BundleError,
    ChatTemplateError,
    CheckpointError,
    DraftModelError,
    ExportError,
    MemoryBudgetError,
    OptionError,
    UnsupportedModelError,
)
from coordgen_rs.loading import conversion
from coordgen_rs.runtime.onnx_runtime import cpu_session
from coordgen_rs.store.cache import cache_directory, conversions
from coordgen_rs.store.files import locked
from gguf_files import write_gguf
from hub_server import hub_of
from killed import names, small_disk

_OPEN = """
import sys
from coordgen_rs import open_bundle
bundles = [open_bundle(name) for name in sys.argv[1:]]
for bundle in bundles:
    print(bundle.path, flush=True)
sys.stdin.read()
"""
_HALF = """
import sys
from coordgen_rs import open_bundle
from coordgen_rs.convert.writer import Staging
def write(staging, name, data):
    if name == "head.onnx":
        print("half", flush=True)
        sys.stdin.read()
    written(staging, name, data)
Staging.write, written = write, Staging.write
open_bundle(sys.argv[1])
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A Hugging Face directory, and two files of other weights; none is to be changed."""
    folder = tmp_path_factory.mktemp("models")
    small = {"hidden": 32, "ffn": 32, "head_dim": 32, "layers": 1}
    for seed, name in enumerate(("model", "other")):
        write_checkpoint(folder / name, seed=seed, **small)
        write_gguf(folder / f"{name}.gguf", folder / name, "Q4_0")
    return folder


@pytest.fixture
def file(models, tmp_path, monkeypatch):
    """A file of one's own, and a cache in which nothing is yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy(models / "model.gguf", tmp_path / "model.gguf"))


@pytest.fixture
def exports(monkeypatch):
    """What was exported, in order."""
    done = []

    def counted(checkpoint, *rest, **options):
        done.append(Path(checkpoint).name)
        return export_checkpoint(checkpoint, *rest, **options)

    monkeypatch.setattr(convert, "export_checkpoint", counted)
    return done


def converted():
    return cache_directory() / "converted"


def started(code, *arguments):
    """A process that runs until its input ends."""
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **streams)


@contextmanager
def half_way(file):
    """A process that converts, and stands still half way."""
    with started(_HALF, file) as process:
        said = process.stdout.readline()
        assert said == b"half\n", process.stderr.read()
        yield process


def test_a_file_answers_as_the_bundle_that_is_exported_from_it(file, tmp_path, exports, coordgen):
    export_checkpoint(file, tmp_path / "bundle")
    answers = [
        tokens_of(generate(session, [5, 6, 7, 5, 6], max_new_tokens=12))
        for session in map(open_session, (file, tmp_path / "bundle", file))
    ]
    assert answers[0] == answers[1] == answers[2]
    assert exports == ["model.gguf"]
    folders = (cache_directory(), converted(), cache_directory() / "sources")
    assert [folder.stat().st_mode & 0o077 for folder in folders] == [0] * 3
    with Model.open(file, context=99) as model:
        assert model.context == 99
        assert "0 conversions removed" in coordgen("cache", "clear").err  # it is in use
    assert exports == ["model.gguf"]
    assert "1 conversion removed" in coordgen("cache", "clear").err


@pytest.mark.parametrize("name", ["model.gguf", "model"])
def test_a_model_is_described_without_converting_it(file, models, exports, coordgen, name):
    path = models / name
    shown = coordgen("info", path).out
    assert "model: llama, 1 layers, hidden 32" in shown
    assert ("Q4_0" in shown) == path.is_file()
    assert shown.endswith(
        "chat template: none\nnot converted yet: that is done when it is first opened\n"
    )
    told = json.loads(coordgen("info", path, "--json").out)
    assert (told["is_converted"], told["model"]["hidden_size"]) == (False, 32)
    assert f"{path}: not converted yet: that is done when" in coordgen("doctor", path).out
    assert json.loads(coordgen("doctor", path, "--json").out)["bundle"]["is_converted"] is False
    assert exports == []
    open_bundle(path)
    shown = coordgen("info", path).out
    assert "blocks: 1, widths: " in shown
    assert "requests: several in one step" in shown
    assert "not yet tested on this machine" in coordgen("doctor", path).out
    assert len(exports) == 1


def test_a_damaged_file_is_not_described(file, coordgen):
    file.write_bytes(file.read_bytes()[:100])
    assert f"error: {file} has a damaged header" in coordgen("info", file, code=2).err


def test_a_model_without_a_template_is_no_chat_model_before_it_is_converted(
    file, exports, coordgen, tmp_path
):
    asked = ("generate", "--model", file, "--chat", "--user", "a")
    for command in (("chat", file), asked):
        assert f"{file} has no chat template: give one" in coordgen(*command, code=2).err
    assert exports == []
    template = tmp_path / "given.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    coordgen(*asked, "--chat-template", template, "--max-new-tokens", 2)
    assert len(exports) == 1


def test_a_second_opening_reads_no_weights_of_the_file(file, exports, monkeypatch):
    first = open_bundle(file)
    monkeypatch.setattr(conversion, "open_regular", lambda path: pytest.fail(f"{path} was read"))
    second = open_bundle(str(file))
    assert (first.path, exports) == (second.path, ["model.gguf"])
    assert second.path.name == "model"
    assert second.manifest.weights == "keep"


def test_code_that_converts_otherwise_makes_its_own(file, exports, monkeypatch, tmp_path):
    shutil.copytree(conversion._EXPORT_SOURCES, tmp_path / "export")
    monkeypatch.setattr(conversion, "_EXPORT_SOURCES", tmp_path / "export")

    def change():
        (tmp_path / "export" / "stages.py").open("a").write("# changed")
        conversion._code.cache_clear()

    first = open_bundle(file)
    change()
    second = open_bundle(file)
    assert len({it.bundle for it in conversions(cache_directory())}) == 2  # the first one runs
    del first
    change()
    third = open_bundle(file)
    kept = {it.bundle for it in conversions(cache_directory())}
    assert kept == {second.path, third.path}
    assert len(exports) == 3
    conversion._code.cache_clear()


def test_a_package_that_is_not_installed_converts(file, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    conversion._code.cache_clear()
    assert open_bundle(file).manifest.tool == "coordgen-rs unknown"
    conversion._code.cache_clear()


def test_a_second_name_of_the_same_content_clears_it(file, exports, coordgen):
    second = Path(shutil.copy(file, file.with_name("second.gguf")))
    for path in (file, second):
        open_bundle(path)
    second.unlink()
    assert "1 conversion removed" in coordgen("cache", "clear", second).err
    assert (exports, conversions(cache_directory())) == (["model.gguf"], [])


def test_files_are_told_apart_by_what_they_hold(file, models, exports):
    first = open_bundle(file)
    os.utime(file, (1, 1))
    same = [open_bundle(file), open_bundle(shutil.copy(file, file.with_name("copy.gguf")))]
    assert [bundle.path for bundle in same] == [first.path] * 2
    assert exports == ["model.gguf"]
    stat = file.stat()
    other = file.with_name("other")
    shutil.copy(models / "other.gguf", other)
    assert other.stat().st_size == stat.st_size
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(file)
    changed = open_bundle(file)
    assert exports == ["model.gguf"] * 2
    assert changed.path != first.path
    assert changed.manifest.files != first.manifest.files
    assert open_bundle(models / "model.gguf").path == first.path


def test_a_directory_with_a_file_in_it_names_the_file(file):
    (file.parent / "a directory.gguf").mkdir()
    with pytest.raises(BundleError, match=r"manifest\.json; give the GGUF file in it, .*l\.gguf"):
        open_bundle(file.parent)


@pytest.mark.parametrize("path", ["absent/model.gguf", "~/model"])
def test_a_mistyped_path_is_not_taken_for_a_name_of_the_hub(path):
    with pytest.raises(BundleError, match=r" does not exist$"):
        open_bundle(path)


def test_a_directory_is_converted_by_all_that_an_export_reads(models, file, exports):
    checkpoint = Path(shutil.copytree(models / "model", file.with_name("my model")))
    first = open_bundle(checkpoint)
    assert (first.path.name, first.manifest.weights) == ("my_model", "fp32")
    (checkpoint / "README.md").write_text("of no matter")
    (checkpoint / ".#config.json").symlink_to("user@host.1234:5678")
    (checkpoint / "folder.json").mkdir()
    os.mkfifo(checkpoint / "pipe.json")
    assert open_bundle(checkpoint).path == first.path
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
    assert open_bundle(checkpoint).manifest.chat is not None
    assert exports == ["my model"] * 2


def test_a_model_whose_chat_templates_have_no_default_is_opened(models, file):
    checkpoint = Path(shutil.copytree(models / "model", file.with_name("listed")))
    path = checkpoint / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    config["chat_template"] = [{"name": "rag", "template": "x"}]
    path.write_text(json.dumps(config))
    with Model.open(checkpoint) as model:
        assert not model.has_chat_template
        assert model.generate("a", max_new_tokens=2).token_ids
        with pytest.raises(ChatTemplateError, match="no chat template called default, but rag"):
            model.check_chat()


def test_a_directory_in_bfloat16_keeps_its_weights(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "model", dtype="BF16", hidden=32, ffn=32, layers=1)
    manifest = open_bundle(checkpoint).manifest
    assert (manifest.weights, manifest.embedding.dtype) == ("keep", "BF16")
    assert {it.type for it in manifest.kept} == {"BF16"}
    assert open_session(checkpoint).widths[:4] == (1, 2, 3, 4)


def test_a_longer_context_than_an_export_takes_is_another_conversion(file, exports, monkeypatch):
    with pytest.raises(OptionError, match=r"context is 600, but .*model\.gguf reads at most 512"):
        Model.open(file, context=600)
    monkeypatch.setattr(conversion, "DEFAULT_CONTEXT", 128)
    contexts = [None, 99, 256, 256]
    bundles = [open_bundle(file, context=context) for context in contexts]
    assert [bundle.manifest.context for bundle in bundles] == [512, 512, 256, 256]
    assert len(exports) == 2
    with pytest.raises(OptionError, match=rf"^{file}: context is 513, expected 1 to 512"):
        open_bundle(file, context=513)


@pytest.mark.parametrize("name", ["blob", "source.json.gguf", "Source.JSON._.gguf", ".json.gguf"])
def test_a_file_may_be_called_as_a_record_of_the_cache_or_without_its_suffix(file, exports, name):
    opened = [open_bundle(path) for path in 2 * [file.rename(file.with_name(name))]]
    assert opened[0].path == opened[1].path
    assert name != "blob" or opened[0].path.name == name
    assert exports == [name]


def test_a_revision_is_no_name(tmp_path):
    called = conversion.Source("hf:owner/a.name@refs/pr/1", tmp_path)
    assert called.name == "a.name"
    assert conversion.Source(str(tmp_path / "b@c"), tmp_path).name == "b_c"


def test_weights_count_whatever_the_index_calls_them(models, file, exports):
    checkpoint = Path(shutil.copytree(models / "model", file.with_name("model")))
    weights = (checkpoint / "model.safetensors").rename(checkpoint / "weights.bin")
    header = weights.read_bytes()[8 : 8 + int.from_bytes(weights.read_bytes()[:8], "little")]
    tensors = [name for name in json.loads(header) if name != "__metadata__"]
    index = {"weight_map": dict.fromkeys(tensors, weights.name)}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    first = open_bundle(checkpoint)
    shutil.copy(models / "other" / "model.safetensors", weights)
    changed = open_bundle(checkpoint)
    assert len(exports) == 2
    assert changed.manifest.files != first.manifest.files


def test_a_conversion_that_was_killed_half_way_is_made_anew(file, exports):
    with half_way(file) as process:
        process.send_signal(signal.SIGKILL)
    (entry,) = (path for path in converted().iterdir() if path.is_dir())
    assert entry.name.endswith(".unfinished")
    assert names(converted()) == sorted([entry.name, f".{entry.name[1:33]}.lock"])
    assert conversions(cache_directory()) == []
    made = open_bundle(file).path
    assert made == converted() / entry.name[1:33] / "model"
    assert (exports, names(made.parent)) == (["model.gguf"], ["model", "source.json"])
    assert names(converted()) == [made.parent.name]


def test_what_a_killed_process_left_goes_where_directories_have_no_locks(
    file, monkeypatch, coordgen
):
    monkeypatch.setattr("coordgen_rs.store.files.remove_abandoned", lambda path: [])
    with half_way(file) as process:
        before = names(converted())
        coordgen("cache", "clear")
        assert names(converted()) == before  # it is at it
        process.kill()
    coordgen("cache", "clear")
    assert names(converted()) == []


@pytest.mark.parametrize(
    "record",
    [
        *(None, b"", b"[]", b"{}", b'{"source": 1, "bundle": []}'),
        b'{"source": "", "bundle": "a\\u0000b"}',
    ],
)
def test_a_bundle_without_its_record_or_with_a_damaged_one_is_none(file, exports, record):
    directory = open_bundle(file).path.parent
    if record is None:
        (directory / "source.json").unlink()
        (directory / "model" / "head.weights").write_bytes(b"of another time")
    else:
        for path in (directory / "source.json", *(cache_directory() / "sources").iterdir()):
            path.write_bytes(record)
    open_bundle(file).verify()
    assert len(exports) == 2


def test_a_damaged_conversion_is_replaced_unless_it_runs(file, exports):
    running = open_bundle(file)
    running.file("head.weights").write_bytes(b"short")
    with pytest.raises(BundleDamagedError, match=r"^/.*model\.gguf: /.*a process still runs it"):
        open_bundle(file)
    del running
    open_bundle(file).verify()
    assert len(exports) == 2


def rot(bundle):
    weights = bundle.file("head.weights")
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)


def test_a_conversion_that_rots_is_made_anew_and_while_it_runs_says_what_to_do(file, exports):
    open_session(file).close()
    rot(open_bundle(file))
    with Model.open(file):
        running = open_bundle(file)
        running.verify()
        assert exports == ["model.gguf"] * 2
        rot(running)
        told = r"SHA-256 differs; .*, then coordgen cache clear"
        with pytest.raises(BundleDamagedError, match=told) as raised:
            open_session(file)
        assert str(raised.value).startswith(f"{file}: {running.path}/head.weights is damaged")
        assert open_bundle(file).path == running.path


def shorten(bundle):
    bundle.file("head.weights").write_bytes(b"short")


@pytest.mark.parametrize(
    ("damage", "opening", "match", "times"),
    [
        (shorten, open_bundle, r"head\.weights is damaged: 5 bytes", 1),
        (rot, open_session, "SHA-256 differs", 2),
    ],
)
def test_what_is_exported_damaged_is_not_exported_without_end(
    file, exports, monkeypatch, damage, opening, match, times
):
    exported = convert.export_checkpoint

    def damaged(checkpoint, out, **options):
        exported(checkpoint, out, **options)
        damage(Bundle.open(out))

    monkeypatch.setattr(convert, "export_checkpoint", damaged)
    with pytest.raises(BundleDamagedError, match=match):
        opening(file)
    assert len(exports) == times


def test_errors_about_a_conversion_name_the_file_first(file, models, monkeypatch, bundle_of):
    path, called = open_bundle(file).path, str(file)
    with pytest.raises(BundleError) as raised:
        Model.open(file, provider="qnn")
    assert str(raised.value).startswith(f"{called} was made for cpu, not for qnn")
    assert str(path) not in str(raised.value)
    with Model.open(file) as model:
        assert f"<Model {called!r} on cpu" in repr(model)
        with pytest.raises(ChatTemplateError) as raised:
            model.check_chat()
    assert str(raised.value).startswith(f"{called} has no chat template: give one")
    with pytest.raises(DraftModelError) as raised:
        Model.open(bundle_of("embedded", "fp32"), draft="blend", draft_model=file)
    assert str(raised.value).startswith(f"{called} has a vocabulary of 128 tokens")

    def refused(path, *options):
        if path.name == "block_00.onnx":
            raise RuntimeError("std::bad_alloc")
        return cpu_session(path, *options)

    monkeypatch.setattr("coordgen_rs.runtime.cpu.cpu_session", refused)
    with pytest.raises(BlockLoadError) as raised:
        open_session(file)
    assert str(raised.value).startswith(f"{file}: block 0: ")
    assert f"{path}/block_00.onnx" in str(raised.value)
    with pytest.raises(MemoryBudgetError, match=r"^the memory budget is 1 bytes"):  # of no file
        open_session(file, memory_budget=1)


def test_what_an_export_refuses_names_the_file_first(file, models):
    write_gguf(file, models / "model", metadata={"llama.final_logit_softcapping": 9.0})
    with pytest.raises(UnsupportedModelError, match=rf"^{file}: .*final_logit_softcapping"):
        open_bundle(file)


def test_what_killed_processes_held_goes_with_the_next_conversion(file):
    converted().mkdir(parents=True)
    (converted() / ".of-a-killed-process.lock").touch()
    with locked(converted() / "of-a-live-one"):
        kept = open_bundle(file).path.parent
        assert names(converted()) == [".of-a-live-one.lock", kept.name]


def test_threads_that_open_a_file_at_once_make_one_conversion(file, exports):
    opened = []
    threads = [threading.Thread(target=lambda: opened.append(open_bundle(file))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    assert len({bundle.path for bundle in opened}) == len(exports) == 1


def test_who_waits_says_so_and_goes_on_when_the_other_dies(file, exports, monkeypatch):
    told = []
    with half_way(file) as process:
        monkeypatch.setattr(conversion, "_POLL_S", 0.01)

        def tell(what, done, total):
            told.append(what)
            if what.startswith("waiting") and process.poll() is None:
                process.kill()

        bundle = open_bundle(file, on_progress=tell)
    assert "waiting for another that converts model.gguf" in told
    assert exports == ["model.gguf"]
    bundle.verify()


def test_who_only_looks_at_what_is_damaged_holds_up_nobody(file, exports, monkeypatch):
    kept = open_bundle(file).path
    (kept / "head.weights").write_bytes(b"short")
    looking = Lock(kept.parent / "source.json", shared=True)
    threading.Timer(0.1, looking.release).start()
    open_bundle(file).verify()
    assert len(exports) == 2


@pytest.mark.parametrize("is_killed", [False, True])
def test_processes_that_open_a_file_at_once_make_one_conversion(file, is_killed):
    if is_killed:  # before them, half way
        with half_way(file) as process:
            process.kill()
    processes = [started(_OPEN, file) for _ in range(3)]
    said = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, said
    assert len({out for out, _ in said}) == 1
    (kept,) = conversions(cache_directory())
    Bundle.open(kept.bundle).verify()
    assert names(converted()) == [kept.directory.name]


class NoLocks:
    """What `Lock` is where the file system has none."""

    is_mine, is_held, is_anothers = True, False, False

    def __init__(self, path, *, shared=False):
        pass

    def release(self):
        pass


@pytest.fixture
def no_locks(monkeypatch):
    for module in ("loading.conversion", "store.cache", "store.files"):
        monkeypatch.setattr(f"coordgen_rs.{module}.Lock", NoLocks)


def test_without_locks_two_makers_leave_each_others_work(file, no_locks, monkeypatch):
    others = []

    def twice(checkpoint, out, **options):
        export_checkpoint(checkpoint, out, **options)
        if not others:
            others.append(None)
            others[0] = open_bundle(file)

    monkeypatch.setattr(convert, "export_checkpoint", twice)
    assert open_bundle(file).path == others[0].path
    others[0].verify()
    assert [path for path in names(converted()) if path.endswith(".unfinished")] == []


def test_without_locks_nothing_complete_is_removed(file, no_locks, coordgen):
    kept = open_bundle(file)
    told = coordgen("cache", "clear").err
    assert f"{kept.path.parent} is in use, or its disk has no locks" in told
    kept.verify()
    kept.file("head.weights").write_bytes(b"short")
    with pytest.raises(BundleDamagedError, match="has no locks: remove the directory"):
        open_bundle(file)
    shutil.rmtree(kept.path.parent)
    open_bundle(file).verify()


def test_who_waits_takes_what_the_other_made(file, exports, monkeypatch):
    kept = open_bundle(file).path.parent
    aside = kept.rename(kept.with_name("aside"))
    monkeypatch.setattr(conversion, "_POLL_S", 0)
    with locked(kept):
        made = open_bundle(file, on_progress=lambda what, *_: aside.rename(kept))
    assert made.path == kept / "model"
    assert exports == ["model.gguf"]


def test_a_file_that_changes_while_it_is_read_is_not_kept(file, models, monkeypatch):
    def change(*_):
        shutil.copy(models / "other.gguf", file)

    with pytest.raises(CheckpointError, match=r"model\.gguf was changed while it was read"):
        open_bundle(file, on_progress=change)
    before = open_bundle(file)

    def changed_behind(checkpoint, out, **options):
        export_checkpoint(checkpoint, out, **options)
        os.utime(file)

    monkeypatch.setattr(convert, "export_checkpoint", changed_behind)
    shutil.copy(models / "model.gguf", file)
    with pytest.raises(CheckpointError, match="was changed while it was read"):
        open_bundle(file)
    monkeypatch.setattr(convert, "export_checkpoint", export_checkpoint)
    assert open_bundle(file).manifest.files != before.manifest.files


def test_a_model_by_name_is_fetched_and_converted_once(models, tmp_path, monkeypatch, coordgen):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    shutil.copytree(models / "model", tmp_path / "hub" / "owner" / "name")
    shutil.copy(models / "other.gguf", tmp_path / "hub" / "owner" / "name" / "other.gguf")
    folder = tmp_path / "hub" / "owner" / "name" / "folder"
    folder.mkdir()
    write_gguf(folder / "parts.gguf", models / "other", "Q4_0", tensors_per_part=4)
    in_parts = "hf:owner/name/folder/parts-00001-of-00003.gguf"
    asked = ("hf:owner/name", "hf:owner/name/other.gguf", in_parts)
    with hub_of(tmp_path / "hub") as hub:
        ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        ours |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
        for name, value in ours.items():
            monkeypatch.setenv(name, value)
        opened = [started(_OPEN, *asked).communicate(timeout=600) for _ in range(2)]
    paths = [Path(line) for out, _ in opened for line in out.decode().splitlines()]
    assert [path.name for path in paths] == ["name", "other", "parts"] * 2, opened
    assert paths[:3] == paths[3:]
    assert sorted(it.source for it in conversions(cache_directory())) == sorted(asked)
    assert hub.fetched.count("other.gguf") == 1
    parts = [f"folder/parts-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert [name for name in hub.fetched if "parts" in name] == parts
    for name in asked:
        coordgen("cache", "clear", name)
    assert conversions(cache_directory()) == []


@pytest.fixture
def first_part(models, file):
    """The first of three parts, with the same in all three as `file`."""
    path = file.with_name("parts.gguf")
    return write_gguf(path, models / "model", "Q4_0", tensors_per_part=4)


def next_parts(first):
    return [first.with_name(f"parts-0000{number}-of-00003.gguf") for number in (2, 3)]


def test_a_file_in_parts_is_opened_by_its_first(file, first_part, exports, coordgen):
    bundle = open_bundle(first_part)
    assert (bundle.path.name, exports) == ("parts", [first_part.name])
    assert bundle.manifest.files == open_bundle(file).manifest.files
    assert len(list(first_part.parent.glob("parts-*"))) == 3
    asked = ["--prompt", "once upon", "--max-new-tokens", "4"]
    coordgen("generate", "--model", first_part, *asked)
    coordgen("info", first_part)
    second = next_parts(first_part)[0]
    said = coordgen("info", second, code=2).err.splitlines()[-1]
    assert said == f"coordgen: error: {second} is part 2 of 3: give the first part, {first_part}"
    del bundle
    coordgen("cache", "clear", first_part)


def test_a_conversion_belongs_to_what_all_parts_hold(first_part, models, exports):
    first = open_bundle(first_part)
    for number, path in enumerate([first_part, *next_parts(first_part)], 1):
        path.rename(path.with_name(f"renamed-0000{number}-of-00003.gguf"))
    renamed = first_part.with_name("renamed-00001-of-00003.gguf")
    assert open_bundle(renamed).path == first.path
    assert len(exports) == 1
    others = write_gguf(models / "others.gguf", models / "other", "Q4_0", tensors_per_part=4)
    for number in (2, 3):
        part = renamed.with_name(f"renamed-0000{number}-of-00003.gguf")
        stat = part.stat()
        shutil.copy(others.with_name(f"others-0000{number}-of-00003.gguf"), part)
        os.utime(part, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        open_bundle(renamed)
        assert len(exports) == number


def test_a_part_that_changes_or_goes_is_named_although_there_is_a_conversion(first_part):
    last = next_parts(first_part)[1]
    with pytest.raises(CheckpointError, match=r"00001-of-00003\.gguf was changed while"):
        open_bundle(first_part, on_progress=lambda *_: last.touch())
    assert conversions(cache_directory()) == []
    open_bundle(first_part)
    last.unlink()
    with pytest.raises(CheckpointError, match=r"parts-00003-of-00003\.gguf is missing: .* of 3 pa"):
        open_bundle(first_part)


def test_a_package_that_is_missing_is_named_with_what_to_type(file, monkeypatch):
    kept, imported = open_bundle(file), builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] in ("gguf", "onnx"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *rest)

    for name in [name for name in sys.modules if name.startswith("coordgen_rs.convert")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("coordgen_rs.convert")
    monkeypatch.setattr(builtins, "__import__", without)
    assert open_bundle(file).path == kept.path
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(OptionError, match=r"model\.gguf is converted .* needs .*install .*export"):
        open_bundle(file)


def test_a_cache_that_cannot_be_written_is_named_with_what_to_set(file, monkeypatch, coordgen):
    (file.parent / "taken").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parent / "taken"))
    with pytest.raises(ExportError, match=r"taken/.*Not a directory; set XDG_CACHE_HOME"):
        open_bundle(file)
    told = coordgen("generate", "--model", file, "--prompt", "A", code=2).err
    assert told.count("\n") == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError()))
    with pytest.raises(ExportError, match="there is no home directory; set XDG_CACHE_HOME"):
        open_bundle(file)


def test_a_cache_that_is_only_read_serves_what_is_in_it(file, monkeypatch):
    kept = open_bundle(file)

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("coordgen_rs.store.cache.write_file", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    shutil.rmtree(cache_directory() / "sources")
    assert open_bundle(file).path == kept.path


def test_a_disk_without_room_is_told_of_and_nothing_stays(file, monkeypatch):
    with small_disk(file.parent / "disk", 16 << 10) as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        with pytest.raises(ExportError, match=r"model\.gguf cannot be converted: .*set XDG_CACHE"):
            open_bundle(file)
        assert not any(path.is_file() for path in converted().rglob("*"))


@pytest.mark.parametrize("where", ["loading.conversion.write_file", "convert.writer.os.fsync"])
def test_a_write_for_which_there_is_no_room_is_told_of_and_leaves_nothing(file, monkeypatch, where):
    def full(path, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(f"coordgen_rs.{where}", full)
        with pytest.raises(ExportError, match="No space left on device; set XDG_CACHE_HOME"):
            open_bundle(file)
    assert names(converted()) == []
    open_bundle(file).verify()


def test_what_another_process_runs_stays(file, coordgen):
    with started(_OPEN, file) as process:
        path = Path(process.stdout.readline().decode().strip())
        said = coordgen("cache", "clear").err
        assert f"{path.parent} is in use, or its disk has no locks: it stays" in said
        assert "0 conversions removed" in said
        Bundle.open(path).verify()
    assert "1 conversion removed" in coordgen("cache", "clear").err
    assert names(converted()) == []


def test_the_cache_is_listed_and_cleared_by_source(file, models, coordgen):
    opened = [open_bundle(path) for path in (file, models / "other.gguf")]
    os.utime(opened[0].path.parent / "source.json", (0, 0))
    lines = coordgen("cache", "list").out.splitlines()
    assert lines[0].startswith(f"{models / 'other.gguf'}: 0.")
    assert f", last used {time.strftime('%Y-%m-%d', time.localtime())}" in lines[0]
    assert ", weights keep, context 512, " in lines[0]
    assert lines[1].startswith(f"{file}: ")
    assert lines[2].startswith("2 conversions, 0.")
    assert len(lines) == 3
    listed = json.loads(coordgen("cache", "list", "--json").out)
    assert [entry["source"] for entry in listed] == [str(models / "other.gguf"), str(file)]
    assert listed[1]["bundle"] == str(opened[0].path)
    assert [entry["is_source_gone"] for entry in listed] == [False, False]
    assert [(entry["weights"], entry["context"]) for entry in listed] == [("keep", 512)] * 2
    files = opened[0].manifest.files.values()
    assert listed[1]["num_bytes"] >= sum(record.num_bytes for record in files)
    del opened
    (file.parent / "folder").mkdir()
    coordgen("cache", "clear", file.parent / "folder" / ".." / file.name)
    assert [it.source for it in conversions(cache_directory())] == [str(models / "other.gguf")]
    assert "has no conversion" in coordgen("cache", "clear", file, code=2).err
    assert coordgen("cache", "path").out == f"{cache_directory()}\n"


def test_conversions_of_one_file_are_told_apart(file, monkeypatch, coordgen):
    monkeypatch.setattr(conversion, "DEFAULT_CONTEXT", 128)
    paths = [open_bundle(file, context=context).path for context in (None, 256)]
    lines = coordgen("cache", "list").out.splitlines()
    for context in (512, 256):
        assert sorted(f"context {context}" in line for line in lines[:2]) == [False, True]
    assert lines[2].startswith("2 conversions, ")
    coordgen("cache", "clear", paths[0])
    assert [it.bundle for it in conversions(cache_directory())] == [paths[1]]
    coordgen("cache", "clear", paths[1].parent)
    assert conversions(cache_directory()) == []
    assert coordgen("cache", "list").out.splitlines()[-1] == "0 conversions, 0.0 MB"


def test_what_is_gone_or_damaged_is_marked(file, coordgen):
    bundle = open_bundle(file).path
    file.unlink()
    assert coordgen("cache", "list").out.startswith(f"{file} (gone): ")
    (bundle / "head.weights").write_bytes(b"short")
    assert ", damaged, last used " in coordgen("cache", "list").out.splitlines()[0]
    (entry,) = json.loads(coordgen("cache", "list", "--json").out)
    assert entry["is_source_gone"]
    assert (entry["weights"], entry["context"]) == (None, None)


def test_what_was_not_used_for_some_days_is_cleared(file, models, coordgen):
    old, new = (open_bundle(path).path for path in (file, models / "other.gguf"))
    days_ago = time.time() - 10 * 24 * 60 * 60
    os.utime(old.parent / "source.json", (days_ago, days_ago))
    for words, kept in (
        (["--older-than", "11"], {old, new}),
        ([models / "other.gguf", "--older-than", "9"], {old, new}),
        (["--older-than", "9"], {new}),
        (["--older-than", "0"], set()),
    ):
        told = coordgen("cache", "clear", *words).err
        assert {it.bundle for it in conversions(cache_directory())} == kept
    assert "1 conversion removed" in told
