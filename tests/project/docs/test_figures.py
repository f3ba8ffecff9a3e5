"""The figures of the documents: each measured table can be printed and written again by itself."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

import concept_figures
import figures
import terminal_picture
from checkpoints import ROOT
from coordgen_rs.lab.papers.items import PAPERS
from coordgen_rs.lab.papers.page import picture_name
from documents import DOCUMENTS, parse_error, simple_commands

PICTURES = {".svg", ".webp"}

BY_HAND = {
    "requests as token ids, gzip": "arithmetic, as the text says",
    "`int8` | uint16": "two runs side by side, on chats that are not in the repository",
    "`history_index` |": "five minutes of each fuzz target, one at a time",
    "NEON I8MM": "instructions, counted by an emulator in two builds",
    "`--free --trees`": "a program in C with a native llama.cpp, an hour",
    "right in `chain`": "draft models with noise in their weights, which are not in the repository",
    "over its base": "prompts of public records, which are not in the repository",
    "a layer's state": "sizes, which tests/project/docs/test_recurrent_layers.py computes",
    "knowing the routers": "5,000 simulations by `cargo test`, as the text says",
    "tokens seen, millions": "training takes an hour; embedded/curve.txt is its output",
}
"""First cells of tables of figures that no command rewrites, and why."""

_TABLE = re.compile(r"^(?:\|.*\|\n){2,}", re.MULTILINE)
_RULE = re.compile(r"\|[-: |]+\|")
_MEASURED = re.compile(
    r"Measured at [0-9a-f]{7}( or shortly before|, with uncommitted changes)?, on .+ cores\b.*\."
)
_NUMBER = re.compile(r"\W*x?\d[\d.,]*( ?[%\w]+)?( \([\d.,]+\))?\W*")


def all_blocks() -> list[figures.Block]:
    return [block for document in DOCUMENTS for block in figures.blocks_of(document)]


def all_figures() -> list[figures.Block]:
    return [block for block in all_blocks() if not block.is_picture]


def figures_of(block: figures.Block) -> str:
    """What stands between the block's markers."""
    after = block.document.read_text("utf-8").partition(f"<!-- figures: {block.name}")[2]
    return after.partition("<!-- /figures -->")[0].partition("-->\n")[2]


