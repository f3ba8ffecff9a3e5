"""Keys and values of the committed tokens: fixed slots, which the host owns.

Slot `s` of a layer holds the key and value of the token at position `s`. On CPU (`KvCache`) a step
writes its rows to the slots after the committed ones; rows that are not committed are on no later
row's path, and overwritten by the next step. Elsewhere a step may output its rows, and the host
copies them. Recurrent layers have states beside them (`states.py`).
"""

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import copy_rows, move_rows
from coordgen_rs.errors import OptionError
from coordgen_rs.runtime.caches.states import StateArrays, States

KV_FORMS = ("f32", "f16", "q8")
"""How the cache of a `KvCache` may hold numbers: float32, float16, or 8 bits with a scale a head.

Rounding and order stand in `docs/kernels.md`; the first is the default.
"""

_SCALE_BYTES = 4

Pair = tuple[NDArray[Any], NDArray[Any]]


class Cache(ABC):
    """Keys and values of the committed tokens of one request.

    Args:
        layers: Per layer keys and values, `(sequences, kv_heads, slots, ..)`.

    Attributes:
        length: Number of committed tokens; their slots are `0 .. length - 1`.
        states: Those of recurrent layers; None where all layers have attention.
    """

    states: States | None = None

    def __init__(self, layers: Sequence[Pair]) -> None:
        self.length, self._layers = 0, layers

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all that is kept."""

    @abstractmethod
    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order: they ascend."""

    @abstractmethod
    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of copies, in place of all that is there."""

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens; where there are states, `reachable` ones."""
        self.length = length

    def first(self, length: int) -> list[Pair]:
        """Per layer the keys and values of the first committed tokens, without a copy."""
        return [(keys[:, :, :length], values[:, :, :length]) for keys, values in self._layers]

    def copied(self, length: int) -> list[Pair]:
        """Per layer copies of the keys and values of the first committed tokens."""
        return [(keys.copy(), values.copy()) for keys, values in self.first(length)]


class KvCache(Cache):
    """The cache of a request, or of several side by side: all layers, in place.

    Memory is taken by the system when a slot is first written. What stands in a row is the
    kernels' own: everybody else moves its bytes.

    Args:
        heads: Of each layer of the target that has keys and values of its own, the heads of these,
            and the numbers of a head.
        num_slots: Tokens that fit, including the rows of the widest step.
        form: How it holds them, one of `KV_FORMS`.
        num_sequences: Requests that have a cache of their own.
        state_arrays: Where the states of recurrent layers are, of as many sequences.

    Attributes:
        form: The `form` argument.
        num_sequences: The `num_sequences` argument.
        state_arrays: The `state_arrays` argument.
        values: Per layer keys and values, each `(num_sequences, kv_heads, num_slots, row_bytes)
            u8`. Bind them both as input and as output of the block that owns them.
        Others are those of `Cache`.

    Raises:
        OptionError: The form saves nothing for heads of this size.
    """

    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        num_slots: int,
        form: str = KV_FORMS[0],
        num_sequences: int = 1,
        state_arrays: StateArrays | None = None,
    ) -> None:
        shapes = [
            (num_sequences, num_kv_heads, num_slots, row_bytes(form, head_dim))
            for num_kv_heads, head_dim in heads
        ]
        self.num_sequences = num_sequences
        self._hold([(_zeros(it), _zeros(it)) for it in shapes], form, state_arrays)

    def _hold(
        self, layers: Sequence[Pair], form: str, states: StateArrays | None, number: int = 0
    ) -> None:
        super().__init__(layers)
        self.form, self.state_arrays = form, states
        self.states = None if states is None else States(states, number)
        self._all = [array for pair in layers for array in pair]
        shapes = dict.fromkeys(array.shape for array in self._all)
        self._by_shape = [
            [array for array in self._all if array.shape == shape] for shape in shapes
        ]
        from_numpy = onnxruntime.OrtValue.ortvalue_from_numpy
        self.values = [tuple(from_numpy(array) for array in pair) for pair in layers]

    def sequence(self, number: int) -> "KvCache":
        """The cache of one of the requests: the same memory."""
        cache, one = KvCache.__new__(KvCache), slice(number, number + 1)
        cache.num_sequences = self.num_sequences
        layers = [(keys[one], values[one]) for keys, values in self._layers]
        cache._hold(layers, self.form, self.state_arrays, number)
        return cache

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, states and snapshots."""
        of_states = 0 if self.states is None else self.states.nbytes
        return of_states + sum(array.nbytes for array in self._all)

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens, which `States.reachable` has found."""
        committed, self.length = self.length, 0
        if self.states is not None:
            self.states.rewind(length, committed)
        self.length = length

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last run, in path order.

        A path's rows ascend. Rows `0 .. n-1` are already in their slots; others are moved together,
        which changes no bit of what is computed from them.
        """
        if self.states is not None:
            self.states.commit(rows, self.length)  # first: what is not committed is not applied
        for arrays in self._by_shape:
            move_rows(arrays, rows, self.length)
        self.length += len(rows)

    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of copies, in place of all that is there."""
        self.length = 0
        copy_rows(self._all, [array for pair in layers for array in pair], length)
        self.length = length


def _zeros(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Zeros that take memory page by page, as they are written.

    NumPy asks for huge pages where arrays are large: those of several requests took half a second
    of a request's first token to be cleared, and all of a cache's memory for its first tokens.
    """
    num_bytes = math.prod(shape)
    if not num_bytes:
        return np.zeros(shape, np.uint8)
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8).reshape(shape)


def row_bytes(form: str, head_dim: int) -> int:
    """Bytes of a head's key or value; by them the kernels know the form.

    Raises:
        OptionError: The form saves nothing for heads of this size.
    """
    sizes = {"f32": 4 * head_dim, "f16": 2 * head_dim, "q8": head_dim + _SCALE_BYTES}
    if form == "q8" and sizes["q8"] >= sizes["f16"]:
        raise OptionError(
            f"kv_cache is 'q8', but the model's heads have {head_dim} numbers: with a scale they "
            "take no fewer bytes than in 'f16'"
        )
    return sizes[form]
