"""Which files of recorded answers there are, and how they are read: `sets.toml`, or another one.

In: a file of sets, a folder of records, and one of tokenizers. Out: by name, a `Source` as
`coordgen replay --table` has it. A set whose file or tokenizer is absent is named and left out.
"""

import argparse
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from coordgen_rs.cli import option
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.lab.replay.records import TEMPLATES, Source, tokenized

KNOWN = Path(__file__).with_name("sets.toml")
_HALVES = {"0": 0, "1": 1, "all": None}


class SetsError(CoordgenError):
    """A file of sets cannot be used; the message names it and the set."""


@dataclass(frozen=True)
class RecordSet:
    """A line of the file; see there."""

    name: str
    file: str
    tokenizer: str
    template: str
    output_of: str | None = None

    def source(self, data, tokenizers, *, limit=None, half=None):
        """Its `Source` among the records of `data`, or None, said on stderr, if it is absent."""
        for path in (data / self.file, tokenizers / self.tokenizer / "tokenizer.json"):
            if not path.is_file():
                print(f"skipped {self.name}: there is no {path}", file=sys.stderr)
                return None
        tokenizer = (tokenizers / self.tokenizer).absolute()
        path = (data / self.file).absolute()
        return Source(path, tokenizer, self.template, self.output_of, limit, half)


def read_sets(path=KNOWN):
    """The `RecordSet`s of a file, in its order.

    Raises:
        SetsError: It is no such file.
    """
    try:
        lines = tomllib.loads(path.read_text("utf-8")).get("sets")
    except OSError as error:
        raise SetsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SetsError(f"{path} is not TOML: {error}") from error
    if not isinstance(lines, dict) or not lines:
        raise SetsError(f"{path} lists no sets: it has no table [sets]")
    return [_read_set(f"{path}: {name}", name, line) for name, line in lines.items()]


def _read_set(where, name, line):
    known = [one.name for one in fields(RecordSet)[1:]]
    if not isinstance(line, dict) or not all(isinstance(value, str) for value in line.values()):
        raise SetsError(f"{where} must be a table of words: {', '.join(known)}")
    if unknown := line.keys() - set(known):
        raise SetsError(f"{where} has an unknown key {sorted(unknown)[0]!r}; there are {known}")
    if missing := [key for key in known[:-1] if key not in line]:
        raise SetsError(f"{where} has no {missing[0]!r}")
    if line["template"] not in TEMPLATES:
        templates = ", ".join(TEMPLATES)
        raise SetsError(f"{where} has the template {line['template']!r}; there are {templates}")
    return RecordSet(name, **line)


def add_options(parser: argparse.ArgumentParser):
    """Declare the options that choose records."""
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="files of records")
    parser.add_argument(
        "--tokenizers", type=Path, metavar="DIR", help="default: tokenizers in DATA, or beside it"
    )
    parser.add_argument(
        "--sets", type=Path, default=KNOWN, metavar="FILE", help="default: sets.toml"
    )
    parser.add_argument(
        "--half",
        choices=_HALVES,
        default="1",
        help="every other record, from the first (0) or the second on; default: 1, on which "
        "nothing was tuned",
    )
    option.count("--limit N").help("only the first N lines of a file").add_to(parser)


def chosen_sources(options):
    """The sources that the options choose, by the names of their sets.

    Raises:
        OptionError: No set is there, or the records of one cannot be read.
        SetsError: The file of sets cannot be used.
    """
    if not options.data.is_dir():
        raise OptionError(f"--data: there is no folder {options.data}")
    beside = options.data / "tokenizers", options.data.absolute().parent / "tokenizers"
    tokenizers = options.tokenizers or next(filter(Path.is_dir, beside), beside[0])
    how = {"limit": options.limit, "half": _HALVES[options.half]}
    found = {
        one.name: one.source(options.data, tokenizers, **how) for one in read_sets(options.sets)
    }
    sources = {name: source for name, source in found.items() if source is not None}
    if not sources:
        raise OptionError(
            f"nothing to replay: no set of {options.sets} has its records and tokenizer"
        )
    for name, source in sources.items():  # once, before each cell would fail
        try:
            tokenized(source)
        except (CoordgenError, OSError) as error:
            raise OptionError(f"{name}: {error}") from error
    return sources
