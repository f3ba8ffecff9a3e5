"""A target on Qualcomm's HTP, through ONNX Runtime's QNN provider."""
