"""Folders of ONNX Runtime GenAI, read as they are."""
