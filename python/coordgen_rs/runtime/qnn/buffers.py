"""What the graphs of a target on Qualcomm's HTP read and write: integers, a mask of their own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.qnn import QnnTarget
from coordgen_rs.runtime.device import Buffers, ort_value


@dataclass(frozen=True)
class MaskIntegers:
    """How the graphs read a mask: the integers of a slot that a row sees, and of another."""

    seen: int
    unseen: int

    @classmethod
    def of(cls, target: QnnTarget) -> "MaskIntegers":
        """The mask integers of a bundle."""
        values = np.array([0, target.mask_value], np.float32)
        return cls(*map(int, target.mask.quantize(values)))


class BoundMask:
    """The mask that graphs of one width read, kept as the core's, but in integers.

    Args:
        array: `(..., rows, columns)`, the graphs' input.
        integers: How they read it.
        is_native: Whether new rows stand in their slots, and not behind all slots.
    """

    def __init__(
        self, array: NDArray[Any], integers: MaskIntegers, *, is_native: bool = False
    ) -> None:
        self._array, self._integers, self._is_native = array, integers, is_native
        self._past_len = 0
        array.fill(integers.unseen)

    def fill(self, drafted: NDArray[np.float32], start: int) -> None:
        """Show every row all slots before the run's, and of the new rows those on its path.

        Args:
            drafted: The core's mask `(1, 1, rows, slots) f32`, 0 for a slot that a row sees.
            start: The slot of row 0.
        """
        mask, seen, unseen = self._array, self._integers.seen, self._integers.unseen
        rows, columns = mask.shape[-2:]
        mask[..., self._past_len : start] = seen
        mask[..., start : self._past_len] = unseen
        first = start if self._is_native else columns - rows
        new = drafted[..., start : start + rows] == 0
        mask[..., first : first + rows] = np.where(new, seen, unseen)
        mask[..., first + rows :] = unseen
        self._past_len = start


class QnnBuffers(Buffers):
    """What the graphs read and write in one run; all but ids and the drafted mask are uint16.

    Args:
        arrays: Those of `Buffers`, in its order; the drafted mask has absolute slots as columns.
        slots: Slots of the cache; the graphs' mask is `(1, 1, rows, slots + rows) u16`.
        integers: How the graphs read the mask.
    """

    def __init__(self, *arrays: Any, slots: int, integers: MaskIntegers) -> None:
        super().__init__(*arrays)
        self._slots, self._integers = slots, integers
        mask = np.zeros((1, 1, self.rows, slots + self.rows), np.uint16)
        self._bound_mask = BoundMask(mask, integers)
        self.values["mask"] = ort_value(mask)

    @classmethod
    def of_rows(cls, rows: int, bundle: Bundle, target: QnnTarget) -> "QnnBuffers":
        """New buffers for `rows` tokens."""
        manifest, half = bundle.manifest, (1, 1, rows, len(bundle.manifest.inv_freq))
        ids, positions, by_row, states = masked_arrays(
            rows, manifest.slots + manifest.widths[-1], manifest.model.hidden_size, "uint16"
        )
        by_row |= {name: np.zeros(half, np.uint16) for name in ("cos", "sin")}
        integers = MaskIntegers.of(target)
        return cls(ids, positions, by_row, states, slots=manifest.slots, integers=integers)

    def before_run(self) -> None:
        """Turn the drafted mask into the graphs' own."""
        self._bound_mask.fill(self.by_row["mask"], int(self.write_index[0]))

    def _of(self, *arrays: Any) -> "QnnBuffers":
        return QnnBuffers(*arrays, slots=self._slots, integers=self._integers)


def masked_arrays(
    rows: int, columns: int, hidden_size: int, dtype: str
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    dict[str, NDArray[Any]],
    tuple[NDArray[Any], NDArray[Any]],
]:
    """Ids, positions, the drafted mask and hidden states: the first arguments of `Buffers`.

    Args:
        rows: Of the run.
        columns: Of the mask, as many at every width, so that a narrow step can be run under a wide
            graph.
        hidden_size: Of the hidden states.
        dtype: Of the hidden states.
    """
    ids, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    mask, size = np.zeros((1, 1, rows, columns), np.float32), (1, rows, hidden_size)
    return ids, positions, {"mask": mask}, (np.zeros(size, dtype), np.zeros(size, dtype))
