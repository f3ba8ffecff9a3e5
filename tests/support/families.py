"""Tiny random models of every family, made by transformers, beside what is exported from them.

`python tests/support/families.py` prints the largest difference of logits, and whether greedy
decoding gives the same tokens, for each family and file format. It needs torch and transformers.
"""

import copy
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from checkpoints import character_tokenizer
from coordgen_rs import Bundle, OrtSession, plain
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.runtime.cpu import CpuDevice

NUM_TOKENS, NUM_GREEDY = 90, 30
_VOCAB = 128
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_OF_SCORES = ("q_norm.weight", "k_norm.weight")
_SAID = json.loads(Path(__file__).with_name("models.json").read_text("utf-8"))


def _models() -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, said in _SAID.items():
        config = {**(found[said["like"]][1] if "like" in said else {}), **said["config"]}
        if "text_of" in said:
            config["text_config"] = {**found[said["text_of"]][1], **config["text_config"]}
        found[name] = said["architecture"], config
        yield name, found[name]


MODELS = dict(_models())
"""Architecture, and what its configuration has beyond `_SIZES`, by the name of a case.

Gemma 4's are as E2B (embeddings of layers, shared keys and values, wider feed-forwards behind) and
as the larger ones (keys that are values, one of their heads in layers without a window). Queries of
the short Ministral grow behind the texts that are read; the ramp of the second gpt-oss is over all
pairs, its ends the same whether rounded or not. GLM-4 takes no `eos_token_id` for that of the 9B.
"""

needs_transformers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="no torch and transformers here: make setup-train",
)


class Comparison(NamedTuple):
    """A family's exported model beside transformers' own."""

    largest_logit: float
    difference: float
    """Largest absolute difference of any logit."""
    same_greedy: bool


