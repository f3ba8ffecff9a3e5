"""Other engines with our drafts, and transformers with its own: contestants over one opened model.

In: what an engine opens, and threads. Out: `Opened`. Rows of a step cost what is measured when the
engine is opened, or nothing ("16 free rows", what backends feel on which a wide step is no dearer).
Where an answer is not the engine's own, `explain` shows by how much scores differ.
"""

import time
from importlib.metadata import version

import numpy as np

from contest import Answer, Contestant
from coordgen_rs.adapters import host as hosts
from coordgen_rs.adapters import llama_cpp, mlx_lm, onnxruntime_genai
from genai import opened_model
from live.process import Opened

LOOKUPS = (4, 10, 16)
"""`prompt_lookup_num_tokens` of transformers."""
KINDS = {"measured rows": False, "16 free rows": True}


class Hosted(Contestant):
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
        start = time.perf_counter()
        asked = {"max_new_tokens": max_new_tokens, "end_token_ids": self._ends}
        steps = list(hosts.generate(self._host, prompt, drafter=self._drafter, **asked))
        end = time.perf_counter()
        tokens = [token for step in steps for token in step.token_ids]
        read_at = self._host.read_at
        decoded = len(tokens) - 1  # the first is chosen by the prompt's logits
        return Answer(tokens, decoded, len(steps) - 1, read_at - start, end - read_at)

    def explain(self, prompt, position, max_new_tokens):
        """Scores at a position of an answer, in steps of one row and in ours.

        Returns:
            By "one row" and "ours": the two likeliest tokens and the gap between their scores; and
            the largest change of any token's score.
        """
        found = {}
        for name, rows, costs in (("one row", (1,), None), ("ours", self._rows, self._costs)):
            scores = self._scores(prompt, position, max_new_tokens, rows, costs)
            second, first = np.argsort(scores)[-2:]
            found[name] = [int(first), int(second), float(scores[first] - scores[second])], scores
        change = np.abs(found["one row"][1] - found["ours"][1])
        told = {name: told for name, (told, _) in found.items()}
        return told | {"largest change": float(change[np.isfinite(change)].max())}

    def _scores(self, prompt, position, max_new_tokens, rows, costs):
        """The scores from which the answer's token at `position` is chosen."""
        heard = _Heard(self._host)
        drafter = hosts.make_drafter(heard, rows=rows, costs=costs, end_token_ids=self._ends)
        asked = {"max_new_tokens": max_new_tokens, "end_token_ids": self._ends}
        for _ in hosts.generate(heard, prompt, drafter=drafter, **asked):
            if len(heard.scores) > position:
                break
        return heard.scores[position]


class Reader:
    """A host that notes when it has read a prompt, and reads one that comes again but once.

    Then the seconds of reading mean nothing; those of decoding do not depend on it.
    """

    def __init__(self, host):
        self._host, self._held, self.read_at = host, None, 0.0
        self._said, self._is_at_prompt = 0, False

    def clear(self):
        """Left to `read`."""

    def read(self, token_ids):
        if self._held is not None and np.array_equal(self._held, token_ids):
            self._host.cut(len(token_ids))
        else:
            self._held = None  # until it is read whole
            self._host.clear()
            self._host.read(token_ids)
            self._said = self._host.choose(0)
            self._held = token_ids if hasattr(self._host, "cut") else None
        self._is_at_prompt = True
        self.read_at = time.perf_counter()

    def run(self, token_ids, parents):
        self._is_at_prompt = False
        self._host.run(token_ids, parents)

    def choose(self, row):
        return self._said if self._is_at_prompt else self._host.choose(row)

    def __getattr__(self, name):
        return getattr(self._host, name)


class _Heard:
    """A host that keeps the scores of every token that it said."""

    def __init__(self, host):
        self._host, self.scores = host, []

    def choose(self, row):
        self.scores.append(np.array(self._host.scores(row), np.float32))
        return self._host.choose(row)

    def __getattr__(self, name):
        return getattr(self._host, name)


def contestants(host, end_token_ids):
    """Plain, and ours with measured and with free rows."""
    costs = hosts.measured_costs(host)
    host = Reader(host)
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
    _, model = opened_model(folder, threads)
    forbidden = [] if stop_at_end else end_token_ids
    # With one-row steps as they are: GenAI decodes so itself.
    options = {"forbidden_ids": forbidden, "padded": False}
    host = onnxruntime_genai.GenaiHost(model, vocab_size, context, **options)
    found, facts = contestants(host, end_token_ids)
    package = {"package": "onnxruntime-genai", "version": version("onnxruntime-genai")}
    return Opened(found, package | facts | {"folder": folder.name, "threads": threads})


class MlxLoop(Contestant):
    """MLX-LM's own loop, greedy."""

    name = "plain"

    def __init__(self, model, end_token_ids, forbidden_ids):
        self._model, self._ends, self._forbidden = model, end_token_ids, forbidden_ids

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        def without_ends(_, logits):
            logits[..., mx.array(self._forbidden)] = -mx.inf
            return logits

        tokens, times = [], [time.perf_counter()]
        processors = [without_ends] if self._forbidden else None
        asked = {"max_tokens": max_new_tokens, "logits_processors": processors}
        for token, _ in generate_step(mx.array(prompt), self._model, **asked):
            times.append(time.perf_counter())
            tokens.append(int(token))
            if tokens[-1] in self._ends and not self._forbidden:
                break
        num_steps = len(tokens) - 1
        return Answer(tokens, num_steps, num_steps, times[1] - times[0], times[-1] - times[1])


def open_mlx(folder, threads, vocab_size, context, end_token_ids, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without mlx-lm. MLX takes what threads it wants."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    forbidden = [] if stop_at_end else end_token_ids
    host = mlx_lm.MlxHost(model, vocab_size, context, forbidden_ids=forbidden)
    found, facts = contestants(host, end_token_ids)
    found["plain"] = MlxLoop(model, end_token_ids, forbidden)
    package = {"package": "mlx-lm", "version": version("mlx-lm"), "folder": folder.name}
    return Opened(found, package | facts | {"threads": threads})


class Transformers(Contestant):
    """`model.generate` with some keywords; `hosted` is the same settings without `generate`."""

    def __init__(self, name, model, torch, options, stop_at_end, hosted):
        self.name = name
        self._model, self._torch, self._hosted = model, torch, hosted
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
        return Answer(tokens, len(tokens) - 1, len(ends) - 1, ends[0] - start, end - ends[0])

    def explain(self, prompt, position, max_new_tokens):
        """As of `Hosted`."""
        return self._hosted.explain(prompt, position, max_new_tokens)


def open_transformers(folder, threads, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without torch and transformers."""
    import torch
    import transformers

    from coordgen_rs.adapters.transformers import Drafted, TransformersHost

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    host = Reader(TransformersHost(model))
    costs = hosts.measured_costs(TransformersHost(model))
    options = {"plain": {}}
    for count in LOOKUPS:
        options[f"prompt lookup {count}"] = {"prompt_lookup_num_tokens": lambda count=count: count}
    for name, is_free in KINDS.items():
        given = None if is_free else costs
        options[name] = {"custom_generate": lambda given=given: Drafted(costs=given)}
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    found = {}
    for name, asked in options.items():
        hosted = Hosted(name, host, hosts.ROWS, None if KINDS.get(name, True) else costs, ends)
        found[name] = Transformers(name, model, torch, asked, stop_at_end, hosted)
    facts = {"package": "transformers", "version": version("transformers"), "step_us": costs}
    return Opened(found, facts | {"torch": version("torch"), "threads": threads})
