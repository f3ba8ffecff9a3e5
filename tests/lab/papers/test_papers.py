"""`coordgen papers`: each item of the three papers has rows, whose published figures are theirs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError

from checkpoints import ROOT
from coordgen_rs._core import DynamicTree, draft_method
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.drafting import ADDS
from coordgen_rs.lab.papers import command
from coordgen_rs.lab.papers.command import MEASUREMENTS, schema
from coordgen_rs.lab.papers.coordgen import distance, kind_of_rejection, paths_of
from coordgen_rs.lab.papers.critique import remarks
from coordgen_rs.lab.papers.diaa import FIGURE_7, tree_of
from coordgen_rs.lab.papers.edgellm import ablation, rouge_l, thresholds
from coordgen_rs.lab.papers.items import (
    NOT_MEASURED,
    ONLY_FULL,
    PAPERS,
    Found,
    Measurement,
    Wanted,
    items,
    rows_of,
)
from coordgen_rs.lab.papers.page import CRITIQUE, draw, picture_name, write_page
from coordgen_rs.lab.papers.phone import STRATEGIES
from prompts import PROMPTS

TEXTS = Path(ROOT).parent / "shared" / "papers"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")

NUMBERED = {
    "CoordGen": {"Eq.": 3, "Table": 4, "Figure": 13},
    "EdgeLLM": {"Eq.": 3, "Table": 5, "Figure": 22},
    "DIAA": {"Eq.": 2, "Table": 4, "Figure": 10},
}
"""How many of each a paper has."""
ROMAN = ("I", "II", "III", "IV", "V")


@pytest.mark.parametrize("paper", PAPERS)
def test_each_equation_table_and_figure_of_a_paper_is_an_item(paper):
    for kind, number in NUMBERED[paper].items():
        is_roman = (paper, kind) == ("EdgeLLM", "Table")
        for one in ROMAN[:number] if is_roman else range(1, number + 1):
            assert f"{paper} {kind} {one}" in items()


@pytest.mark.parametrize("name", items())
def test_an_item_is_measured_or_says_why_not(name):
    item = items()[name]
    assert item.published
    assert set(item.derived) <= item.published.keys()
    measured = any(name in one.items for one in MEASUREMENTS)
    assert measured or item.why
    assert {one for of in MEASUREMENTS for one in of.items} <= items().keys()


def papers_text(paper: str) -> str:
    path = TEXTS / f"{paper.lower()}.txt"
    if not path.exists():
        pytest.skip("the papers are not here")
    return re.split(r"\n(?:References|REFERENCES)\n", path.read_text("utf-8"))[0]


def figures_in(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


@pytest.mark.parametrize("name", [name for name, item in items().items() if item.published])
def test_published_figures_are_those_of_the_text(name):
    paper, item = name.split()[0], items()[name]
    text = papers_text(paper)
    if paper == "EdgeLLM":
        text = re.sub(r"-\n", "-", text)
    known = figures_in(text)
    for of, figure in item.published.items():
        assert figure is None or of in item.derived or figure in known, of


@pytest.mark.parametrize("name", [name for name, item in items().items() if item.grid[0]])
def test_a_table_has_its_figures_in_the_order_of_the_text(name):
    known = figures_in(papers_text(name.split()[0]))
    wanted = [figure for figure in items()[name].published.values() if figure is not None]
    room = 6 * len(wanted) + 40  # names of models and gains stand between them
    starts = [at for at, figure in enumerate(known) if figure == wanted[0]]
    assert any(is_within(wanted, known[at : at + room]) for at in starts)


def is_within(wanted: list[float], text: list[float]) -> bool:
    """Whether figures stand in a text in their order, others between them."""
    left = iter(text)
    return all(any(figure == one for one in left) for figure in wanted)


def test_figures_that_were_changed_are_found():
    known = [1.0, 2.5, 3.0, 2.0]
    assert is_within([1.0, 3.0, 2.0], known)
    assert not is_within([1.0, 2.0, 3.0], known)


def test_rows_stand_beside_the_published_ones_and_behind_them():
    name = "CoordGen Table 2"
    rows = rows_of(name, [Found(name, "missing, %", 12.5), Found(name, "unclear, %", 1.0)])
    assert [(row.name, row.published, row.ours, row.how) for row in rows] == [
        ("missing, %", 15.4, 12.5, "measured"),
        ("synonym, %", 23.1, None, "not possible here"),
        ("redundant, %", 61.5, None, "not possible here"),
        ("unclear, %", None, 1.0, "measured"),
    ]
    assert [row.why for row in rows] == ["", NOT_MEASURED, NOT_MEASURED, ""]
    assert {row.why for row in rows_of(name, [], "no time")} == {"no time"}
    (beside, *_) = rows_of("DIAA Table 2", [])[6:]
    assert beside.name == "SWIFT, 3B"
    assert "skips sub-layers" in beside.why


def test_a_tree_has_a_draft_to_each_leaf():
    tokens, parents = np.array([9, 1, 2, 3, 4], np.uint32), np.array([0, 0, 1, 0, 2], np.uint32)
    assert paths_of(tokens, parents) == [[3], [1, 2, 4]]
    assert paths_of(tokens[:1], parents[:1]) == []


@pytest.fixture
def built(bundle_of, tmp_path, monkeypatch):
    """What `make papers` lays out."""
    folder = tmp_path / "build" / "papers"
    folder.mkdir(parents=True)
    (folder / "embedded").symlink_to(bundle_of("embedded", "fp32"))
    (folder / "draft").symlink_to(bundle_of("embedded-draft", "fp32"))
    lines = (json.dumps(prompt._asdict()) for prompt in PROMPTS)
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


ONLY = (
    "DIAA Figure 7",
    "CoordGen Figure 8",
    "CoordGen Figure 8, live",
    "CoordGen Figure 4",
    "EdgeLLM Table I",
)


def test_a_run_is_written_as_its_schema_says(built, coordgen):
    only = [part for name in ONLY for part in ("--only", name)]
    made = ("--json", "papers.json", "--page", "page.md", "--table", "kept.json")
    said = coordgen("papers", *only, *made)
    document = json.loads((built / "papers.json").read_text())
    Draft202012Validator.check_schema(schema())
    Draft202012Validator(schema()).validate(document)
    assert list(dict.fromkeys(row["item"] for row in document["rows"])) == [
        *(
            "CoordGen Figure 4",
            "CoordGen Figure 8",
            "CoordGen Figure 8, live",
            "EdgeLLM Table I",
            "DIAA Figure 7",
        )
    ]
    by_item = {(row["item"], row["name"]): row["ours"] for row in document["rows"]}
    live = [by_item["CoordGen Figure 8, live", name] for name in STRATEGIES]
    assert live == [24, 19, 12, 12]
    planned = {row["name"]: row for row in document["rows"] if row["item"] == "CoordGen Figure 8"}
    assert [row["ours"] for row in planned.values()] == [24, 19, 12, 12]
    assert planned["sync"]["how"] == "simulated"
    assert {
        "paper": "CoordGen",
        "item": "CoordGen Figure 4",
        "name": "drawing",
        "why": "a drawing",
    } in (document["why"])
    assert "EdgeLLM Table I, EdgeLLM Table IV, EdgeLLM Figure 9: " in said.err
    page = (built / "page.md").read_text()
    assert page.count("Measured at ") == 3
    assert re.search(r"DIAA Figure 7 .*\| C\(T\) +\| +6 \| +6 \| +measured", page)
    for paper in ("CoordGen", "DIAA"):
        assert (built / picture_name(paper)).read_text().startswith("<?xml")
    (built / "page.md").unlink()
    again = coordgen("papers", *only, *made)
    assert again.out == said.out


@pytest.mark.parametrize(
    ("measure", "whole"),
    [(ablation, "EdgeLLM Figure 22"), (thresholds, "EdgeLLM Figure 12")],
)
def test_each_figure_of_edgellms_parts_is_found_by_its_published_name(built, measure, whole):
    folder = built / "build" / "papers"
    paths = (folder / "embedded", folder / "draft", folder / "prompts.jsonl")
    found = [*measure(Wanted(*paths, is_full=False, threads=None))]
    assert items()[whole].published.keys() <= {one.name for one in found if one.item == whole}
    assert {one.item for one in found} <= items().keys()
    assert all(one.ours is not None for one in found)
    rates = {one.name: one.ours for one in found if one.name.endswith("tokens/step")}
    for name, (before, *_) in ADDS.items():  # provisional generation changes no draft
        if draft_method(name).in_gaps and rates:
            assert rates[f"{name}, tokens/step"] == rates[f"{before}, tokens/step"]


def test_rows_that_lack_what_the_schema_wants_are_refused():
    row = {"paper": "DIAA", "item": "DIAA Table 1", "name": "x", "published": None}
    rows = Draft202012Validator(schema()["properties"]["rows"])
    rows.validate([row | {"ours": 1.0, "how": "measured"}])
    for wrong in (
        {"ours": 1.0, "how": "not possible here"},
        {"ours": None, "how": "measured"},
        {"ours": 1.0, "how": "guessed"},
        {"ours": 1.0},
    ):
        with pytest.raises(ValidationError):
            rows.validate([row | wrong])


def test_an_unknown_item_and_a_missing_model_are_told_in_a_line(refused, tmp_path, monkeypatch):
    assert "'DIAA Table' is no item" in refused("papers", "--only", "DIAA Table")
    monkeypatch.chdir(tmp_path)
    assert "give MODEL, or run `make papers`" in refused("papers")
    assert "needs MODEL, too" in refused("papers", "--data", "x")
    assert "no-model" in refused("papers", "no-model", "--only", "DIAA Figure 7")


PLACE = "<!-- figures: papers-{} -->\nold\n"


@pytest.mark.parametrize(
    ("text", "only", "told"),
    [
        ("mine\n", "DIAA", "has no place for tables of DIAA"),
        (PLACE.format("edgellm") + "<!-- /figures -->\n", "DIAA", "no place for tables of DIAA"),
        (
            PLACE.format("diaa") + "mine\n" + PLACE.format("edgellm") + "<!-- /figures -->\n",
            *("DIAA", "has no place for tables of DIAA"),
        ),
        (PLACE.format("diaa") + "<!-- /figures -->\n", "DIAA Figure 7", "name a new file"),
        (PLACE.format("diaa") + "\udcff<!-- /figures -->\n", "DIAA", "no place for tables"),
    ],
)
def test_a_page_that_would_lose_something_is_refused_and_stays(built, refused, text, only, told):
    page = built / "mine.md"
    page.write_bytes(text.encode("utf-8", "surrogateescape"))
    before = page.read_bytes()
    assert told in refused("papers", "--only", only, "--page", "mine.md")
    assert page.read_bytes() == before


def test_a_page_stays_as_it_is_where_a_measurement_failed(built, coordgen, monkeypatch):
    def fails(wanted):
        raise OptionError("no disk")

    page = built / "mine.md"
    page.write_text(PLACE.format("diaa") + "<!-- /figures -->\n")
    failing = Measurement(("DIAA Figure 7",), fails, needs=())
    monkeypatch.setattr(command, "MEASUREMENTS", (failing,))
    said = coordgen("papers", "--only", "DIAA", "--page", "mine.md", code=1)
    assert "mine.md stays as it is" in said.err
    assert "old" in page.read_text()


def test_two_options_that_name_one_file_are_refused(built, refused):
    told = refused("papers", "--only", "DIAA Figure 7", "--json", "x.json", "--table", "x.json")
    assert "--table x.json: json is the same file" in told


def test_a_table_with_other_rows_is_told(built, coordgen):
    only = ("--only", "DIAA Figure 7", "--table", "kept.json")
    coordgen("papers", *only)
    kept = built / "kept.json"
    kept.write_text(kept.read_text().replace('"ours"', '"their"'))
    assert "kept.json has rows that are none of `papers`" in coordgen("papers", *only, code=1).err


def test_what_a_measurement_lacks_is_its_reason(tmp_path):
    wanted = Wanted(tmp_path, None, None, is_full=False, threads=None)
    assert Measurement((), lambda of: iter(()), only_full=True).lack(wanted) == ONLY_FULL
    assert "--data" in Measurement((), lambda of: iter(())).lack(wanted)
    assert Measurement((), lambda of: iter(()), needs=()).lack(wanted) == ""
    assert wanted.lack("no-method") == "there is no method no-method"
    assert "--draft-model" in wanted.lack("chain")
    assert wanted.lack("plain") == wanted.lack("sam") == ""


@pytest.mark.parametrize(
    ("model", "beside"),
    [("coder-1.5b", "Q1.5B"), ("smollm2", "L1B"), ("qwen-7B-int4", "Q7B"), ("q-7bit", "L1B")],
)
def test_a_model_stands_beside_the_one_of_its_size_or_the_smallest(model, beside):
    wanted = Wanted(Path(model), None, None, is_full=False, threads=None)
    assert wanted.beside(("Q1.5B", "Q7B", "L1B")) == beside


def test_a_page_keeps_what_stands_around_its_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "above\n<!-- figures: papers-diaa; needs: x -->\nold\n<!-- /figures -->\nbelow\n"
    )
    write_page(page, rows_of("DIAA Figure 7", []), "0123456, on this, 2 cores", "coordgen papers")
    text = page.read_text()
    assert text.startswith("above\n<!-- figures: papers-diaa; needs: x -->\n\nDIAA\n\n| item")
    assert text.endswith("\n\nMeasured at 0123456, on this, 2 cores.\n\n<!-- /figures -->\nbelow\n")
    assert "old" not in text


def test_a_new_page_has_a_part_for_each_paper_and_for_their_own_numbers(tmp_path):
    page, rows = tmp_path / "page.md", rows_of("DIAA Figure 7", [])
    write_page(page, rows, "0123456, on this, 2 cores", "coordgen papers", remarks())
    before = page.read_text()
    assert [before.count(f"## {title}\n") for title in (*PAPERS, CRITIQUE)] == [1] * 4
    assert "| CoordGen | Table 3 " in before.partition(f"## {CRITIQUE}")[2]
    write_page(page, rows, "0123456, on this, 2 cores", "coordgen papers")
    assert page.read_text() == before


def test_a_picture_of_the_same_figures_is_the_same_file(tmp_path):
    name = "DIAA Figure 7"
    rows = rows_of(name, [Found(name, "C(T)", 6.0)])
    (first,) = draw(tmp_path / "page.md", rows)
    before = first.read_bytes()
    assert draw(tmp_path / "page.md", rows) == [tmp_path / "papers-diaa.svg"]
    assert first.read_bytes() == before


@pytest.mark.parametrize(
    ("drafted", "said", "kind"),
    [
        ([1, 2, 3], [1, 2, 3, 4], None),
        ([1, 2, 3], [1, 2], None),
        ([1, 2, 3], [1, 9, 2, 3], "missing"),
        ([1, 8, 2, 3], [1, 9, 2, 3], "synonym"),
        ([1, 2, 3], [1, 9, 9, 9], "redundant"),
        ([1, 2, 3], [1, 9, 9, 9, 9, 9, 2, 3], "redundant"),
    ],
)
def test_a_rejection_is_of_the_case_of_table_2(drafted, said, kind):
    assert kind_of_rejection(drafted, said) == kind


def naive_distance(answer: list[int], text: list[int]) -> float:
    """Edits to the nearest of all stretches, each by the whole table."""
    best = len(answer)
    for start in range(len(text)):
        table = [[*range(len(text) - start + 1)]]
        for count, token in enumerate(answer, 1):
            line = [count]
            for at, other in enumerate(text[start:], 1):
                swap = table[-1][at - 1] + (token != other)
                line.append(min(swap, table[-1][at] + 1, line[-1] + 1))
            table.append(line)
        best = min(best, *table[-1])
    return best / len(answer)


def test_the_distance_is_that_of_the_nearest_stretch():
    rng = np.random.default_rng(0)
    for _ in range(50):
        answer, text = (rng.integers(3, size=rng.integers(1, 9)) for _ in range(2))
        assert distance(answer, text.astype(np.uint32)) == naive_distance([*answer], [*text])


def test_rouge_l_is_of_the_longest_common_subsequence():
    assert rouge_l([1, 2, 3], [1, 2, 3]) == 1
    assert rouge_l([1, 9, 2, 9, 3], [1, 2, 3]) == 6 / 8
    assert rouge_l([1], [2]) == 0


def test_the_tree_of_figure_7_has_a_cost_of_6_and_no_branch_below_the_threshold():
    depths, products = tree_of(FIGURE_7, DynamicTree(6))
    assert sorted(depths.values()) == [1, 1, 2, 2]
    assert sorted(products.values()) == pytest.approx([0.1, 0.15, 0.3, 0.3, 0.5])
    assert sum(tree_of(FIGURE_7, DynamicTree(7))[0].values()) == 7


BORNE = re.compile(r"`([\w./-]+\.(?:py|rs))::(\w+)`")
PAGE = ROOT / "docs" / "papers.md"


def test_the_page_has_a_line_for_each_item_and_what_bears_it_is_there():
    lines = PAGE.read_text("utf-8").partition("## Row by row")[2].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert [cell[0] for cell in cells[1:]] == list(items())
    borne = [match for line in lines for match in BORNE.findall(line)]
    assert len(borne) > 50
    for path, name in borne:
        is_defined = rf"\b(?:fn|struct|enum|trait|def|class) {name}\b"
        assert re.search(is_defined, (ROOT / path).read_text("utf-8")), (path, name)
