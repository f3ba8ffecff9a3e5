"""Who has something for a while, such as a request its place."""

from dataclasses import dataclass


@dataclass(eq=False)
class Owner:
    """Who has something.

    Attributes:
        is_over: Whether it needs nothing any more, though an interrupt may have kept it from giving
            back what it had.
    """

    is_over: bool = False
