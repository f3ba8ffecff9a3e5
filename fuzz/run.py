"""Runs the fuzz targets: `make fuzz SECONDS=60`, or one: `fuzz/run.py --seconds 60 drafter`.

In: the files in `fuzz/corpus`. Out: what each target came to, and every input that broke one, under
`build/fuzz/crashes`. Two run at a time. Ends with 1 where a target found something.

What is found to be new is kept in `build/fuzz/corpus`; `--merge` takes over into `fuzz/corpus` what
reaches code that no file there reaches.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "fuzz" / "corpus"
BUILT = ROOT / "build" / "fuzz"

# What cargo-fuzz passes, without a sanitizer: all that is unsafe in the crate itself are calls of
# functions compiled for wide vectors, where the machine has them. So the stable toolchain does.
_COVERAGE = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    *(f"-Cllvm-args=-sanitizer-coverage-{option}" for option in (
        "level=4", "inline-8bit-counters", "pc-table", "trace-compares"
    )),
    "-Ccodegen-units=1",
]  # fmt: skip
_ADDRESS = ["-Zsanitizer=address"]

_TIMEOUT_S = 10
_MOST_MIB = 1024


@dataclass(frozen=True)
class Target:
    """One fuzz target, by the name of its corpus."""

    name: str
    command: list[str]
    most_bytes: int
    """Of an input."""

    def run(self, *options: str, folders: list[Path]) -> subprocess.CompletedProcess[str]:
        """Runs it with options of libFuzzer; returns what it said."""
        command = [
            *self.command,
            *map(str, folders),
            f"-artifact_prefix={BUILT}/crashes/{self.name}-",
            f"-timeout={_TIMEOUT_S}",
            f"-rss_limit_mb={_MOST_MIB}",
            f"-max_len={self.most_bytes}",
            *options,
        ]
        environment = {
            **os.environ,
            "FUZZ_TARGET": self.name,
            # A merge starts processes of its own, by the name of the script.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RUST_BACKTRACE": "0",
        }
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )


def build(*, with_address_sanitizer: bool) -> Path:
    """Builds the targets of the crate; returns the folder that they are in."""
    version = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True)
    host = re.search(r"host: (.*)", version.stdout)[1]
    flags, environment = _COVERAGE, {}
    if with_address_sanitizer:
        flags, environment = [*_COVERAGE, *_ADDRESS], {"RUSTC_BOOTSTRAP": "1"}
    folder = BUILT / ("target-address" if with_address_sanitizer else "target")
    command = ["cargo", "build", "--quiet", "--release", "--target", host]
    subprocess.run(
        [*command, "--manifest-path", ROOT / "fuzz" / "Cargo.toml", "--target-dir", folder],
        env={
            **os.environ,
            **environment,
            "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
            # No target multiplies.
            "COORDGEN_KERNELS": "portable",
        },
        check=True,
    )
    return folder / host / "release"


def targets(built: Path | None) -> list[Target]:
    """All targets, those of the crate without a command where it was not built."""
    rust = sorted(path.stem for path in (ROOT / "fuzz" / "targets").glob("*.rs"))
    python = sorted(path.stem for path in (ROOT / "fuzz" / "python" / "targets").glob("*.py"))
    run_target = str(ROOT / "fuzz" / "python" / "run_target.py")
    return [
        *(Target(name, [str(built / name)] if built else [], 4096) for name in rust),
        *(Target(name, [run_target], 16_384) for name in python),
    ]


def fuzz(target: Target, limits: list[str]) -> bool:
    """Runs a target over its corpus and on, and prints what it came to; returns whether it held."""
    found, kept = BUILT / "corpus" / target.name, CORPUS / target.name
    found.mkdir(parents=True, exist_ok=True)
    ended = target.run("-print_final_stats=1", *limits, folders=[found, kept])
    figure = {name: int(value) for name, value in re.findall(r"stat::(\w+): +(\d+)", ended.stdout)}
    coverage = re.findall(r"cov: (\d+)", ended.stdout)
    print(
        f"{target.name:15} {figure.get('number_of_executed_units', 0):>9,} runs, "
        f"{coverage[-1] if coverage else 0:>5} edges, "
        f"{figure.get('peak_rss_mb', 0):>5} MiB: "
        f"{'held' if ended.returncode == 0 else 'BROKEN'}",
        flush=True,
    )
    if ended.returncode == 0:
        return True
    said = [line for line in ended.stdout.splitlines() if not re.match(r"#\d+\s", line)]
    print("\n".join(f"  {line}" for line in said[-40:]), flush=True)
    artifact = re.search(r"Test unit written to (\S+)", ended.stdout)
    if artifact:
        print(f"  again: {sys.executable} fuzz/run.py {target.name} --input {artifact[1]}")
        print(f"  mended? keep it: cp {artifact[1]} fuzz/corpus/{target.name}/")
    return False


def again(target: Target, path: Path) -> bool:
    """Runs a target on one input, and prints all that it says; returns whether it held."""
    ended = target.run(folders=[path])
    print(ended.stdout, end="")
    return ended.returncode == 0


def merge(target: Target) -> bool:
    """Takes over what was found, so far as it reaches what the kept files do not."""
    found, kept = BUILT / "corpus" / target.name, CORPUS / target.name
    before = len(list(kept.iterdir()))
    ended = target.run("-set_cover_merge=1", "-use_counters=0", folders=[kept, found])
    files = list(kept.iterdir())
    num_bytes = sum(path.stat().st_size for path in files)
    print(f"{target.name:15} {before:>4} files, now {len(files):>4}, {num_bytes:>7,} bytes")
    return ended.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the fuzz targets; two at a time.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="of each; default %(default)s")
    parser.add_argument("--runs", type=int, help="most runs of each")
    parser.add_argument("--seed", type=int, help="try the same inputs each time")
    parser.add_argument("--jobs", type=int, default=2, help="default %(default)s")
    parser.add_argument("--input", type=Path, help="run one target on this file alone")
    parser.add_argument("--merge", action="store_true", help="take over what was found")
    parser.add_argument(
        "--address-sanitizer", action="store_true", help="build the crate's with it; slower"
    )
    options = parser.parse_args()
    known = [target.name for target in targets(None)]
    if unknown := set(options.targets) - set(known):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(known)}")
    built = build(with_address_sanitizer=options.address_sanitizer)
    chosen = [t for t in targets(built) if not options.targets or t.name in options.targets]
    (BUILT / "crashes").mkdir(parents=True, exist_ok=True)
    if options.input is not None:
        return 0 if all(again(target, options.input) for target in chosen[:1]) else 1
    limits = [f"-max_total_time={options.seconds}"]
    if options.runs is not None:
        limits.append(f"-runs={options.runs}")
    if options.seed is not None:
        limits.append(f"-seed={options.seed}")
    one = merge if options.merge else lambda target: fuzz(target, limits)
    with ThreadPoolExecutor(options.jobs) as jobs:
        held = list(jobs.map(one, chosen))
    return 0 if all(held) else 1


sys.exit(main())
