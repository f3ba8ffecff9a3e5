"""Folders of other tools that are run as they are: Genie and ONNX Runtime GenAI."""
