"""Folders of ONNX Runtime GenAI, whose graph is given tree attention."""
