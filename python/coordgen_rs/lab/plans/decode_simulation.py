"""What a token would cost with graphs of some widths, before they are compiled.

In: the time of a step by its rows, and how well drafts are accepted. Out: the expected time a token
for each width. It runs no model and plans no loads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordgen_rs.errors import OptionError


@dataclass(frozen=True)
class WidthFigures:
    """One width: its step in milliseconds, and what it brings."""

    rows: int
    step_ms: float
    tokens_per_step: float

    @property
    def ms_per_token(self) -> float:
        """Expected milliseconds per token."""
        return self.step_ms / self.tokens_per_step


def tokens_per_step(rows: int, acceptance_rate: float) -> float:
    """Expected tokens of a step over a chain of `rows - 1` draft tokens.

    Each draft token is right with the same chance, whatever came before it (Leviathan et al. 2023,
    Eq. 1): `(1 - rate ** rows) / (1 - rate)`.

    Raises:
        OptionError: The rate is not in [0, 1].
    """
    if not 0 <= acceptance_rate <= 1:
        raise OptionError(f"the acceptance rate is {acceptance_rate}, but must be 0 to 1")
    return sum(acceptance_rate**depth for depth in range(rows))


def step_us(step_us_by_width: Mapping[int, float], rows: int) -> float:
    """Microseconds of a step of `rows` rows: as in the profile, or on the line between two of it.

    Raises:
        OptionError: The profile has no such width between its own.
    """
    below = max((width for width in step_us_by_width if width <= rows), default=None)
    above = min((width for width in step_us_by_width if width >= rows), default=None)
    if below is None or above is None:
        known = ", ".join(map(str, sorted(step_us_by_width))) or "none"
        raise OptionError(f"the profile has steps of {known} rows, which do not enclose {rows}")
    if below == above:
        return step_us_by_width[rows]
    part = (rows - below) / (above - below)
    return (1 - part) * step_us_by_width[below] + part * step_us_by_width[above]


def simulate_decode(
    step_us_by_width: Mapping[int, float],
    widths: Sequence[int],
    *,
    acceptance_rate: float | None = None,
    known_tokens_per_step: Mapping[int, float] | None = None,
    drafting_us: float = 0.0,
) -> list[WidthFigures]:
    """Figures of each width, in the order of `widths`.

    Args:
        step_us_by_width: Measured steps; widths between them are interpolated.
        widths: Rows of the graphs to judge; a width of 1 drafts nothing.
        acceptance_rate: Chance that a draft token is right.
        known_tokens_per_step: Measured values to use instead, by width; 1 needs no entry.
        drafting_us: Microseconds of drafting, a step that drafts.

    Raises:
        OptionError: Not exactly one kind of acceptance is given, one is out of range or lacks a
            width, or a width is not within the profile's.
    """
    if (acceptance_rate is None) == (known_tokens_per_step is None):
        raise OptionError("give either an acceptance rate or tokens a step by width")
    if not 0 <= drafting_us < float("inf"):
        raise OptionError(f"drafting takes {drafting_us} us a step, but must take 0 or more")
    figures = []
    for rows in widths:
        time = step_us(step_us_by_width, rows) + (drafting_us if rows > 1 else 0.0)
        if acceptance_rate is not None:
            tokens = tokens_per_step(rows, acceptance_rate)
        else:
            tokens = _known(known_tokens_per_step or {}, rows)
        figures.append(WidthFigures(rows, time / 1e3, tokens))
    return figures


def _known(known_tokens_per_step: Mapping[int, float], rows: int) -> float:
    tokens = known_tokens_per_step.get(rows, 1.0 if rows == 1 else None)
    if tokens is None:
        raise OptionError(f"tokens a step of {rows} rows are not given")
    if not 1 <= tokens <= rows:
        raise OptionError(f"tokens a step of {rows} rows are {tokens}, but must be 1 to {rows}")
    return tokens
