"""What is used of ONNX Runtime's quantiser, imported without PyTorch.

Its tools import PyTorch wherever that is installed, which takes half a gigabyte of memory and some
seconds: as much as the rest of an export of a small model. Nothing here needs it.
"""

import contextlib
import sys
from collections.abc import Iterator

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

_PYTORCH = "torch"


@contextlib.contextmanager
def _without_pytorch() -> Iterator[None]:
    """Where PyTorch is not imported yet, what asks for it is told that it is not installed."""
    is_hidden = _PYTORCH not in sys.modules
    if is_hidden:
        sys.modules[_PYTORCH] = None  # type: ignore[assignment]  # what `import` calls absent
    try:
        yield
    finally:
        if is_hidden:
            del sys.modules[_PYTORCH]


with _without_pytorch():
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import add_infer_metadata
    from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed
