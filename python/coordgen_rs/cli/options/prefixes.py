"""The options that say where prefixes of requests are kept on disk."""

from coordgen_rs.cli.options import option

_STORE = "--prefix-store DIR"

OPTIONS = (
    option.path(_STORE).help(
        "keep tokens of prompts and answers, and what was computed of them, in this directory, "
        "unencrypted, so that they are not computed again after a restart: what users say is then "
        "on disk; created if missing; default: nothing is kept there"
    ),
    option.size("--prefix-store-size SIZE").help(
        "most of the disk for all in --prefix-store, the least recently used goes first; default 4G"
    ),
)
"""For commands that answer."""

STORE = option.path(_STORE, required=True).help("the directory that was given to serve, or another")
"""For commands that look at a store."""
