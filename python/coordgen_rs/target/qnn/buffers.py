"""What the graphs of a target on Qualcomm's HTP read and write: integers, a mask of their own."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import QnnTarget
from coordgen_rs.target.buffers import Buffers, ort_value


@dataclass(frozen=True)
class MaskIntegers:
    """How the graphs read a mask: `(1, 1, rows, slots + rows) u16`, new rows after all slots."""

    slots: int
    seen: int
    unseen: int

    @classmethod
    def of(cls, target: QnnTarget, slots: int) -> "MaskIntegers":
        """The mask integers of a bundle."""
        values = np.array([0, target.mask_value], np.float32)
        seen, unseen = map(int, target.mask.quantize(values))
        return cls(slots, seen, unseen)


class QnnBuffers(Buffers):
    """What the graphs read and write in one run; all but ids and the drafted mask are uint16.

    Args:
        arrays: Those of `Buffers`, in its order; the drafted mask has absolute slots as columns.
        integers: How the graphs read the mask.
    """

    def __init__(self, *arrays: Any, integers: MaskIntegers) -> None:
        super().__init__(*arrays)
        self._integers, self._past_len = integers, 0
        shape = (1, 1, self.rows, integers.slots + self.rows)
        self._bound_mask = np.full(shape, integers.unseen, np.uint16)
        del self.values["write_index"]
        self.values["mask"] = ort_value(self._bound_mask)

    @classmethod
    def of_rows(cls, rows: int, bundle: Bundle, target: QnnTarget) -> "QnnBuffers":
        """New buffers for `rows` tokens."""
        manifest, model = bundle.manifest, bundle.manifest.model
        half, hidden = (1, 1, rows, len(manifest.inv_freq)), (1, rows, model.hidden_size)
        ids, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        # As many columns at every width, so that a narrow step can be run under a wide graph.
        mask = np.zeros((1, 1, rows, manifest.slots + manifest.widths[-1]), np.float32)
        by_row = {"mask": mask, "cos": np.zeros(half, np.uint16), "sin": np.zeros(half, np.uint16)}
        states = np.zeros(hidden, np.uint16), np.zeros(hidden, np.uint16)
        integers = MaskIntegers.of(target, manifest.slots)
        return cls(ids, positions, by_row, states, integers=integers)

    def part(self, first: int, rows: int) -> "QnnBuffers":
        """The buffers of some consecutive rows: views, but for the write index and the mask."""
        views = self._views(slice(first, first + rows))
        return QnnBuffers(*views, integers=self._integers)

    def before_run(self) -> None:
        """Turn the drafted mask into the graphs' own; every row sees all slots before the run's."""
        start, mask, integers = int(self.write_index[0]), self._bound_mask, self._integers
        mask[..., self._past_len : start] = integers.seen
        mask[..., start : self._past_len] = integers.unseen
        drafted = self.mask[..., start : start + self.rows]
        mask[..., integers.slots :] = np.where(drafted == 0, integers.seen, integers.unseen)
        self._past_len = start
