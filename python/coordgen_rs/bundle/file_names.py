"""Which names in a file from outside may name a file beside it.

In: a name that a manifest or an index holds. Out: whether it is a plain file name on every system,
so that nothing outside the directory is opened, on Windows neither.
"""

import re

_LONGEST = 255
"""Bytes that Linux file systems take."""

_NOT_PLAIN = re.compile(r'[/\\:*?"<>|]')
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)


def is_plain_name(name: str) -> bool:
    r"""Whether `name` is a file name without a directory, a drive or unprintable characters.

    `..`, `a/b`, `..\b`, `C:b` and the names of Windows's devices, such as `NUL`, are none.
    """
    return (
        name.isprintable()
        and not _NOT_PLAIN.search(name)
        and not _WINDOWS_DEVICE.match(name)
        and not name.endswith((".", " "))
        and 0 < len(name.encode("utf-8", "surrogatepass")) <= _LONGEST
    )
