"""ONNX Runtime's CPU provider: its device, and what only graphs for CPU have."""
