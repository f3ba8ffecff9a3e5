"""ONNX Runtime's quantiser, which is imported without PyTorch."""

import subprocess
import sys

FAKE = """
import sys
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "torch").mkdir()
(folder / "torch" / "__init__.py").write_text("LOADED = True")
sys.path.insert(0, str(folder))
import coordgen_rs.export.qnn.exporter
assert "torch" not in sys.modules
import torch
assert torch.LOADED
"""


def test_pytorch_is_not_imported_by_an_export_and_can_be_afterwards(tmp_path):
    subprocess.run([sys.executable, "-c", FAKE, tmp_path], check=True, timeout=120)
