"""What was asked of a target's experts, and what of it had to be read.

In: what their store counts. Out: a record, for people and as JSON.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from coordgen_rs._core import ExpertStore


@dataclass(frozen=True)
class ExpertReport:
    """What was asked of experts, and what of it had to be read.

    Attributes:
        asked: Experts that layers have chosen, each once in a run of the layer.
        misses: Those of them that were not in memory.
        read_bytes: Bytes that were read, ahead or not.
        waited_s: Seconds in which layers waited for reads.
        ahead: Experts that were read ahead, or in part.
        ahead_used: Those of them that were chosen.
        ahead_wasted: Those of them that were dropped before.
        wasted_bytes: Bytes that were read of these.
        held_bytes: Bytes of experts in memory, now.
    """

    asked: int
    misses: int
    read_bytes: int
    waited_s: float
    ahead: int
    ahead_used: int
    ahead_wasted: int
    wasted_bytes: int
    held_bytes: int

    @classmethod
    def of(cls, store: "ExpertStore") -> Self:
        """What a store has done so far."""
        told = store.report()
        return cls(waited_s=told.pop("waited_us") / 1e6, **told)

    def since(self, before: "ExpertReport") -> "ExpertReport":
        """What came of it after `before`."""
        held = {"held_bytes": self.held_bytes}
        counts = {name: count - getattr(before, name) for name, count in asdict(self).items()}
        return ExpertReport(**(counts | held))

    def __str__(self) -> str:
        """The figures that people ask for first, on one line."""
        share = 100 * self.misses / self.asked if self.asked else 0.0
        return (
            f"{self.asked:,} asked for, {share:.1f} % of them not in memory; "
            f"{self.read_bytes / 1e9:.2f} GB read, {self.waited_s:.2f} s waited; "
            f"{self.ahead:,} read ahead, {self.ahead_used:,} of them used"
        )

    def to_json(self) -> dict[str, Any]:
        """The figures under the names that `coordgen generate --json` prints."""
        return asdict(self) | {"waited_s": round(self.waited_s, 6)}
