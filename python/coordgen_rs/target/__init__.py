"""The model whose output is wanted: the `Session` protocol and its ONNX Runtime form.

ONNX Runtime's own builds report to Microsoft how they are used, from 1.29 on also on Linux. Here
they do not, unless the process has set `ORT_DISABLE_TELEMETRY` or imported ONNX Runtime before.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
