"""Random checkpoints of gpt-oss: in floats, as transformers saves them, and in MXFP4, as published.

Experts of a float checkpoint have their outputs as columns, gates and ups in turn; those in MXFP4
as rows. `in_gguf` has them as llama.cpp's converter has.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors.numpy import load_file

from checkpoints import character_tokenizer, random_weights, save_weights

_Floats = NDArray[np.float32]

_FILE = Path(__file__).with_name("configs.json")
CONFIG: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))["gpt_oss"]
_PACKED = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
_GATE_UP, _DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"


def write_gpt_oss(
    path: Path, *, packed: bool = False, seed: int = 0, dtype: Any = np.float32, **options: Any
) -> Path:
    """Write a checkpoint into a new directory `path` and return it; `packed` is MXFP4."""
    config = CONFIG | options
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(character_tokenizer(config["vocab_size"])))
    weights = random_weights(_shapes(config), seed, np.float32)
    for name in weights:
        if name.endswith((_GATE_UP, _DOWN)):
            weights[name] *= np.float32(2 / weights[name].shape[1] ** 0.5)
    save_weights(path, {name: values.astype(dtype) for name, values in weights.items()})
    if packed:
        pack(path)
    return path


def pack(path: Path) -> None:
    """Make the checkpoint in a directory one in MXFP4, of the values nearest to its own."""
    weights = load_file(path / "model.safetensors")
    for name in list(weights):
        if name.endswith((_GATE_UP, _DOWN)):
            rows = weights.pop(name).astype(np.float32).swapaxes(1, 2)
            weights[f"{name}_blocks"], weights[f"{name}_scales"] = _packed(rows)
    save_weights(path, weights)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": _PACKED}))


def rounded(values: _Floats) -> _Floats:
    """What `pack` makes of matrices `(experts, inputs, outputs)`, as floats."""
    kind = GGMLQuantizationType.MXFP4
    rows = np.ascontiguousarray(values.swapaxes(1, 2))
    return np.ascontiguousarray(quants.dequantize(quants.quantize(rows, kind), kind).swapaxes(1, 2))


def _packed(rows: _Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Blocks `(.., groups, 16)`, in which neighbours share a byte, and exponents `(.., groups)`."""
    stored = quants.quantize(np.ascontiguousarray(rows), GGMLQuantizationType.MXFP4)
    blocks = stored.reshape(*rows.shape[:-1], -1, 17)
    numbers = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1)
    pairs = numbers[..., 0::2] | numbers[..., 1::2] << 4
    return np.ascontiguousarray(pairs), np.ascontiguousarray(blocks[..., 0])


def in_gguf(weights: dict[str, _Floats]) -> dict[str, _Floats]:
    """Weights of a float checkpoint with experts as GGUF files have them, by usual names."""
    found = {}
    for stored_name, values in weights.items():
        name = stored_name.replace("mlp.router.", "mlp.gate.")
        kind = "bias" if name.endswith("_bias") else "weight"
        base = name.removesuffix("_bias")
        by_rows = values.swapaxes(1, 2) if values.ndim == 3 else values
        if base.endswith(_GATE_UP):
            prefix = base.removesuffix("gate_up_proj")
            for first, part in enumerate(("gate_proj", "up_proj")):
                found[f"{prefix}{part}.{kind}"] = np.ascontiguousarray(by_rows[:, first::2])
        elif base.endswith(_DOWN):
            found[f"{base}.{kind}"] = np.ascontiguousarray(by_rows)
        else:
            found[name] = values
    return found


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name to shape of all weights."""
    hidden, size, vocab = (
        config[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    num, heads = config["num_local_experts"], config["num_attention_heads"]
    query, key = heads * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for number in range(config["num_hidden_layers"]):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.sinks": (heads,),
            "self_attn.o_proj.weight": (hidden, query),
            "self_attn.o_proj.bias": (hidden,),
            "mlp.router.weight": (num, hidden),
            "mlp.router.bias": (num,),
            _GATE_UP: (num, hidden, 2 * size),
            f"{_GATE_UP}_bias": (num, 2 * size),
            _DOWN: (num, size, hidden),
            f"{_DOWN}_bias": (num, hidden),
        }
        for part, rows in {"q": query, "k": key, "v": key}.items():
            parts |= {
                f"self_attn.{part}_proj.weight": (rows, hidden),
                f"self_attn.{part}_proj.bias": (rows,),
            }
        shapes |= {f"model.layers.{number}.{part}": shape for part, shape in parts.items()}
    return shapes
