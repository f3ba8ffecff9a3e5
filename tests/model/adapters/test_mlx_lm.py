"""The adapter of MLX-LM, over stand-ins of the little that it calls."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from coordgen_rs.adapters.host import generate, make_drafter
from coordgen_rs.adapters.mlx_lm import MlxHost
from coordgen_rs.errors import OptionError

VOCAB_SIZE = 200


@pytest.fixture
def model(monkeypatch):
    """A model of 200 tokens that counts."""
    core = ModuleType("mlx.core")
    core.array, core.eval, core.inf, core.argmax = np.array, lambda _: None, np.inf, np.argmax
    models = ModuleType("mlx_lm.models")
    models.cache = SimpleNamespace(
        make_prompt_cache=lambda model: [SimpleNamespace()],
        can_trim_prompt_cache=lambda cache: True,
        trim_prompt_cache=lambda cache, num_tokens: num_tokens,
    )
    mlx = ModuleType("mlx")
    mlx.core = core
    for module in (mlx, core, ModuleType("mlx_lm"), models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return lambda token_ids, cache: np.eye(VOCAB_SIZE)[(token_ids + 1) % VOCAB_SIZE]


def answer(host):
    steps = generate(host, [1, 2, 3], drafter=make_drafter(host), max_new_tokens=5)
    return [token for step in steps for token in step.token_ids]


def test_a_vocabulary_of_another_size_than_the_models_is_refused(model):
    assert answer(MlxHost(model, VOCAB_SIZE, 64)) == [4, 5, 6, 7, 8]
    for wrong in (VOCAB_SIZE - 1, 999):
        with pytest.raises(OptionError, match=f"vocab_size is {wrong}, .* logits are 200 wide"):
            answer(MlxHost(model, wrong, 64))
