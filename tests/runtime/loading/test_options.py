"""The record of how a bundle is opened: what is wrong with it is said before anything is opened."""

import pytest

from coordgen_rs.errors import OptionError
from coordgen_rs.loading.options import open_options


@pytest.mark.parametrize("name", ["threads", "width", "context"])
@pytest.mark.parametrize("value", ["4", 2.5, True, 0, -1])
def test_numbers_are_checked_where_the_record_is_made(name, value):
    with pytest.raises(OptionError, match=name):
        open_options("open", {name: value})


def test_what_is_not_asked_for_is_none():
    options = open_options("open", {"threads": 3, "context": 8})
    assert (options["threads"], options["width"], options["context"]) == (3, None, 8)
