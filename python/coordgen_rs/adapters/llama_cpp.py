"""llama.cpp as a host, by the low-level API of cyllama: any GGUF file on any of its backends.

In: an opened model and context. Out: a `Host` that verifies trees. A branch is a sequence: its
tokens carry the ids of all sequences that go through them, so a run of one batch sees each its own
path, and the accepted path is copied to all sequences when it is kept. Tokens are chosen by
llama.cpp's own sampler chain, one row at a time, so no logits are copied.

Versions: cyllama 0.2.18.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import EngineError, OptionError, arguments
from coordgen_rs.errors.extras import how_to_install_engine

PACKAGE = "cyllama"
COMMITS = ("canonical", "compact")


class LlamaHost:
    """A llama.cpp context.

    Args:
        library: The module `cyllama.llama.llama_cpp`.
        context: A `LlamaContext`, with a unified cache where it has more than one sequence: one for
            each branch of a tree; with one sequence it verifies chains.
        sampler: A `LlamaSampler`: how tokens are chosen.
        n_seq_max: Sequences of the context.
        commit: "canonical", the default: on CPU the bits of a chain do not depend on how many rows
            a batch has, but those of tokens behind a kept side branch do, because their keys stand
            in other cells. "compact" keeps side branches, too.

    Attributes:
        takes_trees: Same as in `Host`.
        commit: The `commit` argument.
        capacity: Same as in `Host`.
        vocab_size: Same as in `Host`.
        num_branches: Most branches of a tree.
        model: The context's `LlamaModel`: its chat template.
        vocab: Its `LlamaVocab`: the tokenizer.
        end_token_ids: Tokens that end an answer, according to the file.

    Raises:
        OptionError: `commit` is unknown; the context has fewer sequences, or keeps them apart; or
            the model has recurrent layers: their state cannot be taken back, so what a rejected
            draft left in it would change the answer.
    """

    def __init__(
        self, library: Any, context: Any, sampler: Any, n_seq_max: int, commit: str = "canonical"
    ) -> None:
        self._library, self._context, self._sampler = library, context, sampler
        if context.model.is_recurrent() or context.model.is_hybrid():
            raise OptionError(
                "the model has recurrent layers, whose state cannot be taken back, so drafts "
                "cannot be dropped: use llama.cpp's own loop"
            )
        _check_sequences(context, arguments.count("n_seq_max", n_seq_max))
        self.model, self.vocab = context.model, context.model.get_vocab()
        self.vocab_size: int = self.vocab.n_vocab
        self.capacity: int = context.n_ctx
        self.end_token_ids = [token for token in range(self.vocab_size) if self.vocab.is_eog(token)]
        self.takes_trees, self.commit = n_seq_max > 1, arguments.one_of("commit", commit, COMMITS)
        self.num_branches = n_seq_max
        self._sequences = list(range(n_seq_max))
        self._most = context.n_batch
        self._length = self._first_row = 0
        self._of_node: list[list[int]] = []

    def clear(self) -> None:
        """Forget all tokens, and reset the sampler."""
        self._context.memory_seq_rm(-1, -1, -1)
        self._sampler.reset()
        self._length = 0

    def cut(self, num_tokens: int) -> None:
        """Forget all but the first committed tokens: to answer a prompt again, say.

        Raises:
            OptionError: There are fewer.
            EngineError: llama.cpp cannot, or has dropped tokens that have left a window.
        """
        if not 0 <= num_tokens <= self._length:
            raise OptionError(f"cut({num_tokens}), but {self._length} tokens are committed")
        if 0 < num_tokens < self._length and self._context.memory_seq_pos_min(0) > 0:
            raise EngineError(
                "llama.cpp has dropped tokens that have left the model's window: open the context "
                "with swa_full, or clear it"
            )
        self._drop(-1, num_tokens)
        self._sampler.reset()
        self._length = num_tokens

    def read(self, token_ids: NDArray[np.uint32]) -> None:
        """Compute and commit a prompt, in batches of the context's size.

        Raises:
            EngineError: llama.cpp refuses a batch.
        """
        ids = token_ids.tolist()
        for first in range(0, len(ids), self._most):
            part = ids[first : first + self._most]
            places = range(self._length, self._length + len(part))
            self._decode(part, places, [self._sequences] * len(part), first_said=len(part) - 1)
            self._length, self._first_row = self._length + len(part), len(part) - 1

    def run(self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
        """Compute a tree.

        Raises:
            EngineError: llama.cpp refuses the batch.
            OptionError: It has more branches than the context has sequences.
        """
        of_node, depths = branches(parents.tolist(), len(self._sequences))
        places = [self._length + depth for depth in depths]
        self._of_node, self._first_row = of_node, 0
        self._decode(token_ids.tolist(), places, of_node, first_said=0)

    def choose(self, row: int) -> int:
        """What the sampler chooses after a node, or after the prompt."""
        return int(self._sampler.sample(self._context, self._first_row + row))

    def keep(self, rows: Sequence[int]) -> None:
        """Keep a path: in all sequences, without the other branches.

        Raises:
            EngineError: llama.cpp cannot drop the others.
        """
        start, end = self._length, self._length + len(rows)
        memory = self._context
        owners = self._of_node[rows[-1]] if rows else self._sequences
        if len(owners) < len(self._sequences):
            for other in set(self._sequences).difference(owners):
                self._drop(other, start)
        self._drop(-1, end)
        for other in set(self._sequences).difference(owners):
            memory.memory_seq_cp(owners[0], other, start, end)
        self._length = end

    def _drop(self, sequence: int, first: int) -> None:
        """Drop the tokens of a sequence, or of all sequences for -1, from a position on.

        Raises:
            EngineError: llama.cpp cannot.
        """
        if not self._context.memory_seq_rm(sequence, first, -1):
            raise EngineError(
                "llama.cpp cannot drop rejected drafts from this model's cache: use its own loop"
            )

    def _decode(
        self,
        token_ids: Sequence[int],
        places: Sequence[int],
        of_node: Sequence[Sequence[int]],
        *,
        first_said: int,
    ) -> None:
        """Run a batch; tokens can then be sampled after rows from `first_said` on.

        Raises:
            EngineError: llama.cpp refuses it.
        """
        batch = self._library.LlamaBatch(
            n_tokens=len(token_ids), embd=0, n_seq_max=len(self._sequences)
        )
        rows = zip(token_ids, places, of_node, strict=True)
        for row, (token, place, sequences) in enumerate(rows):
            batch.add(token, place, sequences, row >= first_said)
        try:
            self._context.decode(batch)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"llama.cpp cannot compute {len(token_ids)} rows: {error}") from error


def _check_sequences(context: Any, num_sequences: int) -> None:
    """Refuse a context whose sequences cannot be branches of one text.

    Raises:
        OptionError: It has fewer, gives each its own part of the cache, or drops what leaves the
            model's window only where one sequence holds it.
    """
    if num_sequences > context.n_seq_max:
        raise OptionError(
            f"n_seq_max is {num_sequences}, but the context has {context.n_seq_max} sequences"
        )
    if num_sequences > 1 and not context.params.kv_unified:
        raise OptionError("branches share a cache: open the context with kv_unified = True")
    has_window = any(key.endswith(".sliding_window") for key in context.model.metadata())
    if num_sequences > 1 and has_window and not context.params.swa_full:
        raise OptionError(
            "tokens of several branches never leave the model's window: open the context with "
            "swa_full = True, or with one sequence"
        )


def branches(parents: Sequence[int], num_sequences: int) -> tuple[list[list[int]], list[int]]:
    """The sequences that go through each node of a tree, and its depth.

    All sequences are used: a chain belongs to all of them, so that keeping it copies nothing.

    Raises:
        OptionError: There are more leaves than sequences.
    """
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    leaves = sorted(set(range(len(parents))).difference(parents[1:]))
    if len(leaves) > num_sequences:
        raise OptionError(
            f"the draft has {len(leaves)} branches, the context {num_sequences} sequences: open "
            "it with n_seq_max as large as the largest number of rows"
        )
    through: list[list[int]] = [[] for _ in parents]
    for sequence in range(num_sequences):
        node = leaves[sequence % len(leaves)]
        while node:
            through[node].append(sequence)
            node = parents[node]
        through[0].append(sequence)
    return through, depths


def open_host(
    path: str | Path,
    *,
    context: int = 4096,
    threads: int = 1,
    n_gpu_layers: int = 0,
    n_seq_max: int = 16,
    commit: str = "canonical",
    forbidden_ids: Sequence[int] = (),
) -> LlamaHost:
    """Open a GGUF file for greedy decoding; llama.cpp logs nothing from then on.

    Args:
        path: The file.
        context: Tokens of the cache; 0 for as many as the model was trained with.
        threads: Compute threads.
        n_gpu_layers: Layers that the backend computes.
        n_seq_max: Most branches of a tree; 1 verifies chains alone.
        commit: Same as in `LlamaHost`.
        forbidden_ids: Tokens that are never chosen.

    Raises:
        OptionError: The package `cyllama` is not installed, `commit` is unknown, or the model has
            recurrent layers.
        EngineError: llama.cpp cannot open the file, or has no room for its cache.
        ShapeError, TokenOutOfRangeError: The forbidden tokens are not those of the file.
    """
    arguments.count("context", context, least=0)
    arguments.count("n_seq_max", n_seq_max)
    try:
        from cyllama.llama import llama_cpp
    except ModuleNotFoundError as error:
        raise OptionError(
            f"llama.cpp is run by {PACKAGE}: {how_to_install_engine(PACKAGE)}"
        ) from error
    llama_cpp.disable_logging()
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.LlamaModelParams()
    model_params.n_gpu_layers = n_gpu_layers
    params = llama_cpp.LlamaContextParams()
    params.n_ctx, params.n_seq_max, params.kv_unified = context, n_seq_max, True
    params.n_threads = params.n_threads_batch = threads
    try:
        model = llama_cpp.LlamaModel(str(path), model_params)
        opened = llama_cpp.LlamaContext(model, params)
    except (RuntimeError, ValueError, OSError) as error:
        raise EngineError(f"llama.cpp cannot open {path}: {error}") from error
    sampler = llama_cpp.LlamaSampler(llama_cpp.LlamaSamplerChainParams())
    vocab_size = model.get_vocab().n_vocab
    forbidden = arguments.token_ids("forbidden_ids", forbidden_ids, vocab_size).tolist()
    if forbidden:
        sampler.add_logit_bias(vocab_size, [(token, float("-inf")) for token in forbidden])
    sampler.add_greedy()
    return LlamaHost(llama_cpp, opened, sampler, n_seq_max, commit)
