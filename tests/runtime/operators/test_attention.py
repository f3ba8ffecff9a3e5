"""The operator `Attention` in ONNX Runtime."""

import numpy as np
import pytest

from operators import BYTE, FLOAT, INTEGER, operator_session, run_in_place

HEADS, KV_HEADS, DIM, SLOTS = 6, 2, 16, 100
LENGTHS = [70, 3]
PARENTS = [-1, -1, 0, 0, 1, 3, -1]
SEQUENCES = [0, 1, 0, 0, 1, 0, 0]
FORMS = ("f32", "f16", "q8")
INPUTS = {
    **dict.fromkeys(("rows", "cos", "sin"), (FLOAT, 2)),
    **dict.fromkeys(("key", "value"), (BYTE, 4)),
    **dict.fromkeys(("parents", "sequences", "lengths", "span"), (INTEGER, 1)),
    **dict.fromkeys(("query_norm", "key_norm", "sinks", "value_norm"), (FLOAT, 1)),
}
OUTPUTS = {"attended": (FLOAT, 2), "key_out": (BYTE, 4), "value_out": (BYTE, 4)}
ATTRIBUTES = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "scale": 0.25, "softcap": 0.0}
ATTRIBUTES |= {"window": 0, "interleaved": 0, "epsilon": 1e-5, "shares_keys": 0}
NORMS = ("query_norm", "key_norm", "sinks", "value_norm")
MAYBE = ("cos", "sin", *NORMS)


def session_of(absent=MAYBE, **attributes):
    names = ("attended",) if attributes.get("shares_keys") else OUTPUTS
    outputs = {name: OUTPUTS[name] for name in names}
    return operator_session("Attention", INPUTS, outputs, absent, **(ATTRIBUTES | attributes))


def stored(x, form):
    """The rows of a cache, `(.., row_bytes)`."""
    if form == "q8":
        scales = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        with np.errstate(invalid="ignore"):
            integers = np.rint(x / scales).astype(np.int8)
        return np.concatenate([integers.view(np.uint8), scales.view(np.uint8)], axis=-1)
    return x.astype({"f32": np.float32, "f16": np.float16}[form]).view(np.uint8)


def numbers(rows, form):
    """What the rows of a cache hold, in float64."""
    if form == "q8":
        integers, scales = rows[..., :DIM].copy(), rows[..., DIM:].copy()
        return integers.view(np.int8).astype(np.float64) * scales.view(np.float32)
    return rows.view({"f32": np.float32, "f16": np.float16}[form]).astype(np.float64)


def bare(maybe=MAYBE):
    """The inputs but for those that may be absent."""
    return {name: array for name, array in inputs().items() if name not in maybe}


