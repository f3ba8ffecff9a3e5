"""How a model's makers recommend to draw from it: told to people, and never applied by itself.

In: what a generation_config.json says. Out: the values that a request can have, the others are left
out, as advice that cannot be followed is no damage.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Recommended:
    """The recommended sampling, as in `RequestOptions`; None for what nothing is said about."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def told(self) -> dict[str, float]:
        """What something is said about, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def recommended(generation: Mapping[str, Any]) -> Recommended | None:
    """The sampling of a generation_config.json; None where it has none, or draws nothing."""
    if generation.get("do_sample") is False:
        return None
    top_k = _within(generation, "top_k", 1, 2**32 - 1)
    found = Recommended(
        temperature=_within(generation, "temperature", 0, 100),
        top_k=int(top_k) if top_k is not None and top_k.is_integer() else None,
        top_p=_within(generation, "top_p", 1e-6, 1),
        min_p=_within(generation, "min_p", 0, 1),
        repetition_penalty=_within(generation, "repetition_penalty", 1e-6, 100),
    )
    return found if found.told() else None


def _within(generation: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = generation.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not least <= value <= most:
        return None
    return round(float(value), 6)  # files with float32 have more digits than anybody meant
