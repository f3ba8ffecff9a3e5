"""Bundles of models that say what they are told to, for the servers of `steady_servers.py`.

In: scripts, each a cue and what is said behind it, and a chat template. Out: a bundle, and its
scripts where those servers look for them. Its weights are nothing: in those servers, the logits of
a step are the script's. All else of the way from a request to its answer is what it is for any
model.

A token is a letter, a mark, or a piece of a script; prompts are letters and marks, for nothing is
merged. So what a grammar spells for the model comes letter by letter, and the model goes on behind.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from checkpoints import save_weights, tensor_shapes
from coordgen_rs.convert import export_checkpoint
from steady_servers import Switches

END = "<|im_end|>"
CHATML = (
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for turn in messages -%}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{{ messages[-1].content[-2:] }}"
    "{%- endif -%}"
)
"""Ends with the last two characters of the last message: the cue of a script."""

_PIECE = 7
"""Bytes of a piece."""


def scripted_bundle(
    folder: Path,
    switches: Switches,
    name: str,
    scripts: Mapping[str, str],
    template: str = CHATML,
    marks: tuple[str, ...] = (),
    ends: tuple[str, ...] = (),
) -> Path:
    """Export the bundle `folder/bundles/name`, and return it.

    Args:
        folder: Where it is made, and its checkpoint.
        switches: Of the servers.
        name: Its name.
        scripts: What the model says, by the end of the prompt.
        template: Its chat template; "" for none.
        marks: Texts that are special tokens.
        ends: Those that end an answer, besides `END`; a script ends with one, or is given `END`.
    """
    specials = dict.fromkeys(("<|im_start|>", END, *marks, *ends))
    ended = {
        cue: said if said.endswith((END, *ends)) else said + END for cue, said in scripts.items()
    }
    pieces = dict.fromkeys(piece for said in ended.values() for piece in _pieces(said, specials))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(dict.fromkeys([*letters, *pieces]))}
    ids = vocab | {mark: len(vocab) + number for number, mark in enumerate(specials)}
    checkpoint = folder / "checkpoints" / name
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": -(-len(ids) // 32) * 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": [ids[end] for end in (END, *ends)],
    }
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps(config))
    if template:
        (checkpoint / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in specials]
    )
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    shapes = tensor_shapes(config)
    save_weights(checkpoint, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    export_checkpoint(checkpoint, folder / "bundles" / name, weights="fp32")
    tokens = [
        token.encode().hex() if token in specials else bytes(map(_BYTES.__getitem__, token)).hex()
        for token in ids
    ]
    switches.script(name, ended, tokens)
    return folder / "bundles" / name


def _pieces(text: str, marks: Mapping[str, None]) -> list[str]:
    """A text without its marks, in pieces as byte-level tokenizers write them."""
    parts = re.split("|".join(map(re.escape, marks)), text)
    spelt = [_letters(part.encode()) for part in parts]  # a piece may end within a character
    return [one[at : at + _PIECE] for one in spelt for at in range(0, len(one), _PIECE)]


def _letters(text: bytes) -> str:
    """Bytes as the letters that byte-level tokenizers write for them."""
    return "".join(map(_LETTERS.__getitem__, text))


def _alphabet() -> dict[int, str]:
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    return letters | {byte: chr(256 + number) for number, byte in enumerate(others)}


_LETTERS = _alphabet()
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}
