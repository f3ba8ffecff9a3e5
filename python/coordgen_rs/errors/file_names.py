"""Names of files: which of those from outside may name a file beside it, and those of GGUF's parts.

In: a name that a manifest, an index or a directory holds. Out: whether it is a plain file name on
every system, so that nothing outside the directory is opened, on Windows neither; and which part of
how many it is, as llama.cpp's gguf-split names them. Whether files are parts is for their headers
to say.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

_LONGEST = 255
"""Bytes that Linux file systems take."""

_NOT_PLAIN = re.compile(r'[/\\:*?"<>|]')
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)
_PART = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


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


@dataclass(frozen=True)
class PartName:
    """The name of a part, such as `model-00002-of-00003.gguf`.

    Attributes:
        stem: What the names of all parts begin with.
        number: Which part it is, 1 to `count`.
        count: How many there are.
    """

    stem: str
    number: int
    count: int

    @classmethod
    def of(cls, name: str) -> "PartName | None":
        """What a file's name says; None where it is not the name of a part."""
        match = _PART.fullmatch(name)
        if match is None:
            return None
        found = cls(match["stem"], int(match["number"]), int(match["count"]))
        return found if 1 <= found.number <= found.count else None

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05}-of-{self.count:05}.gguf"

    def part(self, number: int) -> "PartName":
        """The name of another part, 1 to `count`."""
        return replace(self, number=number)

    def others(self) -> list["PartName"]:
        """The names of all parts behind the first."""
        return [self.part(number) for number in range(2, self.count + 1)]


def is_further_part(name: str) -> bool:
    """Whether a file's name is that of a part behind the first, which is no model by itself."""
    part = PartName.of(name)
    return part is not None and part.number > 1


def with_parts(path: Path) -> list[Path]:
    """A file, and where it is the first of parts by its name, the others that belong beside it."""
    part = PartName.of(path.name)
    others = part.others() if part is not None and part.number == 1 else []
    return [path, *(path.with_name(str(other)) for other in others)]
