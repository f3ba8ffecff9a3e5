"""What an answer's steps say."""

from collections.abc import Iterable

from coordgen_rs import Step


def tokens_of(steps: Iterable[Step]) -> list[int]:
    """All new tokens."""
    return [token for step in steps for token in step.token_ids]