def rows_of(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if not _RULE.fullmatch(line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def is_of_figures(table: str) -> bool:
    """Whether most of its cells, the first column and the head left out, are numbers."""
    cells = [cell for row in rows_of(table)[1:] for cell in row[1:]]
    return sum(_NUMBER.fullmatch(cell) is not None for cell in cells) > len(cells) / 2


@pytest.fixture
def copied(tmp_path: Path, monkeypatch) -> Path:
    """A copy of the benchmarks page, which alone is rewritten."""
    page = tmp_path / "benchmarks.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text())
    monkeypatch.setattr(figures, "DOCUMENTS", [page])
    monkeypatch.setattr(figures, "WORK", tmp_path / "work")
    return page


def test_every_marker_has_a_name_of_its_own_and_a_command_that_parses():
    blocks = all_blocks()
    names = [block.name for block in blocks]
    assert len(names) == len(set(names)) > 15
    for block in blocks:
        (call,) = simple_commands(block.command)
        assert call[0] in ("coordgen", "python"), block
        if call[0] == "coordgen":
            assert parse_error(call[1:]) is None, block
        else:
            assert (ROOT / call[1]).exists() or (ROOT / "models" / call[1]).exists(), block


def test_every_need_is_in_its_command():
    for block in all_blocks():
        words = block.command.split()
        for name in block.needs:
            assert any(fnmatch(name, word) or name == word for word in words), (block, name)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_measured_table_is_between_markers(path):
    text = re.sub(r"<!-- figures: .*?<!-- /figures -->", "", path.read_text(), flags=re.DOTALL)
    tables = [table for table in _TABLE.findall(text) if is_of_figures(table)]
    assert [table for table in tables if not any(cell in table for cell in BY_HAND)] == []


@pytest.mark.parametrize("block", all_figures(), ids=lambda block: block.name)
def test_every_measured_table_says_at_which_commit_and_on_which_machine(block):
    assert _MEASURED.fullmatch(figures_of(block).strip().splitlines()[-1])


@pytest.mark.parametrize("block", all_figures(), ids=lambda block: block.name)
def test_no_table_shows_a_range_of_a_single_run(block):
    if re.search(r"--(repeats|rounds) 1\b", block.command):
        assert re.findall(r"\S*\d\.\.\d\S*", figures_of(block)) == []


@pytest.mark.parametrize("block", all_figures(), ids=lambda block: block.name)
def test_no_table_leaves_out_other_texts_in_each_row(block):
    heads = [rows_of(table)[0] for table in _TABLE.findall(figures_of(block))]
    assert not any("without loops" in cell for head in heads for cell in head)


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_the_q4_0_file_of_the_peers_is_made_by_a_command_of_the_page(page):
    q4_1, q4_0 = (f"SmolLM2-135M-Instruct.{of}.gguf" for of in ("Q4_1", "Q4_0"))
    made = dict(figures.recipes(ROOT / page))
    assert made[q4_0].source == q4_1


def test_no_exception_is_left_over():
    everything = "".join(path.read_text() for path in DOCUMENTS)
    assert all(cell in everything for cell in BY_HAND)


def test_a_table_is_rewritten_in_its_place_and_says_what_was_measured(copied, capsys):
    before = copied.read_text()
    head = before.partition("<!-- figures: plans")[0]
    copied.write_text(before.replace("1.417", "9.999"))
    assert figures.main(["plans"]) == 0
    after = copied.read_text()
    assert "plans: rewritten" in capsys.readouterr().out
    written = after.partition("<!-- figures: plans")[2].partition("<!-- /figures -->")[0]
    assert "makespan / lower bound, mean\n\n| chunks |" in written
    assert "every point" not in written
    assert "1.417" in written
    assert f"Measured at {figures.commit()}, on {figures.machine()}." in written
    assert after.partition("<!-- figures: plans")[0] == head
    end = "## Switching"
    assert after.partition(end)[2] == before.partition(end)[2]


def test_figures_whose_needs_are_absent_stay_as_they_are(tmp_path, monkeypatch, capsys):
    page, typed = tmp_path / "page.md", "```sh\ncoordgen export no.gguf made\nls made\n```\n"
    needs = ("made", "no.jsonl", "made; packages: no_such_package")
    page.write_text(
        typed
        + "".join(
            f"<!-- figures: f{n}; needs: {need} -->\n<!-- /figures -->\n"
            for n, need in enumerate(needs)
        )
        + "<!-- picture: drawn; needs: build/no; command: ls -->\n"
    )
    before = page.read_text()
    monkeypatch.setattr(figures, "DOCUMENTS", [page])
    monkeypatch.setattr(figures, "WORK", tmp_path / "work")
    assert figures.main([]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("f0: left as it is: needs no.gguf: put it into ")
    assert said[1].startswith("f1: left as it is: needs no.jsonl: put it into ")
    assert said[2] == "f2: left as it is: needs the package no_such_package, which is not installed"
    assert said[3] == "drawn: left as it is: needs build/no, which is not there"
    assert page.read_text() == before


def test_a_command_that_fails_is_named_and_leaves_its_table(copied, capsys):
    broken = copied.read_text().replace("coordgen plan --grid", "coordgen plan --gird")
    copied.write_text(broken)
    assert figures.main(["plans"]) == 1
    assert "plans: FAILED, left as it is: exit code 2 of coordgen plan" in capsys.readouterr().out
    assert copied.read_text() == broken


def test_an_unknown_name_is_refused_and_names_are_listed(copied, capsys):
    assert figures.main(["plan"]) == 2
    assert "no plan; --list shows all names" in capsys.readouterr().err
    assert figures.main(["--list", "plans"]) == 0
    assert capsys.readouterr().out.endswith("coordgen plan --grid\n")


def test_a_bundle_that_a_document_makes_is_made_before_its_figures(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\necho 1 > first.txt\npython -c 'print(open(\"first.txt\").read())' > made.txt\n"
        "cat made.txt\n```\n<!-- figures: one; needs: first.txt, made.txt -->\n<!-- /figures -->\n"
    )
    monkeypatch.setattr(figures, "DOCUMENTS", [page])
    monkeypatch.setattr(figures, "WORK", tmp_path / "work")
    assert figures.main([]) == 1
    assert "it printed no table" in capsys.readouterr().out
    assert (tmp_path / "work" / "made.txt").read_text() == "1\n\n"


def test_what_lies_in_build_stands_only_for_what_cannot_be_made(tmp_path, monkeypatch):
    build, work, page = tmp_path / "build", tmp_path / "build" / "figures", tmp_path / "page.md"
    page.write_text(
        "```sh\necho new > made.txt\ncoordgen export no.gguf bundle\n"
        "cat made.txt bundle data\n```\n"
        "<!-- figures: one; needs: made.txt, bundle, data -->\n<!-- /figures -->\n"
    )
    work.mkdir(parents=True)
    for name in ("made.txt", "bundle", "data"):
        (build / name).write_text(f"{name} of build\n")
    (work / "made.txt").symlink_to(build / "made.txt")
    (work / "bundle").mkdir()
    (work / "data").symlink_to(tmp_path / "nowhere")
    for name, value in (("DOCUMENTS", [page]), ("WORK", work), ("ROOT", tmp_path)):
        monkeypatch.setattr(figures, name, value)
    (block,) = figures.blocks_of(page)
    assert figures.Runner().run(block) == "new\nbundle of build\ndata of build\n"
    assert (build / "made.txt").read_text() == "made.txt of build\n"


@pytest.mark.parametrize(
    "edited",
    [
        "other words\n",
        "```sh\nls -l\n```\n<!-- figures: a -->\n<!-- /figures -->\n",
        "```sh\nls\n```\n<!-- figures: a -->\n",
    ],
)
def test_a_document_that_was_edited_meanwhile_is_left_as_it_is(tmp_path, edited):
    page = tmp_path / "page.md"
    page.write_text("```sh\nls\n```\n<!-- figures: a -->\n<!-- /figures -->\n")
    (block,) = figures.blocks_of(page)
    page.write_text("more above\n\n" + page.read_text())
    figures.rewrite(block, "| 1 |", "0123456")
    assert page.read_text().startswith("more above")
    page.write_text(edited)
    with pytest.raises(figures.FailedError, match=r"page\.md was changed there meanwhile"):
        figures.rewrite(block, "| 1 |", "0123456")
    assert page.read_text() == edited


def test_only_tables_are_kept_with_the_line_above_each():
    printed = "loaded\n\nspeed\n\n| a |\n| - |\n| 1 |\n\nbytes\n\n| b |\n| - |\n| 2 |\ndone\n"
    both = "speed\n\n| a |\n| - |\n| 1 |\n\nbytes\n\n| b |\n| - |\n| 2 |"
    assert figures.tables_of(printed) == both
    assert figures.tables_of(printed, ["byte"]) == "| b |\n| - |\n| 2 |"
    with_peers = f"{printed}\nPeer: x 1.0, CPU : AVX = 1 |\n\nPeer: y 2.0\n{printed}\nPeer: y 2.0\n"
    told = "\n\nPeer: x 1.0, CPU : AVX = 1 |\n\nPeer: y 2.0"
    assert figures.tables_of(with_peers) == f"{both}\n\n{both}{told}"
    with pytest.raises(figures.FailedError, match="no table speeds"):
        figures.tables_of(printed, ["speeds"])


@pytest.mark.parametrize(
    ("marker", "mistake"),
    [
        ("<!-- figures: a -->\n<!-- /figures -->\n", "no command for a"),
        ("```sh\nls\n```\n<!-- figures: a -->\n| 1 |\n", "no <!-- /figures --> for a"),
        ("```sh\nls\n```\n<!-- figures: a; need: b -->\n<!-- /figures -->\n", "option need"),
    ],
)
def test_a_marker_that_is_not_well_formed_is_refused(marker, mistake, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(marker)
    with pytest.raises(ValueError, match=mistake):
        list(figures.blocks_of(page))


def test_what_is_changed_but_a_document_is_told(monkeypatch):
    asked = []

    def fake(command, **_):
        asked.append(command)
        said = "0123456\n" if "rev-parse" in command else " M src/lib.rs\n"
        return subprocess.CompletedProcess(command, 0, stdout=said)

    monkeypatch.setattr(subprocess, "run", fake)
    assert figures.commit() == "0123456, with uncommitted changes"
    assert ":!*.md" in asked[-1]


@pytest.mark.parametrize("name", concept_figures.FIGURES)
def test_the_drawn_figures_are_those_of_their_script(name):
    assert concept_figures.FIGURES[name]() == (ROOT / "docs" / name).read_text("utf-8")


def test_every_picture_of_the_documents_is_drawn_by_a_marked_command():
    drawn = {name for block in all_blocks() if block.is_picture for name in named_by(block)}
    here = {path.name for path in (ROOT / "docs").iterdir() if path.suffix in PICTURES}
    assert here - drawn == {"data-flow.svg"}


def named_by(block: figures.Block) -> set[str]:
    """The pictures that a command writes."""
    if "concept_figures" in block.command:
        return set(concept_figures.FIGURES)
    if "coordgen papers" in block.command:
        return {picture_name(paper) for paper in PAPERS}
    if "page_shots" in block.command:
        themes = ("light", "dark")
        return {f"page-{size}-{theme}.webp" for size in ("wide", "narrow") for theme in themes}
    return {Path(word).name for word in block.command.split() if word.endswith(".svg")}


def test_what_progress_left_on_a_terminal_is_not_in_its_picture():
    bars = "\x1b[?25l\x1b[2Ktiming 10%\x1b[2Ktiming 90%\n\x1b[?25h\x1b[1A\x1b[2K"
    said = "\x1b[32mautomaton\x1b[0m 40%\n"
    assert terminal_picture.without_progress(bars + said) == said
    assert terminal_picture.without_progress(said) == said
    picture = terminal_picture.drawn("coordgen", said)
    assert "automaton" in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )
