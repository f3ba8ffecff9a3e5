"""JSON documents in which one value is replaced, by a given one or by any small one."""

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)


def table_rows(path: Path) -> list[list[Any]]:
    """The rows of a table in JSON, a line each."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def changed(document: Any, place: str, *value: Any) -> Any:
    """The document with another value at a place such as `caches 3 written_by`, or with none."""
    *parents, last = place.split(" ")
    inside = document
    for key in parents:
        inside = inside[int(key) if isinstance(inside, list) else key]
    where = int(last) if isinstance(inside, list) else last
    if value:
        inside[where] = value[0]
    else:
        del inside[where]
    return document


def altered(data: Any, document: Any) -> Any:
    """The document with any value at any place, as hypothesis' `data` draws them."""
    *parents, last = data.draw(st.sampled_from([path for path in _paths_into(document) if path]))
    inside = document
    for key in parents:
        inside = inside[key]
    inside[last] = data.draw(JSON_VALUES)
    return document


def _paths_into(document: Any) -> list[list[Any]]:
    """The path to every value."""
    if not isinstance(document, dict | list):
        return [[]]
    items = document.items() if isinstance(document, dict) else enumerate(document)
    return [[]] + [[key, *path] for key, value in items for path in _paths_into(value)]
