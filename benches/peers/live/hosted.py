"""Other engines with our drafts, and transformers with its own: contestants over one opened model.

In: what an engine opens, and threads. Out: `Opened`. Rows of a step cost what is measured when the
engine is opened, or nothing ("16 free rows", what backends feel on which a wide step is no dearer).
"""

import json
import time
from importlib.metadata import version

import numpy as np

from contest import Answer
from coordgen_rs.adapters import host as hosts
from coordgen_rs.adapters import llama_cpp, mlx_lm, onnxruntime_genai
from live.process import Opened

LOOKUPS = (4, 10, 16)
"""`prompt_lookup_num_tokens` of transformers."""
KINDS = {"measured rows": False, "16 free rows": True}


class Hosted:
    """A host with our drafts, or plain where rows are (1,)."""

    def __init__(self, name, host, rows, costs, end_token_ids):
        self.name = name
        self._host, self._rows, self._costs = host, rows, costs
        self._ends = end_token_ids
        self.begin()

    def begin(self):
        """As of `Contestant`."""
        ends = self._ends
        self._drafter = hosts.make_drafter(
            self._host, rows=self._rows, costs=self._costs, end_token_ids=ends
        )

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        timed = _Timed(self._host)
        start = time.perf_counter()
        asked = {"max_new_tokens": max_new_tokens, "end_token_ids": self._ends}
        steps = list(hosts.generate(timed, prompt, drafter=self._drafter, **asked))
        end = time.perf_counter()
        tokens = [token for step in steps for token in step.token_ids]
        read_s = timed.read_at - start
        return Answer(tokens, len(tokens), len(steps), read_s, end - timed.read_at)


class _Timed:
    """A host that notes when it has read the prompt."""

    def __init__(self, host):
        self._host, self.read_at = host, 0.0

    def read(self, token_ids):
        self._host.read(token_ids)
        self.read_at = time.perf_counter()

    def __getattr__(self, name):
        return getattr(self._host, name)


def contestants(host, end_token_ids):
    """Plain, and ours with measured and with free rows."""
    costs = hosts.measured_costs(host)
    found = {"plain": Hosted("plain", host, (1,), None, end_token_ids)}
    for name, is_free in KINDS.items():
        given = None if is_free else costs
        found[name] = Hosted(name, host, hosts.ROWS, given, end_token_ids)
    return found, {"rows": list(hosts.ROWS), "step_us": costs}


def open_llama(gguf, threads, context, stop_at_end):
    """`Opened`; raises OptionError without cyllama."""
    host = llama_cpp.open_host(gguf, context=context, threads=threads)
    if not stop_at_end:
        ends = host.end_token_ids
        host = llama_cpp.open_host(gguf, context=context, threads=threads, forbidden_ids=ends)
    found, facts = contestants(host, host.end_token_ids)
    package = {"package": "cyllama", "version": version("cyllama"), "file": gguf.name}
    return Opened(found, package | facts | {"context": context, "threads": threads})


def open_genai(folder, threads, vocab_size, context, end_token_ids, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without onnxruntime-genai."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    session = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
    config.overlay(json.dumps(session))
    model = genai.Model(config)
    forbidden = [] if stop_at_end else end_token_ids
    # With one-row steps as they are: GenAI decodes so itself.
    options = {"forbidden_ids": forbidden, "padded": False}
    host = onnxruntime_genai.GenaiHost(model, vocab_size, context, **options)
    found, facts = contestants(host, end_token_ids)
    package = {"package": "onnxruntime-genai", "version": version("onnxruntime-genai")}
    return Opened(found, package | facts | {"folder": folder.name, "threads": threads})


def open_mlx(folder, threads, vocab_size, context, end_token_ids, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without mlx-lm. MLX takes what threads it wants."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    forbidden = [] if stop_at_end else end_token_ids
    host = mlx_lm.MlxHost(model, vocab_size, context, forbidden_ids=forbidden)
    found, facts = contestants(host, end_token_ids)
    package = {"package": "mlx-lm", "version": version("mlx-lm"), "folder": folder.name}
    return Opened(found, package | facts | {"threads": threads})


class Transformers:
    """`model.generate` with some keywords."""

    def __init__(self, name, model, torch, options, stop_at_end):
        self.name = name
        self._model, self._torch = model, torch
        self._options, self._stop_at_end = options, stop_at_end
        self.begin()

    def begin(self):
        """As of `Contestant`."""
        self._asked = {key: make() for key, make in self._options.items()}

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`: runs of the model are counted behind the first, the prompt's."""
        ends = []
        hook = self._model.register_forward_hook(lambda *_: ends.append(time.perf_counter()))
        start = time.perf_counter()
        try:
            said = self._model.generate(
                self._torch.from_numpy(prompt.astype(np.int64))[None],
                do_sample=False,
                max_new_tokens=max_new_tokens,
                min_new_tokens=0 if self._stop_at_end else max_new_tokens,
                **self._asked,
            )
        finally:
            hook.remove()
        end = time.perf_counter()
        tokens = said[0, len(prompt) :].tolist()
        decoded = len(tokens) - ("custom_generate" not in self._asked)
        return Answer(tokens, decoded, len(ends) - 1, ends[0] - start, end - ends[0])


def open_transformers(folder, threads, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without torch and transformers."""
    import torch
    import transformers

    from coordgen_rs.adapters.transformers import Drafted, TransformersHost

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    costs = hosts.measured_costs(TransformersHost(model))
    options = {"plain": {}}
    for count in LOOKUPS:
        options[f"prompt lookup {count}"] = {"prompt_lookup_num_tokens": lambda count=count: count}
    for name, is_free in KINDS.items():
        given = None if is_free else costs
        options[name] = {"custom_generate": lambda given=given: Drafted(costs=given)}
    found = {
        name: Transformers(name, model, torch, asked, stop_at_end)
        for name, asked in options.items()
    }
    facts = {"package": "transformers", "version": version("transformers"), "step_us": costs}
    return Opened(found, facts | {"torch": version("torch"), "threads": threads})
