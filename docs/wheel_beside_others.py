"""What an installation takes, beside others: `python docs/wheel_beside_others.py PACKAGE ..`.

In: names of packages on the index that pip uses. Out: a table of this wheel and of those: the
package's own file, all files that pip fetches for it, what they take when they are installed, how
many packages that is, and how long the first `import` takes in a new process (of `Model` here, as
`import coordgen_rs` alone loads next to nothing). Each is installed into a clean environment. A
package that has no wheel for this machine is not built: only the sizes of its files are told.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

from coordgen_rs.lab.tables import show_table

ROOT = Path(__file__).resolve().parents[1]
IMPORTS = {
    "coordgen-rs": "from coordgen_rs import Model",
    "llama-cpp-python": "from llama_cpp import Llama",
}
"""What is imported of a package, unless it is a module of the package's name."""

_REPEATS = 9
_OF_ITSELF = re.compile(r"import time:\s*(\d+) \|", re.MULTILINE)


class Installation(NamedTuple):
    """What an installation takes.

    Attributes:
        name: The package.
        own_bytes: Its wheel, or its sources where there is no wheel.
        fetched_bytes: That and all that pip fetches with it.
        num_packages: That are installed.
        installed_bytes: Of all of them; None where it has no wheel.
        import_ms: The quickest of some runs; None where it has no wheel.
    """

    name: str
    own_bytes: int
    fetched_bytes: int
    num_packages: int
    installed_bytes: int | None
    import_ms: float | None


def main() -> int:
    """Print the table; 1 where pip cannot fetch or install a package, which is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="ours; default: built now")
    options = parser.parse_args()
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel.resolve() if options.wheel else built(Path(folder) / "wheel")
        for package in [str(wheel), *options.packages]:
            try:
                row = measured(package, Path(folder) / str(len(rows)))
            except subprocess.CalledProcessError as error:
                print(f"{package}: {error.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                failed = True
                continue
            rows.append(row)
            print(f"{row.name} ..", file=sys.stderr)
    columns = (
        "package",
        "its own file, MB",
        "all files, MB",
        "packages",
        "installed, MB",
        "import, ms",
    )
    show_table("an installation without extras", columns, [cells(row) for row in rows])
    return int(failed)


def built(folder: Path) -> Path:
    """Our wheel, built into a folder."""
    build = [sys.executable, "-m", "maturin", "build", "--release", "--quiet", "--out", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    return next(folder.glob("*.whl"))


def measured(package: str, folder: Path) -> Installation:
    """What an installation of a package takes.

    Args:
        package: Its name, or the path of its wheel.
        folder: For its files and its environment; made.

    Raises:
        subprocess.CalledProcessError: pip fails.
    """
    files, environment = folder / "files", folder / "environment"
    files.mkdir(parents=True)
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    site = next((environment / "lib").glob("python*/site-packages"))
    _pip(python, "download", "--dest", str(files), package)
    name = Path(package).name.split("-")[0].replace("_", "-") if "/" in package else package
    own = next(path for path in files.iterdir() if _is_of(path, name))
    fetched = [path.stat().st_size for path in files.iterdir()]
    sizes = own.stat().st_size, sum(fetched), len(fetched)
    if any(path.suffix != ".whl" for path in files.iterdir()):
        return Installation(name, *sizes, None, None)
    before = _num_bytes(site)
    _pip(python, "install", "--no-index", "--find-links", str(files), package)
    imported = IMPORTS.get(name, f"import {name.replace('-', '_')}")
    return Installation(name, *sizes, _num_bytes(site) - before, _import_ms(python, imported))


def _is_of(path: Path, name: str) -> bool:
    return path.name.lower().replace("_", "-").startswith(f"{name}-")


def _pip(python: Path, *words: str) -> None:
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _import_ms(python: Path, imported: str) -> float:
    """Milliseconds of all modules that a first import loads, without those of Python's start."""

    def told(statement: str) -> float:
        command = [python, "-X", "importtime", "-c", statement]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return sum(map(int, _OF_ITSELF.findall(done.stderr))) / 1000

    told(imported)  # compiles the modules
    return min(told(imported) for _ in range(_REPEATS)) - min(told("pass") for _ in range(_REPEATS))


def cells(row: Installation) -> list[str]:
    """A line of the table."""
    return [
        row.name,
        f"{row.own_bytes / 1e6:.1f}",
        f"{row.fetched_bytes / 1e6:.1f}",
        str(row.num_packages),
        "-" if row.installed_bytes is None else f"{row.installed_bytes / 1e6:.0f}",
        "-" if row.import_ms is None else f"{row.import_ms:.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
