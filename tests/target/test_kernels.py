"""The crate's kernels in ONNX Runtime, beside the functions whose place they take."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from checkpoints import exported, write_checkpoint
from coordgen_rs import open_session
from coordgen_rs.errors import ProviderError
from coordgen_rs.opening import session as opening
from coordgen_rs.opening.costs import device_facts
from coordgen_rs.target import onnx_runtime
from coordgen_rs.target.onnx_runtime import cpu_session, kernel_library, set_threads
from coordgen_rs.tools.export.cpu import w8a8
from coordgen_rs.tools.export.graph_builder import GraphBuilder, float_info
from graph_runner import GraphRunner, tokens

FUNCTIONS = {
    w8a8.FINE_ROWS: (1, ("rows", "scale")),
    w8a8.NORM_ROWS: (2, ("rows", "scale")),
    w8a8.FINE_NORM_ROWS: (2, ("rows", "scale")),
    w8a8.JOIN_NORM_ROWS: (4, ("stream", "rows", "scale")),
    w8a8.FINE_GATE_ROWS: (2, ("rows", "scale")),
    w8a8.JOINED: (2, ("joined",)),
}


def model_of(function):
    """A model that calls a function on inputs of any sizes."""
    num_inputs, outputs = FUNCTIONS[function]
    graph = GraphBuilder()
    names = [f"input_{index}" for index in range(num_inputs)]
    attributes = {"epsilon": 1e-5} if "Norm" in function else {}
    graph.call(w8a8.function(function, 24), names, *outputs, **attributes)
    kinds = {"rows": onnx.TensorProto.UINT8}
    infos = [
        helper.make_tensor_value_info(name, kinds.get(name, onnx.TensorProto.FLOAT), None)
        for name in outputs
    ]
    shapes = dict.fromkeys(names, ("m", "n")) | {"input_1": ("k", "l")}
    if "Norm" in function:
        shapes[names[-1]] = ("k",)
    inputs = [float_info(name, *shapes[name]) for name in names]
    return graph.model("one", inputs, infos, 24).SerializeToString()


def inputs_of(function, rows, size):
    """Inputs for a function, with rows of zeros, of one number, and of very different sizes."""
    random = np.random.default_rng(rows * size)

    def matrix(columns):
        values = random.standard_normal((rows, columns)).astype(np.float32)
        values *= np.exp2(random.integers(-20, 20, (rows, 1))).astype(np.float32)
        values[::5] = 0
        values[1::5] = np.where(np.arange(columns) == columns // 2, 3, 0)
        return values

    def two_matrices(columns):
        return np.concatenate([matrix(columns), matrix(columns)])

    weight = random.standard_normal(size).astype(np.float32)
    scales = np.abs(random.standard_normal((rows, 1))).astype(np.float32)
    return {
        w8a8.FINE_ROWS: [matrix(size)],
        w8a8.NORM_ROWS: [matrix(size), weight],
        w8a8.FINE_NORM_ROWS: [matrix(size), weight],
        w8a8.JOIN_NORM_ROWS: [matrix(size), two_matrices(size), scales, weight],
        w8a8.FINE_GATE_ROWS: [matrix(2 * size), scales],
        w8a8.JOINED: [two_matrices(size), scales],
    }[function]


def both_ways(model, inputs):
    """Outputs of the kernel, and of the function."""
    set_threads(None)
    fed = {f"input_{index}": value for index, value in enumerate(inputs)}
    without_kernels = ort.InferenceSession(model, onnx_runtime.shared_options())
    return cpu_session(model).run(None, fed), without_kernels.run(None, fed)


def assert_nearly_the_same_rows(got, wanted, scales):
    """Rows, or fine ones; of a row of zeros they may hold anything, as its scale is zero."""
    got, wanted = (it.astype(int).reshape(-1, *scales.shape, it.shape[1]) for it in (got, wanted))
    got, wanted = got[:, scales != 0], wanted[:, scales != 0]
    unlike = got[0] != wanted[0]
    assert np.abs(got[0] - wanted[0]).max(initial=0) <= 1
    assert unlike.sum() <= 2 + 1e-2 * unlike.size
    if len(got) == 2:  # where the rows differ, the rests make up for it
        numbers, expected = (it[0] * 254 + it[1] for it in (got, wanted))
        assert np.abs(numbers - expected).max(initial=0) <= 2


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 7), (9, 64), (300, 576)])
def test_a_kernel_computes_what_its_function_says(function, rows, size):
    inputs = inputs_of(function, rows, size)
    kernel, expected = both_ways(model_of(function), inputs)
    for name, got, wanted in zip(FUNCTIONS[function][1], kernel, expected, strict=True):
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        if name == "rows":
            assert_nearly_the_same_rows(got, wanted, expected[-1][:, 0])
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_row_does_not_depend_on_the_others(function):
    set_threads(None)
    inputs = inputs_of(function, 300, 576)
    session = cpu_session(model_of(function))

    def run(rows):
        """Of all inputs and outputs, some rows; with those of their rests."""
        parts = [some_rows(value, rows) for value in inputs]
        return session.run(None, {f"input_{i}": value for i, value in enumerate(parts)})

    whole = run(slice(None))
    for rows in (slice(0, 1), slice(7, 8), slice(120, 152), slice(299, 300)):
        for all_rows, some in zip(whole, run(rows), strict=True):
            assert np.array_equal(some_rows(all_rows, rows), some)


def some_rows(values, rows):
    """Those of 300, or of 300 and their rests; what has no rows as it is."""
    if len(values) not in (300, 600):
        return values
    return values.reshape(-1, 300, values.shape[1])[:, rows].reshape(-1, values.shape[1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_not_finite_reaches_the_scale(monkeypatch, function, value):
    inputs = inputs_of(function, 4, 40)
    inputs[0][2, 33] = value
    inputs[-1] = np.ones_like(inputs[-1]) if len(inputs) > 1 else inputs[-1]
    for outputs in both_ways(model_of(function), inputs):
        assert not np.isfinite(outputs[-1][2]).all()


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (w8a8.FINE_ROWS, [(0, 8)]),
        (w8a8.NORM_ROWS, [(3, 0), (0,)]),
        (w8a8.NORM_ROWS, [(3, 8), (7,)]),
        (w8a8.JOIN_NORM_ROWS, [(3, 8), (3, 8), (3, 1), (8,)]),
        (w8a8.JOIN_NORM_ROWS, [(3, 8), (6, 8), (2, 1), (8,)]),
        (w8a8.FINE_GATE_ROWS, [(3, 7), (3, 1)]),
        (w8a8.FINE_GATE_ROWS, [(3, 8), (2, 1)]),
        (w8a8.JOINED, [(3, 8), (1, 1)]),
        (w8a8.JOINED, [(4, 8), (1, 1)]),
    ],
)
def test_sizes_that_do_not_fit_are_an_error_and_nothing_is_read(function, sizes):
    set_threads(None)
    fed = {f"input_{index}": np.ones(size, np.float32) for index, size in enumerate(sizes)}
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="do not fit"):
        cpu_session(model_of(function)).run(None, fed)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels")
    checkpoint = write_checkpoint(path / "checkpoint", family="qwen2", ffn=100)
    return exported(checkpoint, path / "out", weights="w8a8", context=256)


def test_a_library_that_does_not_load_is_told_by_name(monkeypatch, tmp_path, bundle):
    broken = tmp_path / "_core.abi3.so"
    broken.write_text("no library")
    kernel_library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(onnx_runtime, "extension_file", str(broken))
        with pytest.raises(ProviderError, match="kernels of this package"):
            open_session(bundle.path)
    assert len(open_session(bundle.path).widths) > 1


def test_another_build_of_the_kernels_is_tested_anew_and_makes_profiles_stale(
    monkeypatch, tmp_path, bundle
):
    cache, other = tmp_path / "cache", tmp_path / "other.so"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    other.write_bytes(b"another build")
    builds = []
    for library in (kernel_library(), other):
        with monkeypatch.context() as patch:
            patch.setattr(onnx_runtime, "kernel_library", lambda library=library: library)
            builds.append(device_facts(bundle, 1)["kernels"])
    for build in (*builds, *builds):
        monkeypatch.setattr(opening, "kernel_build", lambda build=build: build)
        assert len(open_session(bundle.path).widths) > 1
    assert len(set(builds)) == len(list(cache.rglob("*.json"))) == 2


def test_weights_in_the_form_for_processors_without_vnni_give_the_same_bits(monkeypatch, bundle):
    ids = tokens(60, 128)
    expected = GraphRunner(bundle).feed_all(ids, 8)
    monkeypatch.setattr(onnx_runtime, "byte_products_saturate", lambda: True)
    for width in (1, 8, 32):
        assert np.array_equal(GraphRunner(bundle).feed_all(ids, width), expected)
