"""Tiny random models of transformers for tests of its adapter, and answers of theirs.

Their scores lie far apart, so that no near tie falls by rounding.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

from coordgen_rs.adapters.transformers import Drafted
from coordgen_rs.errors import OptionError

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

VOCAB_SIZE = 64
GREEDY = {"do_sample": False, "max_new_tokens": 24}
CACHE = (
    "cache"
    if "cache" in signature(transformers.LlamaForCausalLM.forward).parameters
    else "past_key_values"
)
"""What the installed version calls the cache that `generate` goes on with."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.5,
}


def model_of(name: str, **sizes: Any) -> Any:
    """A model of a family, `Llama` say; `sizes` are keys of its configuration."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    of_text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{of_text}Config")(**{**SIZES, **sizes})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def gpt2(**sizes: Any) -> Any:
    """A GPT-2, whose positions are learned: 64 of them."""
    own = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 64}
    ends = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    torch.set_num_threads(1)
    torch.manual_seed(3)
    given = {"vocab_size": VOCAB_SIZE, "initializer_range": 0.5, **ends, **own, **sizes}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**given)).eval()


def prompt_of(num_tokens: int, period: int = 7) -> Any:
    """A prompt that repeats itself, `(1, num_tokens) i64`."""
    tokens = np.random.default_rng(7).integers(3, 60, period)
    return torch.from_numpy(np.resize(tokens, num_tokens).astype(np.int64))[None]


def both(drafted: Any, ask: Callable[..., Any]) -> Any:
    """What a request with arguments of `generate` gives, which must be the same with drafts."""
    plain = ask()
    assert ask(custom_generate=drafted) == plain
    return plain


def alike(model: Any, drafted: Any, prompt: Any, **asked: Any) -> list[list[int]]:
    """What plain `generate` says, which must be what it says with drafts."""
    given = {**GREEDY, **asked}
    return both(drafted, lambda **how: model.generate(prompt, **given, **how).tolist())


def refuse(model: Any, match: str, *prompt: Any, **asked: Any) -> None:
    """A request with drafts is refused in these words."""
    given = {"custom_generate": Drafted(costs=None), "max_new_tokens": 4, **asked}
    with pytest.raises(OptionError, match=match):
        model.generate(*prompt, **given)


def tokenizer() -> Any:
    """A tokenizer with one character for each token of `VOCAB_SIZE`."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {chr(48 + token): token for token in range(VOCAB_SIZE)}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner)


class Recorded:
    """A streamer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.num_ends = 0

    def put(self, tokens: Any) -> None:
        """Keep tokens: those of the prompt first."""
        assert self.num_ends == 0
        self.told.append(tokens.tolist())

    def end(self) -> None:
        """Count the ends."""
        self.num_ends += 1
