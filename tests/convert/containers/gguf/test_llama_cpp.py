"""Logits of GGUF files beside llama.cpp's on the same files, all in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordgen_rs import OrtSession
from coordgen_rs.runtime.cpu import CpuDevice
from families import CASES, exported_model, needs_transformers, prompt_logits, tokens

pytestmark = needs_transformers

OTHERWISE = {
    "Phi-3-mini, window 24": "llama.cpp has no windows in Phi-3",
    "gpt-oss": "llama.cpp rounds the ends of YaRN's ramp to whole pairs",
    "Gemma 4 12B, uncapped": "llama.cpp caps logits at 30 where a file says nothing",
}
NAMES = [name for name, kind in CASES if kind == "gguf" and name not in OTHERWISE]
WITH_GELU = {"Gemma 3": 5e-3, "Gemma 4": 1e-2}
"""How near the logits of families with GELU are: llama.cpp reads it from a table of float16."""
_FLOAT32, _NO_FLASH_ATTENTION = 0, 0  # flash attention rounds queries to float16


def logits_of_llama_cpp(path: Path, token_ids: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Logits behind every token, `(tokens, vocab)`."""
    library = pytest.importorskip("cyllama.llama", reason="cyllama is not installed").llama_cpp
    library.disable_logging()

    class Model(library.LlamaModel):  # type: ignore[misc]
        """`get_logits` of cyllama 0.2.18 asks the model for what only its vocabulary knows."""

        @property
        def n_vocab(self) -> Any:
            return self.get_vocab().n_vocab

    params = library.LlamaContextParams()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
    params.type_k = params.type_v = _FLOAT32
    params.flash_attn_type = _NO_FLASH_ATTENTION
    context = library.LlamaContext(Model(str(path), library.LlamaModelParams()), params)
    batch = library.LlamaBatch(n_tokens=1, embd=0, n_seq_max=1)
    rows = []
    for position, token in enumerate(token_ids.tolist()):
        batch.reset()
        batch.add(token, position, [0], True)
        context.decode(batch)
        rows.append(np.array(context.get_logits(), np.float32))
    return np.stack(rows)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_llama_cpp(tmp_path, name):
    _, bundle = exported_model(name, tmp_path, "gguf")
    expected = logits_of_llama_cpp(tmp_path / "checkpoint" / "model.gguf", tokens())
    got = prompt_logits(OrtSession(CpuDevice(bundle)), tokens())
    limits = [limit for family, limit in WITH_GELU.items() if name.startswith(family)]
    assert np.abs(got - expected).max() < (limits or [1e-3])[0]
