"""The options that say which earlier requests are drafted from."""

from coordgen_rs.cli.options import option
from coordgen_rs.cli.options.option import Option
from coordgen_rs.history.store import DEFAULT_MAX_TOKENS
from coordgen_rs.opening.options import OPENING


def max_tokens(shown: str) -> Option:
    """The option that caps a history, under a name."""
    return option.count(shown).help(
        "evict the oldest requests of all namespaces beyond this; the history keeps the number; "
        f"at first {DEFAULT_MAX_TOKENS}"
    )


OPTIONS = (
    option.of(OPENING, "history"),
    option.of(OPENING, "namespace"),
    max_tokens("--history-max-tokens N"),
    option.of(OPENING, "fleet_history"),
    option.of(OPENING, "fleet_namespace"),
)
