"""Build the wheel, install it into a clean virtual environment, and use its command there.

`python tests/wheel_check.py [DIR]`: with a directory, use the wheel in it instead of building one.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheels = Path(sys.argv[1]).resolve() if sys.argv[1:] else folder
        if wheels == folder:
            build = ["-m", "maturin", "build", "--release", "--quiet", "--out", folder]
            run(sys.executable, *build, cwd=ROOT)
        (wheel,) = wheels.glob("*.whl")
        if "-cp311-abi3-" not in wheel.name:
            raise SystemExit(f"not an abi3 wheel for Python 3.11 and up: {wheel.name}")
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python, command = programs / "python", programs / "coordgen"
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
    main()
