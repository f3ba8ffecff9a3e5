"""The tables of sources, methods and strategies in the documents say what the registry says."""

import re

import pytest

from checkpoints import ROOT
from coordgen_rs import _core

SOURCES_PAGE = "sources-and-methods.md"
STRATEGIES_PAGE = "switching-and-streaming.md"


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the table whose first column is called `head`, without backquotes."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    (found,) = re.findall(rf"^\| {head} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in found.splitlines()
    ]


@pytest.mark.parametrize(
    ("page", "head", "registry"),
    [
        (SOURCES_PAGE, "source", [[s.name, s.about, s.needs] for s in _core.draft_sources()]),
        (
            SOURCES_PAGE,
            "method",
            [[m.name, m.about, m.published or ""] for m in _core.draft_methods()],
        ),
        (STRATEGIES_PAGE, "strategy", [list(item) for item in _core.strategies().items()]),
    ],
    ids=["sources", "methods", "strategies"],
)
def test_a_table_of_the_documents_is_that_of_the_registry(page, head, registry):
    assert table(page, head) == registry
