"""Numbers of bytes as people write them: 800000000, 800M, 2G, 1.5GiB."""

import re

from coordgen_rs.errors import OptionError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmg]i?)?b?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` means.

    Raises:
        OptionError: It is not a number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{text!r} is not a number of bytes: write 800000000, 800M, 2G or 1.5GiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def show_bytes(num_bytes: int) -> str:
    """`num_bytes` for people, in megabytes."""
    return f"{num_bytes / 1e6:,.1f} MB"
