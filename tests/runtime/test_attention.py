"""The operator `Attention` in ONNX Runtime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

HEADS, KV_HEADS, DIM, SLOTS = 6, 2, 16, 100
LENGTHS = [70, 3]
PARENTS = [-1, -1, 0, 0, 1, 3, -1]
SEQUENCES = [0, 1, 0, 0, 1, 0, 0]
FLOAT, INTEGER, BYTE = TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT8
FORMS = ("f32", "f16", "q8")
INPUTS = {
    "rows": (FLOAT, 2),
    "cos": (FLOAT, 2),
    "sin": (FLOAT, 2),
    "key": (BYTE, 4),
    "value": (BYTE, 4),
    "parents": (INTEGER, 1),
    "sequences": (INTEGER, 1),
    "lengths": (INTEGER, 1),
    "span": (INTEGER, 1),
    "query_norm": (FLOAT, 1),
    "key_norm": (FLOAT, 1),
    "sinks": (FLOAT, 1),
    "value_norm": (FLOAT, 1),
}
NORMS = ("query_norm", "key_norm", "sinks", "value_norm")
MAYBE = ("cos", "sin", *NORMS)


def session_of(absent=MAYBE, **attributes):
    attributes = {
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": DIM,
        "scale": 0.25,
        "softcap": 0.0,
        "window": 0,
        "interleaved": 0,
        "epsilon": 1e-5,
        "shares_keys": 0,
    } | attributes
    outputs = ["attended"] if attributes["shares_keys"] else ["attended", "key_out", "value_out"]
    names = ["" if name in absent else name for name in INPUTS]
    node = helper.make_node("Attention", names, outputs, domain="ai.coordgen", **attributes)
    infos = [
        helper.make_tensor_value_info(name, kind, [f"{name}_{i}" for i in range(rank)])
        for name, (kind, rank) in INPUTS.items()
        if name not in absent
    ]
    given = [
        helper.make_tensor_value_info(name, kind, [f"{name}_{i}" for i in range(rank)])
        for name, (kind, rank) in zip(outputs, ((FLOAT, 2), (BYTE, 4), (BYTE, 4)), strict=False)
    ]
    graph = helper.make_graph([node], "attention", infos, given)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.coordgen", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    set_threads(None)
    return cpu_session(model.SerializeToString())


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
        binding = session.io_binding()
        part = {name: fed[name][node : node + 1] for name in ("rows", "cos", "sin")}
        for name, array in (fed | part | {"span": np.array([node, 1], np.int32)}).items():
            binding.bind_cpu_input(name, array)
        attended = np.zeros_like(whole[:1])
        for name, array in (
            ("attended", attended),
            *((n + "_out", fed[n]) for n in ("key", "value")),
        ):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(attended[0], whole[node])
    for name, cache in zip(("key", "value"), caches, strict=True):
        np.testing.assert_array_equal(fed[name], cache)


@pytest.mark.parametrize("form", ["f16", "q8"])
def test_rows_are_rounded_to_the_nearest_number_of_their_form(form):
    fed = inputs(form=form)
    heads = fed["rows"].reshape(len(PARENTS), -1, DIM)[:, HEADS + KV_HEADS :]
    heads[0, 0, :3] = 7e4, -1e30, 1e-9
    value = session_of(NORMS).run(None, fed)[2]
    of = [node for node, sequence in enumerate(SEQUENCES) if sequence == 0]
    found = numbers(value, form)[0, :, 70 : 70 + len(of)].swapaxes(0, 1)
    if form == "f16":
        expected = heads[of].clip(-65504, 65504).astype(np.float16)
    else:
        expected = numbers(stored(heads[of], form), form)
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(found).all()


def test_rows_of_no_form_are_refused_by_their_size():
    fed = inputs()
    for name in ("key", "value"):
        fed[name] = fed[name][..., : DIM + 3].copy()
    with pytest.raises(Exception, match="rows have 19 bytes, which no form has for 16 numbers"):
        session_of(NORMS).run(None, fed)


def test_a_layer_that_shares_keys_reads_those_of_another():
    fed = inputs()
    _, key, value = session_of(NORMS).run(None, fed)
    shared = fed | {"key": key, "value": value, "rows": fed["rows"][:, : HEADS * DIM].copy()}
    (attended,) = session_of(NORMS, shares_keys=1).run(None, shared)
    for node in range(len(PARENTS)):
        np.testing.assert_allclose(attended[node], twin(fed, node), atol=2e-5)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"parents": [-1, 1]}, "node 1 has the parent 1, which is no earlier node"),
        ({"sequences": [0, 1]}, "node 1 is of sequence 1, but its parent of 0"),
        ({"lengths": [99, 3]}, "node 1 needs slot 100 of 100"),
        ({"lengths": [-1, 3]}, "sequence 0 has the length -1"),
        ({"lengths": [70]}, "do not fit each other"),
        ({"span": [0, 0]}, "there is no row to compute"),
        ({"span": [1, 2]}, "2 rows from node 1 on do not fit into 2 rows and 2 nodes"),
        ({"span": [0]}, "do not fit each other"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changed, why):
    fed = {name: array for name, array in inputs().items() if name not in MAYBE}
    fed["rows"] = fed["rows"][:2]
    fed |= {"parents": np.array([-1, 0], np.int32), "sequences": np.zeros(2, np.int32)}
    fed["span"] = np.array([0, 2], np.int32)
    session = session_of()
    assert np.isfinite(session.run(["attended"], fed)[0]).all()
    with pytest.raises(Exception, match=why):  # ONNX Runtime has classes of its own
        session.run(None, fed | {name: np.array(x, np.int32) for name, x in changed.items()})


@pytest.mark.parametrize(
    "wrong", [{"heads": 5}, {"kv_heads": 0}, {"head_dim": 513}, {"head_dim": 0}]
)
def test_heads_that_cannot_be_are_refused(wrong):
    with pytest.raises(Exception, match="out of range"):
        session_of(**wrong)


@pytest.mark.parametrize("cap", [-1.0, 1e-39, float("inf"), float("nan")])
def test_a_cap_that_is_none_is_refused(cap):
    with pytest.raises(Exception, match="no positive number"):
        session_of(softcap=cap)


def test_rows_of_another_size_are_refused_before_anything_is_written():
    fed = {name: array for name, array in inputs().items() if name not in MAYBE}
    wide = fed["rows"][:2].reshape(1, -1)
    fed |= {"rows": wide, "parents": np.array([-1, 0], np.int32)}
    fed |= {"sequences": np.zeros(2, np.int32), "span": np.array([0, 2], np.int32)}
    with pytest.raises(Exception, match="do not fit each other"):
        session_of().run(None, fed)


def test_values_are_normed_where_there_is_a_norm_of_them():
    fed = {name: array for name, array in inputs().items() if name not in MAYBE}
    weight = np.random.default_rng(5).uniform(0.5, 2, DIM).astype(np.float32)
    plain, normed = session_of(), session_of(set(MAYBE) - {"value_norm"})
    got = normed.run(None, fed | {"value_norm": weight})
    heads = fed["rows"].reshape(len(PARENTS), -1, DIM).copy()
    values = heads[:, HEADS + KV_HEADS :]
    root = np.sqrt(np.square(values.astype(np.float64)).mean(-1, keepdims=True) + 1e-5)
    heads[:, HEADS + KV_HEADS :] = values / root * weight
    expected = plain.run(None, fed | {"rows": heads.reshape(len(PARENTS), -1)})
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-5)
    assert np.array_equal(got[1], expected[1])
    assert not np.array_equal(got[2], plain.run(None, fed)[2])
    with pytest.raises(Exception, match="do not fit each other"):
        normed.run(None, fed | {"value_norm": weight[1:]})


def test_rows_without_values_have_those_of_their_keys():
    fed = {name: array for name, array in inputs().items() if name not in MAYBE[2:]}
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
