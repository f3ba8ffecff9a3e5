"""Damages to files, each reproducible by its number: bits, bytes, and values of JSON."""

import json
from random import Random

HOSTILE = (
    *("null", "true", "-1", "0", "1", "7", "4294967296", "9223372036854775807"),
    *("1" + "0" * 30, "1" + "0" * 5_000, "1e308", "1e400", "1e-320", "Infinity", "NaN"),
    *('""', r'"\u0000"', r'"\ud800"', r'"..\\x"', '"/etc/passwd"', '"' + "x" * 10_000 + '"'),
    *("[]", "{}", "[null]", '{"a": 1, "a": 2}', "[" * 90 + "]" * 90, "[" * 200_000),
)
"""JSON texts that may stand where any other value is expected."""

_PLACE = "a place that no file has"


def damaged(content: bytes, random: Random) -> bytes:
    """The content with something wrong; a document of JSON mostly in one of its values."""
    if random.random() < 0.8:
        try:
            return _other_value(json.loads(content), random).encode()
        except ValueError:
            pass
    return random.choice((_flipped, _cut, _inserted, _dropped, _zeroed, _swapped))(content, random)


def _flipped(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def _inserted(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.randbytes(random.choice((1, 4, 300))) + content[at:]


def _dropped(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content))
    return content[:at] + content[at + random.choice((1, 4, 300)) :]


def _zeroed(content: bytes, random: Random) -> bytes:
    at, length = random.randrange(len(content)), random.choice((4, 64, 4096))
    return content[:at] + bytes(len(content[at : at + length])) + content[at + length :]


def _swapped(content: bytes, random: Random) -> bytes:
    """Two words of the content, wherever they stand, change places."""
    if len(content) < 16:
        return content[::-1]
    words = [content[at : at + 4] for at in range(0, len(content), 4)]
    one, other = random.randrange(len(words)), random.randrange(len(words))
    words[one], words[other] = words[other], words[one]
    return b"".join(words)


def _other_value(document: object, random: Random) -> str:
    places = list(_places(document))
    if not places:
        return random.choice(HOSTILE)
    container, key = random.choice(places)
    kind = random.randrange(4)
    if kind == 0:
        del container[key]
        return json.dumps(document)
    if kind == 1:
        other, other_key = random.choice(places)
        container[key], other[other_key] = other[other_key], container[key]
        try:
            return json.dumps(document)
        except ValueError:  # a part was moved into itself
            return random.choice(HOSTILE)
    container[key] = _PLACE
    return json.dumps(document).replace(f'"{_PLACE}"', random.choice(HOSTILE), 1)


def _places(document):
    """Every value inside: what holds it, and under which key."""
    keys = document if isinstance(document, dict) else range(len(document))
    for key in keys if isinstance(document, dict | list) else ():
        yield document, key
        if isinstance(document[key], dict | list):
            yield from _places(document[key])
