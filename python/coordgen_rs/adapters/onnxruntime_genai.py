"""ONNX Runtime GenAI as a host: its own folders on its own providers, CUDA or DirectML say.

In: an opened `onnxruntime_genai.Model`. Out: a `Host` that verifies chains: GenAI's mask says
no tree. Decoding is greedy. On CPU `open_session(folder)` verifies trees on the same files.

Versions: onnxruntime-genai 0.18. Models whose cache cannot be rewound (sliding windows, recurrent
layers, pipelines) are refused when they are opened: two tokens are read and one is taken back.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError, arguments

_LEAST_ROWS = 2


class GenaiHost:
    """A GenAI model.

    Attention there has a kernel of its own for one row, whose bits are not those of two and more.
    So a step without a draft runs a second row, which is dropped: then all steps agree.

    Args:
        model: An `onnxruntime_genai.Model`.
        vocab_size: Number of columns of its logits (`model.vocab_size` in genai_config.json).
        capacity: Tokens of its cache (`model.context_length`, or less).
        forbidden_ids: Tokens that are never chosen.
        padded: Whether a step without a draft has a second row; without it, it is faster, and its
            tokens those of GenAI's own loop but for near ties.

    Attributes:
        takes_trees: False.
        commit: Has no meaning for chains.
        capacity: Same as in `Host`.
        vocab_size: Same as in `Host`.

    Raises:
        OptionError: The capacity or the vocabulary is not the model's, or its cache cannot be
            rewound.
        ShapeError, TokenOutOfRangeError: The forbidden tokens are not in the vocabulary.
    """

    takes_trees = False
    commit = "canonical"

    def __init__(
        self,
        model: Any,
        vocab_size: int,
        capacity: int,
        *,
        forbidden_ids: Sequence[int] = (),
        padded: bool = True,
    ) -> None:
        self._genai = importlib.import_module(type(model).__module__.partition(".")[0])
        self._model = model
        self.vocab_size = arguments.count("vocab_size", vocab_size)
        self.capacity = arguments.count("capacity", capacity)
        self._forbidden = arguments.token_ids("forbidden_ids", forbidden_ids, vocab_size).tolist()
        self._padded = padded
        self._rows = np.zeros((0, vocab_size), np.float32)
        self._length = 0
        self._try()
        self.clear()

    def _try(self) -> None:
        """Refuse a model that does not do what drafts need, before there is a request.

        Raises:
            OptionError: It does not.
        """
        try:
            self.clear()
            self._generator.append_tokens(np.zeros(2, np.int32)[: self.capacity])
            num_columns = self._generator.get_logits().size
            self._generator.rewind_to(min(1, self.capacity - 1))
        except RuntimeError as error:
            raise OptionError(
                f"ONNX Runtime GenAI cannot take tokens back with this model, or not with a "
                f"capacity of {self.capacity}: {error}"
            ) from error
        if num_columns != self.vocab_size:
            raise OptionError(
                f"vocab_size is {self.vocab_size}, but the logits have {num_columns} columns"
            )

    def clear(self) -> None:
        """Forget all tokens, by making a new generator."""
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=self.capacity, do_sample=False)
        self._generator = self._genai.Generator(self._model, params)
        self._length = 0

    def read(self, token_ids: NDArray[np.uint32]) -> None:
        """Compute and commit a prompt."""
        self._generator.append_tokens(token_ids.astype(np.int32))
        self._rows = self._generator.get_logits().reshape(1, self.vocab_size)
        self._length += len(token_ids)

    def run(self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32]) -> None:
        """Compute a chain."""
        num_rows = len(token_ids)
        if self._padded and num_rows < _LEAST_ROWS and self._length + 1 < self.capacity:
            token_ids = np.append(token_ids, token_ids[:1])
        self._generator.append_tokens(token_ids.astype(np.int32))
        logits = self._generator.get_output("logits")
        self._rows = logits.reshape(-1, self.vocab_size)[-len(token_ids) :][:num_rows]

    def choose(self, row: int) -> int:
        """The likeliest token."""
        return int(self.scores(row).argmax())

    def scores(self, row: int) -> NDArray[np.float32]:
        """The logits after a node, `(vocab_size,) f32`."""
        scores: NDArray[np.float32] = self._rows[row]
        if self._forbidden:
            scores = scores.copy()
            scores[self._forbidden] = -np.inf
        return scores

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the first rows of the chain."""
        self._length += len(rows)
        self._generator.rewind_to(self._length)
