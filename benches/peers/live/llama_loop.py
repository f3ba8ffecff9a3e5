"""llama.cpp's own loop as a live engine: batches and a greedy sampler, no server, by cyllama.

In: a GGUF file and threads. Out: `Opened` with one contestant, plain decoding: what the library
takes without the server's work around it.
"""

import time

from contest import Answer, Contestant
from live.process import Opened

PACKAGE = "cyllama"


class LlamaLoop(Contestant):
    """A context with one sequence."""

    name = "loop"

    def __init__(self, library, gguf, threads, context, stop_at_end):
        self._library = library
        params = library.LlamaContextParams()
        params.n_ctx, params.n_threads, params.n_threads_batch = context, threads, threads
        self._model = library.LlamaModel(str(gguf), library.LlamaModelParams())
        self._context = library.LlamaContext(self._model, params)
        self._most = params.n_batch
        vocab = self._model.get_vocab()
        self._ends = {token for token in range(vocab.n_vocab) if vocab.is_eog(token)}
        self._stop_at_end = stop_at_end
        self._sampler = library.LlamaSampler(library.LlamaSamplerChainParams())
        if not stop_at_end:
            biases = [(token, float("-inf")) for token in self._ends]
            self._sampler.add_logit_bias(vocab.n_vocab, biases)
        self._sampler.add_greedy()

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        token_ids = prompt.tolist()
        self._context.kv_cache_clear()
        start = time.perf_counter()
        for first in range(0, len(token_ids), self._most):
            self._decode(token_ids[first : first + self._most], first)
        tokens = [self._sampler.sample(self._context, -1)]
        begun = time.perf_counter()
        while len(tokens) < max_new_tokens and not self._ended(tokens[-1]):
            self._decode(tokens[-1:], len(token_ids) + len(tokens) - 1)
            tokens.append(self._sampler.sample(self._context, -1))
        end = time.perf_counter()
        return Answer(tokens, len(tokens) - 1, len(tokens) - 1, begun - start, end - begun)

    def _decode(self, token_ids, first):
        """Run the model over tokens that stand from position `first` on; logits of the last."""
        batch = self._library.LlamaBatch(n_tokens=len(token_ids), embd=0, n_seq_max=1)
        for index, token in enumerate(token_ids):
            batch.add(token, first + index, [0], index + 1 == len(token_ids))
        self._context.decode(batch)

    def _ended(self, token):
        return self._stop_at_end and token in self._ends


def open_engine(gguf, threads, context, stop_at_end):
    """`Opened`; raises ModuleNotFoundError without the package."""
    import cyllama
    from cyllama.llama import llama_cpp

    llama_cpp.llama_backend_init()
    loop = LlamaLoop(llama_cpp, gguf, threads, context, stop_at_end)
    facts = {"package": PACKAGE, "version": cyllama.__version__, "file": gguf.name}
    facts |= {"context": context, "threads": threads}
    return Opened({"plain": loop}, facts | {"about": f"{PACKAGE} {cyllama.__version__}, a wheel"})
