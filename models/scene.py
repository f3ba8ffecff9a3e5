"""What a task is made of: a context, and turns that ask about it. Holds no text of its own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One question or instruction about a context, its answer, and what the answer must contain."""

    question: str
    answer: str
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    """A context and the turns that ask about it."""

    task: str
    context: str
    turns: tuple[Turn, ...]
    drills: tuple[Turn, ...] = ()
    """Further turns for training alone, which asks as many as there is room for."""
