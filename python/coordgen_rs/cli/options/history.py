"""The options that say which earlier requests are drafted from."""

from coordgen_rs.cli.options import option
from coordgen_rs.cli.options.option import Option
from coordgen_rs.errors.arguments import DEFAULT_NAMESPACE
from coordgen_rs.history.store import DEFAULT_MAX_TOKENS


def max_tokens(shown: str) -> Option:
    """The option that caps a history, under a name."""
    return option.count(shown).help(
        "evict the oldest requests of all namespaces beyond this; the history keeps the number; "
        f"at first {DEFAULT_MAX_TOKENS}"
    )


OPTIONS = (
    option.path("--history DIR").help(
        "also draft from earlier requests kept here, and keep this one; created if missing"
    ),
    option.text("--namespace NAME", may_be_empty=False).help(
        "e.g. task and user; requests of other namespaces are not drafted from; "
        f"default: {DEFAULT_NAMESPACE}"
    ),
    max_tokens("--history-max-tokens N"),
    option.path("--fleet-history DIR").help(
        "also draft from a directory written by `coordgen history build`; only read"
    ),
    option.text("--fleet-namespace NAME", may_be_empty=False).help(
        "the namespace of --fleet-history; default: that of --namespace"
    ),
)
