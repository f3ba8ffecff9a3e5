"""ONNX Runtime GenAI as a live engine: a folder of its builder's, plain and with its n-grams.

In: a folder with genai_config.json, and threads. Out: `Opened` with a contestant for each of its
settings (`genai.py`), which share the model.
"""

import json
from importlib.metadata import version

from genai import PACKAGE, SETTINGS, Genai
from live.process import Opened

CONFIG_NAME = "genai_config.json"


def open_engine(folder, threads, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without the package."""
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(folder))
    session = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
    config.overlay(json.dumps(session))
    model = onnxruntime_genai.Model(config)
    ends = json.loads((folder / CONFIG_NAME).read_text("utf-8"))["model"]["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    contestants = {
        name: Genai(onnxruntime_genai, model, name, ends, stop_at_end=stop_at_end)
        for name in SETTINGS
    }
    facts = {"package": PACKAGE, "version": version(PACKAGE), "folder": folder.name}
    facts |= {"onnxruntime": version("onnxruntime"), "threads": threads}
    about = f"{PACKAGE} {facts['version']} on onnxruntime {facts['onnxruntime']}"
    return Opened(contestants, facts | {"about": about})
