"""llama.cpp's server as a live engine: plain, and with one of its n-gram types, by xllamacpp.

In: a GGUF file, a type and threads. Out: `Opened` with one contestant; types stand in the server's
own defaults. Times and counts are the server's own, but for those with `slots`. It is asked by its
loopback address, because only there does it give out token ids.
"""

import gc
import hashlib
import json
import time
import urllib.request

from contest import Answer
from live.process import Opened

PACKAGE = "xllamacpp"
TYPES = {
    "plain": "NONE",
    "ngram-simple": "NGRAM_SIMPLE",
    "ngram-map-k": "NGRAM_MAP_K",
    "ngram-map-k4v": "NGRAM_MAP_K4V",
    "ngram-mod": "NGRAM_MOD",
    "ngram-cache": "NGRAM_CACHE",
}
"""Names on llama.cpp's command line, and in its enumeration."""
REMEMBERING = ("ngram-mod", "ngram-cache")
"""Types that draft from earlier requests: a round, which repeats them, begins with a new server."""


class LlamaServer:
    """A server with one slot."""

    name = "server"

    def __init__(self, xllamacpp, gguf, kind, threads, context, stop_at_end, slots=None):
        self._xllamacpp, self._is_remembering = xllamacpp, kind in REMEMBERING
        self._slots = slots
        self._params = xllamacpp.CommonParams()
        self._params.model.path = str(gguf)
        self._params.n_ctx, self._params.n_parallel = context, 1
        self._params.cpuparams.n_threads = self._params.cpuparams_batch.n_threads = threads
        self._params.cache_ram_mib = 0  # no prompt is kept for later
        self._params.speculative.types = [
            getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{TYPES[kind]}")
        ]
        if slots is not None:
            self._params.slot_save_path = f"{slots}/"
        self._request = {
            "temperature": 0,
            "top_k": 1,
            "samplers": ["top_k"],
            "cache_prompt": slots is not None,
            "ignore_eos": not stop_at_end,
            "return_tokens": True,
        }
        self._server = xllamacpp.Server(self._params)

    def begin(self):
        """As of `Contestant`."""
        if self._is_remembering:
            self._server = None
            gc.collect()  # the old one frees its memory first
            self._server = self._xllamacpp.Server(self._params)

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        asked = self._request | {"prompt": prompt.tolist(), "n_predict": max_new_tokens}
        if self._slots is not None:
            self._read(asked)
        start = time.perf_counter()
        said = self._post("completion", asked)
        took = time.perf_counter() - start
        times, tokens = said["timings"], said["tokens"]
        num_read = len(prompt) if self._slots is None else 1
        if times["prompt_n"] != num_read:
            raise ValueError(f"read {times['prompt_n']} tokens of the prompt, not {num_read}")
        decoded = times["predicted_n"] - 1  # the first is chosen by the prompt's logits
        steps = decoded - times.get("draft_n_accepted", 0)
        if self._slots is not None:  # the step of the prompt's last token is one like the others
            return Answer(tokens, decoded + 1, steps + 1, 0.0, took)
        return Answer(tokens, decoded, steps, times["prompt_ms"] / 1e3, times["predicted_ms"] / 1e3)

    def _read(self, asked):
        """Read a prompt, or take what another server has read."""
        name = hashlib.sha256(json.dumps(asked["prompt"]).encode()).hexdigest()
        what = "restore"
        if not (self._slots / name).exists():
            self._post("completion", asked | {"n_predict": 0})
            what = "save"
        self._post(f"slots/0?action={what}", {"filename": name})

    def _post(self, path, asked):
        request = urllib.request.Request(
            f"{self._server.listening_address}/{path}",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            return json.load(response)


def open_engine(gguf, kind, threads, context, stop_at_end, slots=None, name=None):
    """`Opened`, its contestant under a name of its own or `kind`; raises ModuleNotFoundError.

    With `slots`, a folder, servers take each other's prompts from there. Times are then of the
    whole call, by the process's own clock.
    """
    import xllamacpp

    server = LlamaServer(xllamacpp, gguf, kind, threads, context, stop_at_end, slots)
    facts = {"package": PACKAGE, "version": xllamacpp.__version__, "file": gguf.name}
    facts |= {"type": kind, "context": context, "threads": threads}
    return Opened({name or kind: server}, facts)
