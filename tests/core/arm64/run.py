"""Builds the wheel for arm64, and runs what is tested of it on emulated processors.

python tests/core/arm64/run.py wheel                  # build/arm64/wheels, and the system around it
python tests/core/arm64/run.py test BUNDLE [BUNDLE]   # crate, files, binding, logits of bundles
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import environment
from machine import BUILD, PROCESSORS, ROOT, SYSTEM, TARGET, WHEELS, emulated, python, run, say

_TARGET_VARIABLE = f"CARGO_TARGET_{TARGET.upper().replace('-', '_')}"
_DEBIANS_RUST = {
    "PATH": f"/usr/bin:{os.environ['PATH']}",
    "CARGO": "/usr/bin/cargo",
    "RUSTC": "/usr/bin/rustc",
    "CARGO_TARGET_DIR": str(BUILD / "target"),
    f"{_TARGET_VARIABLE}_LINKER": "aarch64-linux-gnu-gcc",
    f"CXX_{TARGET.replace('-', '_')}": "aarch64-linux-gnu-g++",
}
"""Rust's own installer may stand first in PATH, and has no standard library of arm64."""

_TESTS = (["tests/core"], ["tests/exact/test_lossless.py", "-k", "int8 and both_ways"])
"""Of the binding, and whether drafts change a token; run on the last processor."""

_CORPUS = ROOT / "fuzz" / "corpus"
_EXAMPLES = "16"
_ONE_THREAD = {"COORDGEN_THREADS": "1"}  # emulated threads that wait for work take a core each

_NOT_RUN = "Not run here: Python's other tests, QNN, the peers; and nothing ran on a real device."


def wheel() -> None:
    """The wheel, and the system in which it is installed."""
    environment.check()
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    run(
        *(sys.executable, "-m", "maturin", "build", "--quiet", "--release", "--target", TARGET),
        *("--compatibility", "manylinux_2_34", "--out", WHEELS),
        **_DEBIANS_RUST,
    )
    if not SYSTEM.is_dir():
        environment.system()
    environment.site()


def result(words: list[str], variables: Mapping[str, str], *, of_errors: bool = False) -> str:
    """The last line that a command prints, or that it writes to standard error.

    Raises:
        SystemExit: The command fails; its output is printed.
    """
    errors = subprocess.STDOUT if of_errors else None
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    if done.returncode != 0:
        say(done.stdout)
        raise SystemExit(f"arm64: {' '.join(words[:6])} .. ends with {done.returncode}")
    return done.stdout.strip().splitlines()[-1]


def cargo_test(processor: str, *filters: str, **variables: str) -> str:
    """How many of the crate's tests pass on a processor."""
    words = ["/usr/bin/cargo", "test", "--quiet", "--profile", "emulated", "--target", TARGET]
    runner = {f"{_TARGET_VARIABLE}_RUNNER": " ".join(emulated(processor))}
    line = result([*words, "--lib", "--", *filters], _DEBIANS_RUST | runner | variables)
    counts = re.search(r"(\d+) passed; \d+ failed; (\d+) ignored", line)
    if counts is None or counts[1] == "0":
        raise SystemExit(f"arm64: no test of the crate ran: {line}")
    return f"{counts[1]} tests pass, {counts[2]} are ignored"


def logits(interpreter: list[str], bundle: Path) -> str:
    """Write or compare the logits of a bundle."""
    kept = BUILD / "logits" / f"{bundle.name}.npz"
    return result([*interpreter, "tests/core/arm64/logits.py", str(bundle), str(kept)], {})


def files(interpreter: list[str], made_on: str) -> str:
    """Write or compare the history and the look-up table of a processor."""
    return result([*interpreter, "tests/core/arm64/files.py", str(BUILD / "files" / made_on)], {})


def fuzz(processor: str) -> Iterator[str]:
    """Run the crate's fuzz targets on the inputs that are kept for them; nothing new is sought."""
    words = ["/usr/bin/cargo", "build", "--quiet", "--release", "--target", TARGET]
    run(*words, "--manifest-path", ROOT / "fuzz" / "Cargo.toml", **_DEBIANS_RUST)
    for source in sorted((ROOT / "fuzz" / "targets").glob("*.rs")):
        built = BUILD / "target" / TARGET / "release" / source.stem
        words = [*emulated(processor), str(built), str(_CORPUS / source.stem), "-runs=0"]
        line = result(words, {}, of_errors=True)
        yield f"fuzz target {source.stem}: {line}"


def binding(processor: str) -> Iterator[str]:
    """Run Python's tests of the binding."""
    for tests in _TESTS:
        words = [*python(processor), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        yield f"{' '.join(tests)}: {result(words, _ONE_THREAD)}"


def of_this_one(bundles: list[Path]) -> Iterator[str]:
    """Write on this machine what the processors compare."""
    yield files([sys.executable], "this one")
    for bundle in bundles:
        yield logits([sys.executable], bundle)


def of_processor(processor: str, bundles: list[Path]) -> Iterator[str]:
    """Run on an emulated processor what each of them runs."""
    yield f"kernels: {cargo_test(processor, 'kernels')}"
    others = cargo_test(processor, "--skip", "kernels", PROPTEST_CASES=_EXAMPLES)
    yield f"the crate's other tests, each property on {_EXAMPLES} examples: {others}"
    yield files(python(processor), "this one")
    files(python(processor), processor)
    yield f"on this one, {files([sys.executable], processor)}"
    for bundle in bundles:
        yield logits(python(processor), bundle)


def test(bundles: list[Path]) -> None:
    """Run everything on each processor; list what ran as it ends, and at last what did not."""
    for kept in ("logits", "files"):
        shutil.rmtree(BUILD / kept, ignore_errors=True)
    (BUILD / "logits").mkdir(parents=True)
    parts = [("this one", of_this_one(bundles))]
    parts += [(processor, of_processor(processor, bundles)) for processor in PROCESSORS]
    last = list(PROCESSORS)[-1]
    parts += [(last, fuzz(last)), (last, binding(last))]
    for name, lines in parts:
        for line in lines:
            print(f"{name:12} {line}", flush=True)
    print(_NOT_RUN)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("wheel", "test"))
    parser.add_argument("bundles", nargs="*", type=Path)
    options = parser.parse_args()
    if options.part == "wheel":
        wheel()
    else:
        test(options.bundles)
