"""The options that say where prefixes of requests are kept on disk."""

from coordgen_rs.cli.options import option
from coordgen_rs.opening.options import OPENING

OPTIONS = (
    option.of(OPENING, "prefix_store"),
    option.of(OPENING, "prefix_store_size", parse=option.parse_size),
)
"""For commands that answer."""

STORE = option.of(OPENING, "prefix_store", required=True).help(
    "the directory that was given to serve, or another"
)
"""For commands that look at a store."""
