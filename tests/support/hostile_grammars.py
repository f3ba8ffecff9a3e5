"""Grammars that cost much to compile or to follow, the same in every run.

In: a seed. Out: fields of a request that hold its answer to such a grammar.
"""

import json
import random
import string


def hostile_grammars(seed, num):
    """Fields of `num` requests, of each kind about as many."""
    chosen = random.Random(seed)
    for number in range(num):
        yield KINDS[number % len(KINDS)](chosen)


def words(chosen, num):
    return [f"w{chosen.randrange(10**6)}" for _ in range(num)]


def schema(made):
    return {"json_schema": made}


def nested(chosen):
    made = {"type": "integer"}
    for _ in range(chosen.randrange(5, 40)):
        kinds = ({"type": "array", "items": made}, {"properties": {"a": made, "b": made}})
        made = chosen.choice((*kinds, {"anyOf": [made, {"type": "array", "items": made}]}))
        if len(json.dumps(made)) > 100_000:
            break
    return schema(made if "anyOf" in made or "type" in made else made | {"type": "object"})


def alternation(chosen):
    some = words(chosen, int(10 ** chosen.uniform(2, 4.5)))
    texts = [{"lark": "start: " + " | ".join(map(json.dumps, some))}, {"regex": "|".join(some)}]
    return {"coordgen": chosen.choice(texts)}


def repeated(chosen):
    made = chosen.choice(string.ascii_lowercase)
    for _ in range(chosen.randrange(1, 5)):
        made = f"({made}|{chosen.choice('abc')}{{1,{chosen.randrange(2, 3000)}}})"
        made += f"{{{chosen.randrange(1, 9)},{chosen.randrange(9, 60_000)}}}"
    return {"coordgen": {"regex": made}}


def ambiguous(chosen):
    names = ["start", *string.ascii_lowercase[: chosen.randrange(1, 4)]]
    parts = [*names[1:], "/[a-z ]/", '"a"', 'start "b"'] + ["start"] * (len(names) == 1)

    def rule(name):
        ways = [" ".join(chosen.choices(parts, k=chosen.randrange(1, 6))) for _ in range(4)]
        return f"{name}: {' | '.join([*ways, '/[a-z ]/'])}"

    return {"coordgen": {"lark": "\n".join(map(rule, names))}}


def recursive(chosen):
    chars = chosen.choice(("[a-z ]", ".", "[^a]"))
    rest = chosen.choice(('root "x" root', "root root", 'root? "y" root?', '("(" root ")")*'))
    return {"grammar": f"root ::= {chars} | {rest} | {chars} {rest}"}


def intersection(chosen):
    nums = chosen.sample(range(2, 60), chosen.randrange(2, 30))
    strings = [{"type": "string", "pattern": f"a{{{num}}}"} for num in nums]
    multiples = [{"type": "integer", "multipleOf": num * 97 + 2} for num in nums]
    either = [{"anyOf": [{"type": "string", "maxLength": num}, {"type": "null"}]} for num in nums]
    lengths = " & ".join(f"/([a-z]{{{num}}})*/" for num in nums[:8])
    return chosen.choice(
        [
            *(schema({"allOf": parts}) for parts in (strings, multiples, either)),
            {"coordgen": {"lark": f"start: A\nA: {lengths}"}},
        ]
    )


def listed(chosen):
    some = words(chosen, int(10 ** chosen.uniform(2, 4.7)))
    properties = {"properties": {word: {"type": "integer"} for word in some[:20_000]}}
    return schema(chosen.choice([{"enum": some}, properties | {"type": "object"}]))


def exponential(chosen):
    apart = chosen.randrange(10, 400)
    return {"coordgen": {"regex": f"([a-z ])*{chosen.choice('aei')}([a-z ]){{{apart}}}"}}


KINDS = (nested, alternation, repeated, ambiguous, recursive, intersection, listed, exponential)
