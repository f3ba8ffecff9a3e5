"""The option that says how much a history keeps."""

from coordgen_rs.cli.options import option
from coordgen_rs.cli.options.option import Option
from coordgen_rs.store.history.store import DEFAULT_MAX_TOKENS


def max_tokens(shown: str) -> Option:
    """The option that caps a history, under a name."""
    return option.count(shown).help(
        "evict the oldest requests of all namespaces beyond this; the history keeps the number; "
        f"at first {DEFAULT_MAX_TOKENS}"
    )
