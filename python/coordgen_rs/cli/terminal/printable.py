"""Names from files on a terminal: what is printed must not steer it.

In: text that someone else wrote. Out: text without control characters, for a line that people read.
"""


def printable(text: str) -> str:
    r"""`text` with everything unprintable escaped as in Python, such as `\x1b` and `\u202e`."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