def inputs(padding=0, form="f32"):
    """All inputs; slots that nothing was written to are not numbers."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((len(PARENTS), (HEADS + 2 * KV_HEADS) * DIM), np.float32)
    angles = random.uniform(0, 6, (len(PARENTS), DIM // 2)).astype(np.float32)
    caches = random.standard_normal((2, 2, KV_HEADS, SLOTS, DIM), np.float32)
    for sequence, length in enumerate(LENGTHS):
        caches[:, sequence, :, length:] = np.nan
    padded = ((0, padding), (0, 0))
    return {
        "rows": np.pad(rows, padded, constant_values=np.nan),
        "cos": np.pad(np.cos(angles), padded),
        "sin": np.pad(np.sin(angles), padded),
        "key": stored(caches[0], form),
        "value": stored(caches[1], form),
        "parents": np.array(PARENTS, np.int32),
        "sequences": np.array(SEQUENCES, np.int32),
        "lengths": np.array(LENGTHS, np.int32),
        "span": np.array([0, len(PARENTS)], np.int32),
    }


def rotated(heads, cos, sin):
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def twin(fed, node, form="f32"):
    """What a node attends to, in float64, but for what a cache rounds."""
    cached = {name: numbers(fed[name], form) for name in ("key", "value")}
    path = [node]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    heads = fed["rows"].astype(np.float64).reshape(len(fed["rows"]), -1, DIM)
    cos, sin = (fed[name][:, None].astype(np.float64) for name in ("cos", "sin"))
    keys = rotated(heads[:, HEADS : HEADS + KV_HEADS], cos, sin)[path]
    query = rotated(heads[:, :HEADS], cos, sin)[node]
    sequence = SEQUENCES[node]
    length = LENGTHS[sequence]
    attended = []
    for head in range(HEADS):
        of = head // (HEADS // KV_HEADS)
        key = np.concatenate([cached["key"][sequence, of, :length], keys[:, of]])
        values = heads[path, HEADS + KV_HEADS + of]
        value = np.concatenate([cached["value"][sequence, of, :length], values])
        scores = key @ query[head] * 0.25
        weights = np.exp(scores - scores.max())
        attended.append(weights @ value / weights.sum())
    return np.concatenate(attended)


@pytest.mark.parametrize(("form", "near"), list(zip(FORMS, (2e-5, 2e-3, 2e-2), strict=True)))
def test_each_node_attends_to_its_path(form, near):
    fed = inputs(padding=2, form=form)
    session = session_of(NORMS)
    attended, *caches = session.run(None, fed)
    for node in range(len(PARENTS)):
        np.testing.assert_allclose(attended[node], twin(fed, node, form), atol=near)
    np.testing.assert_array_equal(attended[len(PARENTS) :], 0)
    for rows, name in zip(caches, ("key", "value"), strict=True):
        np.testing.assert_array_equal(rows[0, :, :70], fed[name][0, :, :70])
        cache = numbers(rows, form)
        assert np.isfinite(cache[0, :, 70:75]).all()
        assert np.isnan(cache[0, :, 75:]).all()
        assert np.isnan(cache[1, :, 5:]).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_tree_read_in_parts_into_one_cache_has_the_same_bits(form):
    fed = inputs(form=form)
    session = session_of(NORMS)
    whole, *caches = session.run(None, fed)
    for node in range(len(PARENTS)):
        part = {name: fed[name][node : node + 1] for name in ("rows", "cos", "sin")}
        part["span"], attended = np.array([node, 1], np.int32), np.zeros_like(whole[:1])
        written = {"attended": attended, "key_out": fed["key"], "value_out": fed["value"]}
        run_in_place(session, fed | part, written)
        np.testing.assert_array_equal(attended[0], whole[node])
    for name, cache in zip(("key", "value"), caches, strict=True):
        np.testing.assert_array_equal(fed[name], cache)


def test_a_layer_that_shares_keys_reads_those_of_another():
    fed = inputs()
    _, key, value = session_of(NORMS).run(None, fed)
    shared = fed | {"key": key, "value": value, "rows": fed["rows"][:, : HEADS * DIM].copy()}
    (attended,) = session_of(NORMS, shares_keys=1).run(None, shared)
    for node in range(len(PARENTS)):
        np.testing.assert_allclose(attended[node], twin(fed, node), atol=2e-5)


def integers(*values):
    return np.array(values, np.int32)


NO_HEADS = {"heads": 5, "kv_heads": 0, "head_dim": 513}
NO_CAPS = (-1.0, 1e-39, float("inf"), float("nan"))
NO_FORM = dict.fromkeys(("key", "value"), np.zeros((2, KV_HEADS, SLOTS, DIM + 3), np.uint8))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"parents": integers(-1, 1)}, "node 1 has the parent 1, which is no earlier node"),
        ({"sequences": integers(0, 1)}, "node 1 is of sequence 1, but its parent of 0"),
        ({"lengths": integers(99, 3)}, "node 1 needs slot 100 of 100"),
        ({"lengths": integers(-1, 3)}, "sequence 0 has the length -1"),
        ({"lengths": integers(70)}, "do not fit each other"),
        ({"span": integers(0, 0)}, "there is no row to compute"),
        ({"span": integers(1, 2)}, "2 rows from node 1 on do not fit into 2 rows and 2 nodes"),
        ({"span": integers(0)}, "do not fit each other"),
        ({"rows": np.zeros((1, 2 * (HEADS + 2 * KV_HEADS) * DIM), np.float32)}, "do not fit each"),
        ({"value_norm": np.ones(DIM - 1, np.float32)}, "do not fit each other"),
        (NO_FORM, "rows have 19 bytes, which no form has for 16 numbers"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changed, why):
    fed = bare()
    fed |= {"rows": fed["rows"][:2], "parents": integers(-1, 0), "sequences": integers(0, 0)}
    fed["span"] = integers(0, 2)
    assert np.isfinite(session_of().run(["attended"], fed)[0]).all()
    session = session_of([name for name in MAYBE if name not in changed])
    with pytest.raises(Exception, match=why):  # ONNX Runtime has classes of its own
        session.run(None, fed | changed)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        *(({name: number}, "out of range") for name, number in NO_HEADS.items()),
        *(({"softcap": cap}, "no positive number") for cap in NO_CAPS),
    ],
)
def test_attributes_that_cannot_be_are_refused(wrong, why):
    with pytest.raises(Exception, match=why):
        session_of(**wrong)


def test_rows_without_values_have_those_of_their_keys():
    fed = bare(NORMS)
    norm = {"key_norm": np.linspace(1, 2, DIM, dtype=np.float32)}
    session = session_of(("query_norm", "sinks", "value_norm"))
    heads = fed["rows"].reshape(len(PARENTS), -1, DIM)
    keys = heads[:, HEADS : HEADS + KV_HEADS]
    both = np.concatenate([heads[:, : HEADS + KV_HEADS], keys], axis=1)
    expected = session.run(None, fed | norm | {"rows": both.reshape(len(PARENTS), -1)})
    alone = np.ascontiguousarray(heads[:, : HEADS + KV_HEADS]).reshape(len(PARENTS), -1)
    got = session.run(None, fed | norm | {"rows": alone})
    for one, other in zip(got, expected, strict=True):
        assert np.array_equal(one, other, equal_nan=one.dtype == np.float32)
