"""ONNX Runtime's quantiser, which is imported without PyTorch."""

import subprocess
import sys

import pytest

FAKE = """
import sys
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "torch").mkdir()
(folder / "torch" / "__init__.py").write_text("LOADED = True")
sys.path.insert(0, str(folder))
"""
ALONE = """
import coordgen_rs.convert.qnn.exporter
assert "torch" not in sys.modules
import torch
assert torch.LOADED
from onnxruntime.tools import infer_input_info
assert "onnxruntime.tools.pytorch_export_helpers" not in sys.modules
"""
BESIDE_ANOTHER_THREAD = """
import builtins
from threading import Thread

found, real = [], builtins.__import__

def look():
    import torch
    found.append(torch.LOADED)

def imported(name, *arguments):
    if name == "onnxruntime.quantization" and not found:
        builtins.__import__ = real
        thread = Thread(target=look)
        thread.start()
        thread.join()
    return real(name, *arguments)

builtins.__import__ = imported
import coordgen_rs.convert.qnn.exporter
assert found == [True]
"""


@pytest.mark.parametrize("then", [ALONE, BESIDE_ANOTHER_THREAD], ids=["alone", "another thread"])
def test_an_export_does_not_import_pytorch_and_others_can(tmp_path, then):
    subprocess.run([sys.executable, "-c", FAKE + then, tmp_path], check=True, timeout=600)
