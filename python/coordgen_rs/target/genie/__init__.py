"""A target in a bundle of Genie, on Qualcomm's HTP, through ONNX Runtime's QNN provider."""
