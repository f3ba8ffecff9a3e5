"""Sizes as people write them."""

import pytest

from coordgen_rs.cli.terminal.formatting import parse_bytes
from coordgen_rs.errors import OptionError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("800", 800), ("500M", 500_000_000), ("2g", 2 * 10**9), ("1.5 GiB", 3 * 2**29)],
)
def test_sizes_are_read_as_people_write_them(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", "1T", "1e9", "½G", "1,5G", "9" * 400])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(OptionError, match="is not a number of bytes"):
        parse_bytes(text)
