"""What is used of ONNX Runtime's quantiser, imported without PyTorch.

Its tools import PyTorch wherever that is installed, which takes half a gigabyte of memory and some
seconds: as much as the rest of an export of a small model. Nothing here needs it.
"""

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = [
    "CalibrationMethod",
    "QDQQuantizer",
    "QuantType",
    "TensorData",
    "TensorsData",
    "add_infer_metadata",
    "get_qnn_qdq_config",
    "make_dim_param_fixed",
]

_HELPERS = "onnxruntime.tools.pytorch_export_helpers"


def _infer_input_info(*arguments: Any, **options: Any) -> Any:
    """The function that the tools take from their helpers; PyTorch is imported when called."""
    return import_module(_HELPERS).infer_input_info(*arguments, **options)


@contextlib.contextmanager
def _without_pytorch() -> Iterator[None]:
    """Something stands in for the one module that imports PyTorch along with all tools.

    PyTorch itself is not hidden: another thread may be about to import it.
    """
    if _HELPERS in sys.modules:
        yield
        return
    stand_in = sys.modules[_HELPERS] = ModuleType(_HELPERS)
    vars(stand_in)["infer_input_info"] = _infer_input_info
    try:
        yield
    finally:
        del sys.modules[_HELPERS]


with _without_pytorch():
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import add_infer_metadata
    from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed
