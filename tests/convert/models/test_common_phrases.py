"""How common phrases are counted: the shipped file, and the script that made it."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import corpus

MAKE = Path(corpus.__file__).parent / "common_phrases" / "make.py"


def made(tmp_path, kinds, *options):
    """The lines that the script writes for texts by kind, and what it says."""
    folders = []
    for kind, files in kinds.items():
        for name, text in files.items():
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / name).write_text(text, "utf-8")
        folders.append(f"{kind}={tmp_path / kind}")
    out = tmp_path / "out.json"
    command = [sys.executable, str(MAKE), *folders, "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = json.loads(out.read_text("utf-8"))
    return {tuple(context): nexts for *context, _, nexts in lines}, done


def test_chances_are_means_over_kinds_and_one_kind_alone_tells_nothing(tmp_path):
    prose = "some of the parts. " * 30 + "some of his parts. " * 10
    other = "one of the ends. " * 40
    found, _ = made(tmp_path, {"one": {"a.txt": prose}, "two": {"b.md": other}})
    # Three of four in one, all in the other, and `of` is about as frequent in both.
    [(word, percent)] = found[" of",].items()
    assert (word, 86 <= percent <= 89) == (" the", True)
    assert (" the",) not in found, "its next words are those of one kind"
    assert all("his" not in word for nexts in found.values() for word in nexts)


def test_words_that_were_counted_elsewhere_are_a_kind(tmp_path):
    told = {"unigrams.txt": "of\t1000\nthe\t4000\n", "bigrams.txt": "of the\t500\nnone of\t9\n"}
    text = {"a.txt": "some of the parts. " * 30}
    found, _ = made(tmp_path, {"told": told, "text": text})
    assert 50 < found[" of",][" the"] < 100


def test_as_many_lines_are_kept_as_asked_for(tmp_path):
    text = "one of the many things that are part of the whole in the end. " * 30
    kinds = {"one": {"a.txt": text}, "two": {"a.txt": text}}
    found, done = made(tmp_path, kinds, "--lines", "5")
    assert len(found) == 5
    assert "5 lines" in done.stderr


def test_the_shipped_lines_are_sorted_and_have_chances():
    drafting = resources.files("coordgen_rs.generation.drafting")
    text = (drafting / "common_phrases.json").read_text("utf-8")
    lines = json.loads(text)
    contexts = [tuple(context) for *context, _, _ in lines]
    assert contexts == sorted(set(contexts))
    assert len(lines) == 10_000
    assert {len(context) for context in contexts} == {1, 2}
    for *_, often, nexts in lines:
        assert nexts
        assert often >= 1
        assert all(1 <= percent <= 100 for percent in nexts.values())
    known = {tuple(context): nexts for *context, _, nexts in lines}
    assert known[" of",][" the"] > 10
    assert len(text) < 500_000


def test_one_kind_alone_is_refused_and_so_is_what_is_no_folder(tmp_path):
    (tmp_path / "texts").mkdir()
    command = [sys.executable, str(MAKE), "--out", str(tmp_path / "out.json")]
    for kinds, said in (
        ([f"one={tmp_path / 'texts'}"], "two kinds"),
        (["texts", "other"], "no NAME=FOLDER"),
    ):
        done = subprocess.run([*command, *kinds], capture_output=True, text=True)
        assert done.returncode == 2
        assert said in done.stderr
    assert not (tmp_path / "out.json").exists()
