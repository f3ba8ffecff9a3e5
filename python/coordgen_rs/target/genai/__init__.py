"""Folders of ONNX Runtime GenAI, run on CPU without conversion."""
