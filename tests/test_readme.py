"""The README's Python runs as it stands, and its commands exist."""

import re
import subprocess
import sys

from conftest import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_example_runs(bundle_of, tmp_path):
    (tmp_path / "bundle").symlink_to(bundle_of("embedded", "fp32"))
    (tmp_path / "question.txt").write_text((ROOT / "models" / "prompts" / "rag.txt").read_text())
    (example,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "tokens a step" in done.stdout


def test_make_targets_exist():
    targets = re.findall(r"^make ([a-z-]+)", "".join(blocks("sh")), re.MULTILINE)
    assert targets == ["demo", "test"]
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {target} " in listed for target in targets)
