"""ONNX Runtime GenAI as a contestant: plain, and with its n-gram decoding, end to end.

In: a folder of its builder's, or of `genai_model.py`, and threads. Out: `Opened` with a contestant
for each of `SETTINGS`, which share the model. Needs the package `onnxruntime-genai` (0.18), which
runs on the `onnxruntime` that is installed, the one that coordgen runs on.
"""

import json
import time
from importlib.metadata import version

import numpy as np

from contest import Answer, Contestant
from genai_model import CONFIG_NAME
from live.process import Opened

PACKAGE = "onnxruntime-genai"
SETTINGS = {
    "GenAI plain": {},
    "GenAI n-gram 3, 4 drafts": {"ngram_size": 3, "max_draft_tokens": 4},
    "GenAI n-gram 3, 16 drafts": {"ngram_size": 3, "max_draft_tokens": 16},
    "GenAI n-gram 3, adaptive": {
        "ngram_size": 3,
        "ngram_chained_lookup": True,
        "min_adaptive_k": 2,
    },
}
"""Its documentation's first advice, its widest draft, and its adaptive width with all else on."""


class Genai(Contestant):
    """One of `SETTINGS`.

    Args:
        genai: The module `onnxruntime_genai`.
        model: Its opened model.
        name: One of `SETTINGS`.
        end_token_ids: Those that the model's configuration names.
        stop_at_end: Whether an end token ends an answer; otherwise none is ever chosen.
    """

    def __init__(self, genai, model, name, end_token_ids, *, stop_at_end=True):
        self.name = name
        self._genai, self._model = genai, model
        self._end_token_ids, self._stop_at_end = end_token_ids, stop_at_end

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`; the end token, which GenAI does not give out, is put back."""
        start = time.perf_counter()
        params = self._genai.GeneratorParams(self._model)
        length = len(prompt) + max_new_tokens
        shortest = 0 if self._stop_at_end else length
        params.set_search_options(max_length=length, min_length=shortest, do_sample=False)
        if SETTINGS[self.name]:
            params.set_speculative_options(**SETTINGS[self.name])
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(prompt.astype(np.int32))
        begun = time.perf_counter()
        while not generator.is_done():
            generator.generate_next_token()
        end = time.perf_counter()
        tokens = generator.get_sequence(0)[len(prompt) :].tolist()
        if len(tokens) < max_new_tokens and not {*tokens} & {*self._end_token_ids}:
            tokens.append(int(generator.get_next_tokens()[0]))
        decoded = len(tokens) - 1  # the first is chosen by the prompt's logits
        return Answer(tokens, decoded, self._steps(generator, decoded), begun - start, end - begun)

    def _steps(self, generator, decoded):
        if not SETTINGS[self.name]:
            return decoded
        stats = generator.get_speculative_stats()
        return stats["target_forward_passes"] + stats["standard_fallback_steps"]


def opened_model(folder, threads):
    """The package, and a folder's model on so many threads; raises ModuleNotFoundError."""
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(folder))
    session = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
    config.overlay(json.dumps(session))
    return onnxruntime_genai, onnxruntime_genai.Model(config)


def open_engine(folder, threads, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without the package."""
    package, model = opened_model(folder, threads)
    ends = json.loads((folder / CONFIG_NAME).read_text("utf-8"))["model"]["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    contestants = {
        name: Genai(package, model, name, ends, stop_at_end=stop_at_end) for name in SETTINGS
    }
    facts = {"package": PACKAGE, "version": version(PACKAGE), "folder": folder.name}
    facts |= {"onnxruntime": version("onnxruntime"), "threads": threads}
    about = f"{PACKAGE} {facts['version']} on onnxruntime {facts['onnxruntime']}"
    return Opened(contestants, facts | {"about": about})
