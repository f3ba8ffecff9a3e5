"""Marks in text that comes piece by piece."""


def begun_len(text: str, mark: str) -> int:
    """How many of a text's last characters may be the beginning of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
