"""Warnings as a user reads them: one line each on stderr."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordgen_rs.cli.terminal.text import tell
from coordgen_rs.errors import HistoryWarning, LeftoverWarning, PrefixStoreWarning


@contextmanager
def warnings_told() -> Iterator[None]:
    """Print each warning as one line; those of what is kept on disk every time."""
    with warnings.catch_warnings():
        for category in (HistoryWarning, LeftoverWarning, PrefixStoreWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    tell(f"coordgen: warning: {message}")
