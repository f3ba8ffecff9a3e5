"""Build the wheel, install it into a clean virtual environment, and use its command there.

`python tests/project/wheel_check.py [DIR]`: with a directory, use the wheel in it instead of
building one. `--extras` installs it with each extra instead, an environment each (some gigabytes),
and takes the first steps there; `--only NAME ..` those extras.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


FIRST_STEPS = (
    ("coordgen", "--version"),
    ("coordgen",),
    ("coordgen", "doctor"),
    ("python", "-m", "coordgen_rs"),
    ("python", "-c", "import coordgen_rs; coordgen_rs.Model"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="use the wheel in a clean environment")
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR")
    parser.add_argument("--extras", action="store_true", help="install it with each extra")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="with --extras: these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheels = options.directory.resolve() if options.directory else folder
        if wheels == folder:
            build = ["-m", "maturin", "build", "--release", "--quiet", "--out", folder]
            run(sys.executable, *build, cwd=ROOT)
        (wheel,) = wheels.glob("*.whl")
        if "-cp311-abi3-" not in wheel.name:
            raise SystemExit(f"not an abi3 wheel for Python 3.11 and up: {wheel.name}")
        if options.extras or options.only:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            extras = options.only or ["", *project["optional-dependencies"]]
            did = [check_extra(wheel, extra, folder) for extra in extras]
            return int(not all(did))
        check_without_and_with_export(wheel, folder)
    return 0


def programs(environment: Path) -> Path:
    return environment / ("Scripts" if os.name == "nt" else "bin")


def check_extra(wheel: Path, extra: str, folder: Path) -> bool:
    """Whether the first steps succeed with an extra, or with none; says what does not."""
    name, environment = extra or "no extra", folder / f"with-{extra}"
    venv.create(environment, with_pip=True)
    wanted = f"{wheel}[{extra}]" if extra else wheel
    try:
        run(programs(environment) / "python", "-m", "pip", "install", "-q", wanted, cwd=folder)
        for program, *words in FIRST_STEPS:
            if not run(programs(environment) / program, *words, cwd=folder) and words[:1] != ["-c"]:
                print(f"{name}: {program} {' '.join(words)} prints nothing")
                return False
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip()).splitlines()[-1]
        print(f"{name}: {' '.join(map(str, error.cmd[-3:]))}: {last}")
        return False
    finally:
        shutil.rmtree(environment)
    print(f"{name}: installs, and takes the first steps", flush=True)
    return True


def check_without_and_with_export(wheel: Path, folder: Path) -> None:
    venv.create(folder / "venv", with_pip=True)
    python, command = (programs(folder / "venv") / name for name in ("python", "coordgen"))
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    refused = subprocess.run(
        [command, "export", ROOT / "models" / "embedded", "bundle"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if refused.returncode != 2 or "coordgen-rs[export]" not in refused.stderr:
        raise SystemExit(f"export without its extra should say what to install: {refused}")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[export]", cwd=folder)
    run(command, "export", ROOT / "models" / "embedded", "bundle", cwd=folder)
    prompt = ROOT / "models" / "prompts" / "rag.txt"
    answer = ["generate", "--model", "bundle", "--prompt-file", prompt]
    text = run(command, *answer, cwd=folder)
    if text != run(command, *answer, "--draft", "plain", cwd=folder) or not text.strip():
        raise SystemExit(f"the wheel's answer differs from plain decoding: {text!r}")
    print(f"{wheel.name} ({wheel.stat().st_size} bytes): installs, exports and generates")


if __name__ == "__main__":
    sys.exit(main())