def random_model(name: str, seed: int = 0) -> Any:
    """A model of transformers with random float32 weights."""
    import torch
    import transformers

    architecture, options = copy.deepcopy(MODELS[name])  # transformers writes into it
    model_class = getattr(transformers, architecture)
    if "text_config" in options:
        options = {**options, "text_config": {**_SIZES, **options["text_config"]}}
    config = model_class.config_class(**{**_SIZES, **options})
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5, generator=generator)
        for parameter_name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "norm" in parameter_name:
                parameter.copy_(parameter + values / 8)  # near what the family starts with
                if "Gemma4" in architecture and parameter_name.endswith(_OF_SCORES):
                    # Its scores have no factor: trained norms hold what one would be.
                    parameter.mul_(parameter.shape[0] ** -0.25)
            else:
                parameter.copy_(values * 1.4 / parameter.shape[-1] ** 0.5)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("expert_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) / 8)
    return model


def write_safetensors(model: Any, path: Path) -> Path:
    """A Hugging Face directory of a model."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(character_tokenizer(_VOCAB)))
    return path


def write_gguf_file(model: Any, path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of a model, as llama.cpp's converter writes it, in float32."""
    from gguf_files import write_gguf

    return write_gguf(path / "model.gguf", write_safetensors(model, path), metadata=metadata)


IN_GGUF: dict[str, dict[str, Any]] = {
    name: said["gguf"] for name, said in _SAID.items() if "gguf" in said
}
"""Cases that a GGUF file can hold, with metadata beyond sizes. Windows of Mistral and Qwen3, and a
query_pre_attn_scalar of Gemma, are not in it."""

FORMATS: dict[str, Callable[[str, Any, Path], Path]] = {
    "safetensors": lambda name, model, path: write_safetensors(model, path),
    "gguf": lambda name, model, path: write_gguf_file(model, path, IN_GGUF[name]),
}
"""Writes a model to a new path and returns what `export_checkpoint` is to be given, by format."""

CASES = [
    (name, file_format)
    for name in MODELS
    for file_format in FORMATS
    if file_format == "safetensors" or name in IN_GGUF
]
"""Names of models, each with a format that can hold it."""


def exported_model(
    name: str, folder: Path, file_format: str = "safetensors", **options: Any
) -> Any:
    """A model of transformers, and an opened bundle of it in `folder`."""
    model = random_model(name)
    checkpoint = FORMATS[file_format](name, model, folder / "checkpoint")
    export_checkpoint(checkpoint, folder / "bundle", **{"prefill_rows": 32, **options})
    return model, Bundle.open(folder / "bundle")


def prompt_logits(session: OrtSession, token_ids: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Logits `(tokens, vocab)` of a prompt, read as every prompt is read."""
    parts: list[NDArray[np.float32]] = []
    session.rewind(0)
    session.prefill(token_ids, on_logits=lambda logits: parts.append(logits.copy()))
    return np.concatenate(parts)


def chain_logits(
    session: OrtSession, token_ids: NDArray[np.uint32], width: int
) -> NDArray[np.float32]:
    """Logits `(tokens, vocab)` of a text that is read in decode steps of `width` rows."""
    inputs = next(inputs for inputs in session.step_inputs if inputs.rows == width)
    parts: list[NDArray[np.float32]] = []
    session.rewind(0)
    for start in range(0, len(token_ids), width):
        part = token_ids[start : start + width]
        inputs.fill_chain(part, session.length)
        parts.append(session.step(inputs)[: len(part)].copy())
        session.commit(np.arange(len(part), dtype=np.uint32))
    return np.concatenate(parts)


def tokens(count: int = NUM_TOKENS) -> NDArray[np.uint32]:
    """Random tokens, the same in every run."""
    return np.random.default_rng(7).integers(3, _VOCAB, count).astype(np.uint32)


def compare(model: Any, bundle: Bundle) -> Comparison:
    """Logits of a prompt, and greedy tokens behind it, of a bundle and of transformers."""
    import torch

    torch.set_num_threads(1)  # its threads would wait in a loop for work that ours are doing
    session, ids = OrtSession(CpuDevice(bundle)), tokens()
    steps = plain(session, ids, max_new_tokens=NUM_GREEDY)
    answer = [token for step in steps for token in step.token_ids]
    text = np.concatenate([ids, np.array(answer, np.uint32)])
    with torch.no_grad():
        expected = model(torch.from_numpy(text.astype(np.int64))[None]).logits[0].numpy()
    difference = np.abs(prompt_logits(session, text) - expected).max()
    behind = expected[len(ids) - 1 : -1]
    # Of two that are as likely, another processor may choose the other.
    missed = behind.max(-1) - behind[np.arange(len(answer)), answer]
    return Comparison(float(np.abs(expected).max()), float(difference), bool((missed < 1e-3).all()))


def main() -> int:
    """Print the table; the exit code is 1 if any case is further away than 1e-4."""
    worst = 0.0
    print(
        f"{'family':<28}{'format':<14}{'largest logit':>14}{'difference':>12}  same greedy tokens"
    )
    for name, file_format in CASES:
        with tempfile.TemporaryDirectory() as folder:
            result = compare(*exported_model(name, Path(folder), file_format))
        worst = max(worst, result.difference if result.same_greedy else 1.0)
        same = f"{NUM_GREEDY}" if result.same_greedy else "no"
        print(
            f"{name:<28}{file_format:<14}{result.largest_logit:>14.2f}"
            f"{result.difference:>12.1e}  {same}"
        )
    for name, largest, difference in compared_drafters():
        worst = max(worst, difference)
        print(f"{name:<28}{'safetensors':<14}{largest:>14.2f}{difference:>12.1e}  drafted alike")
    return int(worst > 1e-4)


def compared_drafters() -> Iterator[tuple[str, float, float]]:
    """Names of Gemma 4's drafters, their largest logit, and the largest difference of any."""
    from assistants import compared

    for family in ("gemma4", "gemma4_unified"):
        for has_clusters in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                expected, got = compared(Path(folder), family, tokens(), has_clusters=has_clusters)
            name = f"{family}'s drafter{', clusters' if has_clusters else ''}"
            yield name, float(np.abs(expected).max()), float(np.abs(got - expected).max())


if __name__ == "__main__":
    sys.exit(main())
