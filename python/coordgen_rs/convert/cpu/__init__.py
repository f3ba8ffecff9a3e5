"""Graphs for ONNX Runtime's CPU provider."""
