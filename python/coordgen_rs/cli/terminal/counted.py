"""Numbers of things as people write them: 1 token, 2 tokens."""


def counted(number: int, noun: str) -> str:
    """`number` and `noun`, which takes an s unless there is one of it."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
