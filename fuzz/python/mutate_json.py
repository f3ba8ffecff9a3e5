"""Changes JSON as a hostile hand would: a value for another, a field gone, a nest of brackets.

In: a document, or lines of them, as bytes. Out: another one, valid JSON in most cases. Bytes that
are no JSON are left to the fuzzer, which also gets every third input of those that are.
"""

import json
import random
from typing import Any

import atheris

_NEST = "\x00nest"
_HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**24, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400),
    *(0.5, -0.0, 1e-300, 1e300, float("inf"), float("nan")),
    *(
        "",
        ".",
        "..",
        "a/b",
        "/etc/passwd",
        "..\\x",
        "C:x",
        "\x00",
        "\ud800",
        "\ufeff",
        "é",
        "x" * 300,
    ),
    *([], {}, [[]], [None], [0, 0], ["x"], {"": 0}, {"1": 1}, _NEST),
]


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """A change of one of the documents in `data`, which stand on lines of their own."""
    rng = random.Random(seed)
    if rng.randrange(3):
        lines = data.split(b"\n")
        number = rng.randrange(len(lines))
        try:
            # A document that is printed over many lines is one.
            whole = json.loads(data)
            lines, number = [data], 0
        except ValueError:
            try:
                whole = json.loads(lines[number])
            except (ValueError, RecursionError):
                return bytes(atheris.Mutate(data, max_size))
        except RecursionError:
            return bytes(atheris.Mutate(data, max_size))
        lines[number] = _text(_changed(whole, rng), rng)
        if len(changed := b"\n".join(lines)) <= max_size:
            return changed
    return bytes(atheris.Mutate(data, max_size))


def _text(document: Any, rng: random.Random) -> bytes:
    text = json.dumps(document, ensure_ascii=bool(rng.randrange(4)))
    depth = rng.choice([2, 50, 101, 1_500])
    text = text.replace(json.dumps(_NEST), "[" * depth + "]" * depth)
    return text.encode("utf-8", "surrogatepass")


def _changed(document: Any, rng: random.Random) -> Any:
    places = list(_places([document]))
    container, key = rng.choice(places)
    top = places[0][0]
    match rng.randrange(6):
        case 0 if isinstance(container, dict):
            del container[key]
        case 1 if isinstance(container, dict):
            container[rng.choice(["", "0", "-1", "x", "\ud800"])] = container[key]
        case 2:
            other, name = rng.choice(places)
            if other is not top and container is not top:
                container[key] = json.loads(json.dumps(other[name]))
        case 3 if isinstance(container[key], list):
            container[key] = container[key] * rng.randrange(4)
        case 4 if isinstance(container[key], int | float):
            container[key] = container[key] * rng.choice([-1, 1, 2]) + rng.choice([-1, 0, 1])
        case _:
            container[key] = rng.choice(_HOSTILE)
    return top[0]


def _places(container: Any) -> Any:
    """Every list or object with each of its keys, the outermost first."""
    keys = range(len(container)) if isinstance(container, list) else list(container)
    for key in keys:
        yield container, key
        if isinstance(container[key], list | dict):
            yield from _places(container[key])
