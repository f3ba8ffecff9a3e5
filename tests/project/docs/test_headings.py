"""What a merge of two edits leaves in a document: headings within lists, lines that are twice."""

import re
from collections import Counter

import pytest

from checkpoints import ROOT
from documents import DOCUMENTS

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_headings_stand_between_empty_lines(path):
    lines = ["", *_CODE.sub("", path.read_text("utf-8")).splitlines(), ""]
    heads = [number for number, line in enumerate(lines) if re.match("#+ ", line)]
    assert [lines[number] for number in heads if lines[number - 1] or lines[number + 1]] == []


def test_the_list_of_changes_has_each_line_once():
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert [line for line, times in Counter(lines).items() if line and times > 1] == []
