"""Text that comes piece by piece, and what reads it: generators that wait by `yield` for more.

In: pieces of text, put behind `ahead` between two steps of a generator. Out: what the generators
find. Each is a plain walk over the text, which waits wherever the next piece decides.
"""

from collections.abc import Generator


class TextBuffer:
    """The text that is not read yet.

    Attributes:
        ahead: The text.
    """

    def __init__(self) -> None:
        self.ahead = ""

    def take(self, num_chars: int) -> str:
        """Read the next characters."""
        text, self.ahead = self.ahead[:num_chars], self.ahead[num_chars:]
        return text

    def which(self, *marks: str) -> Generator[None, None, str]:
        """Wait for one of some marks; "" where something else comes.

        White space around marks is passed over, but the mark stays ahead.

        Args:
            marks: The marks; those that are empty or white space are none.
        """
        marks = tuple(filter(None, map(str.strip, marks)))
        while marks:
            rest = self.ahead.lstrip()
            if found := next(filter(rest.startswith, marks), ""):
                self.ahead = rest
                return found
            if rest and not any(mark.startswith(rest) for mark in marks):
                break
            yield
        return ""

    def skip(self, mark: str) -> Generator[None]:
        """Pass a mark, white space around it aside.

        Raises:
            ValueError: Something else comes.
        """
        found = yield from self.which(mark)
        if found != mark.strip():
            raise ValueError(f"no {mark}")
        self.take(len(found))


def begun_len(text: str, mark: str) -> int:
    """How many of a text's last characters may be the beginning of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
