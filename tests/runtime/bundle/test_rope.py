"""Tables of rotations: near to exact ones, and the same bits whatever numpy runs on."""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__

from coordgen_rs.bundle.rope import tables, unscaled

THETAS = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)
HASH = f"""
import hashlib
from coordgen_rs.bundle.rope import tables, unscaled
whole = hashlib.sha256()
for theta in {THETAS}:
    frequencies = unscaled(theta, 64)
    whole.update(frequencies.tobytes())
    for table in tables(2_000, frequencies, 1.25):
        whole.update(table.tobytes())
print(whole.hexdigest())
"""


def hash_on(**variables: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", HASH]
    done = subprocess.run(
        command, env=os.environ | variables, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_a_processor_without_wide_vectors_makes_the_same_tables():
    assert hash_on() == hash_on(NPY_DISABLE_CPU_FEATURES=" ".join(__cpu_dispatch__))
    assert len(hash_on().strip()) == hashlib.sha256().digest_size * 2


@pytest.mark.parametrize("theta", THETAS)
def test_frequencies_are_near_to_exact_ones(theta):
    exact = [theta ** (-2 * pair / 128) for pair in range(64)]
    np.testing.assert_allclose(unscaled(theta, 128), exact, rtol=2e-6)


def test_tables_hold_the_nearest_float32_of_each_angle():
    frequencies = unscaled(10_000.0, 8)
    cos, sin = tables(100_000, frequencies)
    assert cos.dtype == sin.dtype == np.float32
    for position in (0, 1, 4_095, 71_500, 99_999):
        for pair, frequency in enumerate(frequencies):
            angle = float(np.float32(position) * frequency)
            assert cos[position, pair] == np.float32(math.cos(angle))
            assert sin[position, pair] == np.float32(math.sin(angle))
