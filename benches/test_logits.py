"""What reading a prompt's rows of logits costs: the top 8 of each, against their plain maximum.

    pytest benches/test_logits.py

Rows are of Qwen2.5's vocabulary. With `--benchmark-disable` everything runs once, as a check.
"""

import numpy as np
import pytest

from coordgen_rs._core import top_k

ROWS, VOCAB_SIZES = 256, (4_096, 32_000, 151_936)


@pytest.fixture(scope="module", params=VOCAB_SIZES)
def logits(request):
    return np.random.default_rng(0).standard_normal((ROWS, request.param), np.float32)


def test_numpy_max(benchmark, logits):
    largest = benchmark(lambda: logits.max(1))
    assert largest[0] == max(logits[0])


def test_top_k(benchmark, logits):
    token_ids, probabilities = benchmark(lambda: top_k(logits))
    expected = np.argsort(-logits, 1, kind="stable")[:, :8]
    np.testing.assert_array_equal(token_ids, expected)
    terms = np.exp(logits - logits.max(1, keepdims=True), dtype=np.float64)
    expected = np.take_along_axis(terms, expected, 1) / terms.sum(1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, rtol=0.1)
