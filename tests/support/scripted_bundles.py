"""Bundles whose weights are a script: real models that say a given text, on any processor.

In: scripts, each a cue and what is said behind it, and a chat template. Out: a checkpoint, and the
bundle that is exported from it. All else of the way from a request to its answer is what it is for
any model.

The model is a Llama of one layer, whose only head looks at the token before: a token and the one
before it tell the next. A token is a letter, a mark, or a piece of a script that stands nowhere
else, which only the model writes; so two tokens tell how far a script is. The right token is 6
above those that a script never gives, far more than what floats may differ by.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from checkpoints import save_weights, tensor_shapes
from coordgen_rs.tools.export import export_checkpoint

END = "<|im_end|>"
CHATML = (
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for turn in messages -%}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{{ messages[-1].content[-2:] }}"
    "{%- endif -%}"
)
"""Ends with the last two characters of the last message: the cue of a script."""

_CODE, _CONSTANT = 128, 64
_HIDDEN = 2 * _CODE + _CONSTANT
_FREQUENCIES = 16
_SHARPNESS = 11.0
"""So that the token before gets all but 1e-9 of the attention."""
_ABOVE = 6.0
_PIECE = 7
"""Characters of most pieces of a script."""


def scripted_bundle(
    folder: Path,
    name: str,
    scripts: Mapping[str, str],
    template: str = CHATML,
    marks: tuple[str, ...] = (),
    ends: tuple[str, ...] = (),
) -> Path:
    """Export the bundle `folder/name`, and return it.

    Args:
        folder: Where it is made, and its checkpoint.
        name: Its name.
        scripts: What the model says, by the last two characters of the prompt.
        template: Its chat template; "" for none.
        marks: Texts that are special tokens.
        ends: Those that end an answer, besides `END`; a script ends with one, or is given `END`.
    """
    script = _Script((END, *marks, *ends))
    for cue, said in scripts.items():
        script.add(cue, said)
    checkpoint = folder / "checkpoints" / name
    script.write(checkpoint, template, (END, *ends))
    export_checkpoint(checkpoint, folder / "bundles" / name, weights="fp32")
    return folder / "bundles" / name


class _Script:
    """Tokens, and which of them follows which two."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        self._vocab = {letter: number for number, letter in enumerate(letters)}
        self._marks = dict.fromkeys(("<|im_start|>", *marks))
        self._next: dict[tuple[str, str], str] = {}

    def add(self, cue: str, said: str) -> None:
        """Let the model say a text behind a cue."""
        tokens = [*self._prompt_tokens(cue)[-2:], *self._pieces(said)]
        if tokens[-1] not in self._marks:
            tokens.append(END)
        for before, token, following in zip(tokens, tokens[1:], tokens[2:], strict=False):
            found = self._next.setdefault((before, token), following)
            assert found == following, f"{before!r}, {token!r}: {found!r} or {following!r}?"

    def _prompt_tokens(self, text: str) -> list[str]:
        """A text as prompts have it: marks, and letters."""
        parts = re.split(f"({'|'.join(map(re.escape, self._marks))})", text)
        return [
            token
            for part in parts
            for token in ([part] if part in self._marks else _letters(part.encode()))
        ]

    def _pieces(self, text: str) -> Iterator[str]:
        """A text as the model says it: marks, and pieces that were never said before."""
        for part in re.split(f"({'|'.join(map(re.escape, self._marks))})", text):
            if part in self._marks:
                yield part
                continue
            left = part.encode()  # by bytes: a piece may end within a character
            while left:
                sizes = [_PIECE, *range(_PIECE - 1, 1, -1), *range(_PIECE + 1, len(left) + 1)]
                pieces = ("".join(_letters(left[:size])) for size in sizes)
                letter = _letters(left)[0]
                piece = next((one for one in pieces if one not in self._vocab), letter)
                self._vocab.setdefault(piece, len(self._vocab))
                yield piece
                left = left[len(piece) :]

    def write(self, path: Path, template: str, ends: tuple[str, ...]) -> None:
        """Write the checkpoint."""
        ids = self._vocab | {
            mark: len(self._vocab) + number for number, mark in enumerate(self._marks)
        }
        vocab = -(-len(ids) // 32) * 32
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": _HIDDEN,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": _CODE,
            "vocab_size": vocab,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "eos_token_id": [ids[end] for end in ends],
        }
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config))
        if template:
            (path / "chat_template.jinja").write_text(template)
        self._tokenizer().save(str(path / "tokenizer.json"))
        following = {tuple(ids[one] for one in pair): ids[to] for pair, to in self._next.items()}
        save_weights(path, _weights(config, following))

    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(self._vocab, []))  # nothing is merged: prompts are letters
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(
            [AddedToken(mark, special=True, normalized=False) for mark in self._marks]
        )
        return tokenizer


def _letters(text: bytes) -> list[str]:
    """Bytes as the letters that byte-level tokenizers write for them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    letter = {byte: chr(byte) for byte in shown}
    letter |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [letter[byte] for byte in text]


def _weights(config: dict, following: Mapping[tuple[int, int], int]) -> dict[str, NDArray]:
    """Weights by their names; `following` has the next token of two."""
    weights = {
        name: np.zeros(shape, np.float32) if len(shape) == 2 else np.ones(shape, np.float32)
        for name, shape in tensor_shapes(config).items()
    }
    vocab = config["vocab_size"]
    code = np.random.default_rng(0).choice(np.float32([-1, 1]), (vocab, _CODE))
    embedded = weights["model.embed_tokens.weight"]
    embedded[:, :_CODE], embedded[:, 2 * _CODE :] = code, 1
    scale = np.sqrt(_HIDDEN / (_CODE + _CONSTANT))  # of the norm before the attention
    angles = config["rope_theta"] ** (-2 * np.arange(_FREQUENCIES) / _CODE)
    layer, constant = "model.layers.0.self_attn.{}_proj.weight", 2 * _CODE
    sharp = _SHARPNESS / scale
    # The query is turned back by one place: it fits the key of the token before.
    weights[layer.format("q")][:_FREQUENCIES, constant] = sharp * np.cos(angles)
    weights[layer.format("q")][_CODE // 2 :][:_FREQUENCIES, constant] = -sharp * np.sin(angles)
    weights[layer.format("k")][:_FREQUENCIES, constant] = sharp
    weights[layer.format("v")][:, :_CODE] = np.eye(_CODE)
    weights[layer.format("o")][_CODE : 2 * _CODE] = np.eye(_CODE) / scale
    for (before, token), to in following.items():
        row = np.concatenate([code[token], code[before]]) * _ABOVE / (2 * _CODE)
        weights["lm_head.weight"][to, : 2 * _CODE] += row
    return weights
