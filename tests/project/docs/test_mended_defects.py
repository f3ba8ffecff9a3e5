"""The page of mended defects names tests that exist."""

import re
from collections import Counter

import pytest

from checkpoints import ROOT

PAGE = (ROOT / "docs" / "mended-defects.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`((?:src|tests)/[^`]+)`", PAGE))))
def test_a_test_that_is_named_exists(named):
    file, _, name = named.partition("::")
    assert not name or re.search(rf"\b(def|fn) {name}\(", (ROOT / file).read_text()), named
    assert (ROOT / file).is_file()


def test_no_number_is_there_twice_and_none_of_the_first_is_lost():
    numbers = [int(number) for number in re.findall(r"^\| D(\d+) \|", PAGE, re.MULTILINE)]
    assert [number for number, times in Counter(numbers).items() if times > 1] == []
    assert set(range(1, 35)) <= set(numbers)
