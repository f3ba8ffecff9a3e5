"""Builds the wheel for arm64, and runs what is tested of it on emulated processors.

python tests/arm64/run.py wheel                  # build/arm64/wheels, and the system around it
python tests/arm64/run.py test BUNDLE [BUNDLE]   # kernels, and the logits of bundles
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
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
}
"""Rust's own installer may stand first in PATH, and has no standard library of arm64."""

_LENGTHS = {"embedded": (64, 32), "": (8, 2)}
"""Tokens of the prompt and of the answer, by the start of a bundle's name: all others are large."""

_NOT_RUN = (
    "Not run here: the tests of the binding and of Python, histories and look-up tables of one "
    "processor on another, fuzz targets, QNN; and nothing ran on a real device."
)


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


def result(words: list[str], variables: Mapping[str, str]) -> str:
    """The last line that a command prints.

    Raises:
        SystemExit: The command fails; its output is printed.
    """
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        say(done.stdout)
        raise SystemExit(f"arm64: {' '.join(words[:6])} .. ends with {done.returncode}")
    return done.stdout.strip().splitlines()[-1]


def kernels(processor: str) -> str:
    """How many of the crate's tests of kernels pass on a processor."""
    words = ["/usr/bin/cargo", "test", "--quiet", "--profile", "emulated", "--target", TARGET]
    runner = {f"{_TARGET_VARIABLE}_RUNNER": " ".join(emulated(processor))}
    line = result([*words, "--lib", "--", "kernels"], _DEBIANS_RUST | runner)
    counts = re.search(r"(\d+) passed; \d+ failed; (\d+) ignored", line)
    if counts is None or counts[1] == "0":
        raise SystemExit(f"arm64: no test of a kernel ran: {line}")
    return f"kernels: {counts[1]} tests pass, {counts[2]} are ignored"


def logits(interpreter: list[str], bundle: Path) -> str:
    """Write or compare the logits of a bundle."""
    kept = BUILD / "logits" / f"{bundle.name}.npz"
    prompt, answer = next(pair for name, pair in _LENGTHS.items() if bundle.name.startswith(name))
    words = [*interpreter, "tests/arm64/logits.py", str(bundle), str(kept)]
    return result([*words, "--prompt-len", str(prompt), "--answer-len", str(answer)], {})


def test(bundles: list[Path]) -> None:
    """Run everything on each processor, then list it."""
    (BUILD / "logits").mkdir(parents=True, exist_ok=True)
    ran = []
    for bundle in bundles:
        (BUILD / "logits" / f"{bundle.name}.npz").unlink(missing_ok=True)
        ran.append(("this one", logits([sys.executable], bundle)))
    for processor in PROCESSORS:
        say(f"{processor}: kernels ..")
        ran.append((processor, kernels(processor)))
        for bundle in bundles:
            say(f"{processor}: {bundle.name} ..")
            ran.append((processor, logits(python(processor), bundle)))
    for name, line in ran:
        print(f"{name:12} {line}")
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
