"""The model whose output is wanted: the `Session` protocol and its ONNX Runtime form."""
