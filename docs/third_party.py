"""Writes THIRD-PARTY.txt: the licence notices of what others made that is in the wheel.

In: what cargo resolves, the licence files in the crates' sources, and a note on data. Out: one
text, which the wheel carries. `python docs/third_party.py --check` (in `make lint`) fails where it
is out of date.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTICES = ROOT / "THIRD-PARTY.txt"

_TREE = "cargo tree --locked -e normal,no-proc-macro --features python --prefix none --format {p}"
_FIRST_CHOICE = ("LICENSE-MIT", "LICENSE-BSD", "LICENSE", "LICENSE.txt", "LICENSE.md")
_HEAD = """\
Licence notices of the Rust crates that are compiled into coordgen_rs. Crates that may be used
under either the MIT or the Apache-2.0 licence are used under the MIT licence. The Rust standard
library is used under the same two licences: copyright the Rust Project contributors.

The list of common words and phrases (generation/drafting/common_phrases.json) was made in part
from the word counts of wordsegment 1.3.1, copyright Grant Jenks, under the Apache License 2.0,
whose text stands in LICENSE. models/common_phrases/ in the sources tells what was taken of them.

The server's page has marked 4.2.3 (python/coordgen_rs/server/page_parts/vendor/marked.min.js),
which reads Markdown: copyright 2018+ MarkedJS, 2011-2022 Christopher Jeffrey, under the MIT
licence, whose text stands below, behind the first crates that have it.

Written by docs/third_party.py.
"""


def main() -> int:
    """Write the notices, or check that they are up to date."""
    text = notices()
    if "--check" not in sys.argv:
        NOTICES.write_text(text, "utf-8")
    elif NOTICES.read_text("utf-8") != text:
        print("THIRD-PARTY.txt is out of date: python docs/third_party.py", file=sys.stderr)
        return 1
    return 0


def notices() -> str:
    """The text, crate by crate in the order of their names."""
    parts = [_HEAD]
    for package in _packages():
        title = f"{package['name']} {package['version']} ({package['license']})"
        notice = _notice(Path(package["manifest_path"]).parent)
        parts.append(f"{'=' * 80}\n{title}\n{'=' * 80}\n\n{notice}\n")
    return "\n".join(parts)


def _packages() -> list[dict[str, str]]:
    """The crates that are linked; neither those that only build, nor our own."""
    metadata = json.loads(_output("cargo metadata --locked --format-version 1 --features python"))
    linked = {tuple(line.split()[:2]) for line in _output(_TREE).splitlines() if line}
    found = [
        package
        for package in metadata["packages"]
        if (package["name"], f"v{package['version']}") in linked and package["source"] is not None
    ]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def _notice(crate: Path) -> str:
    for name in _FIRST_CHOICE:
        if (crate / name).is_file():
            return (crate / name).read_text("utf-8").strip()
    raise SystemExit(f"{crate.name} has no licence file among {', '.join(_FIRST_CHOICE)}")


def _output(command: str) -> str:
    return subprocess.run(
        command.split(), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
