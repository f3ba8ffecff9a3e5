"""GGUF files of a model's shape with random weights, for times that are the model's.

    python benches/peers/shape_file.py qwen3-30b-a3b mixture.gguf --layers 6

In: a shape of `qwen_shape.py`'s, `hybrid_shapes.py`'s or `mixture_shapes.py`'s, and the type of a
file. Out: a file that llama.cpp and coordgen open, its matrices in the types that llama.cpp's
quantiser gives them in a file of that type. What such a model says means nothing. Needs gguf
(`pip install --group peers`).
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np

import hybrid_shapes
import mixture_shapes
from support.script import run_script

TYPES = ("Q4_0", "Q8_0", "Q4_K_M")
_DENSE = "qwen2"
_MIXTURES = ("qwen3moe",)
_SCALES = {"Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where a block holds float16 numbers: its scale, and the scale of its minima."""
_USUAL_SCALE = {"Q4_0": 4e-3, "Q5_0": 2e-3, "Q8_0": 2e-4, "Q4_K": 1e-4, "Q6_K": 2e-5}
_SMALLER = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What takes the place of a type of blocks of 256 weights in rows that have no such blocks."""
_PIECE_BLOCKS = 1 << 20
"""A tensor is written in pieces: the largest has half a gigabyte."""
_BYTE_TOKENS = 256
_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


class Matrix(NamedTuple):
    """A matrix of a file: its name in GGUF, the type of its weights, and its shape."""

    name: str
    weight_type: str
    rows: int
    columns: int
    experts: int = 0
    """So many matrices in one tensor; 0 for one that is no expert's."""

    @property
    def num_weights(self):
        """As many products has a row in a step, where it is no expert's."""
        return max(self.experts, 1) * self.rows * self.columns

    @property
    def num_bytes(self):
        """As many are in the file, and are read by a step."""
        return self.num_weights // _block(self.weight_type)[0] * _block(self.weight_type)[1]


def matrices(shape, file_type):
    """All matrices of a model whose head is its embedding.

    Args:
        shape: `family`, `hidden`, `ffn`, `layers`, `heads`, `kv_heads` and `vocab`.
        file_type: One of `TYPES`.
    """
    layers = shape["layers"]
    of_layer = _dense_matrices if shape["family"] == _DENSE else _other(shape).layer_matrices
    found = [("token_embd", _head_type(file_type), shape["vocab"], shape["hidden"])]
    for layer in range(layers):
        usual, more = _layer_types(file_type, layer, layers)
        found += [
            (f"blk.{layer}.{name}", more if name in _MORE else usual, *sizes)
            for name, *sizes in of_layer(shape, layer)
        ]
    return [
        Matrix(f"{name}.weight", _fitting(weight_type, columns), rows, columns, *experts)
        for name, weight_type, rows, columns, *experts in found
    ]


def _other(shape):
    """What knows the family of a shape that is not dense."""
    return mixture_shapes if shape["family"] in _MIXTURES else hybrid_shapes


_MORE = ("attn_v", "ffn_down", "ffn_down_exps")
"""Matrices that have more bits in some layers of some files."""


def _dense_matrices(shape, layer):
    """The matrices of a layer: name, rows, columns."""
    hidden, ffn = shape["hidden"], shape["ffn"]
    keys = hidden // shape["heads"] * shape["kv_heads"]
    return [
        ("attn_q", hidden, hidden),
        ("attn_k", keys, hidden),
        ("attn_v", keys, hidden),
        ("attn_output", hidden, hidden),
        ("ffn_gate", ffn, hidden),
        ("ffn_up", ffn, hidden),
        ("ffn_down", hidden, ffn),
    ]


def _head_type(file_type):
    return "Q8_0" if file_type == "Q8_0" else "Q6_K"


def _layer_types(file_type, layer, layers):
    """The type of most matrices of a layer, and that of values and down."""
    if file_type != "Q4_K_M":
        return file_type, file_type
    eighth = layers // 8
    has_more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return "Q4_K", "Q6_K" if has_more else "Q4_K"


def _fitting(weight_type, columns):
    return weight_type if columns % _block(weight_type)[0] == 0 else _SMALLER[weight_type]


def _block(weight_type):
    """The weights of a block, and its bytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType[weight_type]]


def write_shape(path, shape, file_type):
    """Write a file; same arguments as `matrices`."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, shape["family"])
    _add_metadata(writer, shape)
    is_dense = shape["family"] == _DENSE
    all_matrices = matrices(shape, file_type)
    vectors = _vectors(shape) if is_dense else _other(shape).vectors(shape)
    for name, values in vectors.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    for matrix in all_matrices:
        number = GGMLQuantizationType[matrix.weight_type]
        of_row = matrix.num_bytes // (max(matrix.experts, 1) * matrix.rows)
        stored = *([matrix.experts] if matrix.experts else []), matrix.rows, of_row
        writer.add_tensor_info(matrix.name, stored, np.dtype(np.uint8), matrix.num_bytes, number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for values in vectors.values():
        writer.write_tensor_data(values)
    random = np.random.default_rng(0)
    # Of a mixture, the stream is the token's own, or all tokens would choose the same experts.
    embedding = 1.0 if is_dense else getattr(_other(shape), "EMBEDDING_SCALE", 1.0)
    for number, matrix in enumerate(all_matrices):
        writer.write_tensor_data(_random_blocks(matrix, random, 1.0 if number else embedding))
    writer.close()


def _random_blocks(matrix, random, times=1.0):
    """Random weights around zero, `(bytes,) u8`: all bytes of a block but its scales are drawn.

    They are `times` as large as usual.
    """
    of_block, block_bytes = _block(matrix.weight_type)
    num_blocks = matrix.num_weights // of_block
    blocks = np.empty((num_blocks, block_bytes), np.uint8)
    scale = times * _USUAL_SCALE[matrix.weight_type]
    for start in range(0, num_blocks, _PIECE_BLOCKS):
        piece = blocks[start : start + _PIECE_BLOCKS]
        drawn = np.frombuffer(random.bytes(piece.size), np.uint8)
        piece[:] = drawn.reshape(piece.shape)
        # Of 16 values one more is below zero than above: with one sign, sums would all lean there,
        # and whatever a token is, its stream would soon be the same.
        signs = random.choice(np.float32([-1, 1]), len(piece))
        for number, place in enumerate(_SCALES[matrix.weight_type]):
            # Minima are 7.5 scales deep, so that weights of 0 to 15 are around zero.
            scales = (signs * scale * (7.5 if number else 1)).astype(np.float16)
            piece[:, place : place + 2] = scales[:, np.newaxis].view(np.uint8)
    return blocks.reshape(-1)


def _vectors(shape):
    """Norms and biases, `f32`."""
    hidden, keys = shape["hidden"], shape["hidden"] // shape["heads"] * shape["kv_heads"]
    found = {"output_norm.weight": np.ones(hidden, np.float32)}
    for layer in range(shape["layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{norm}.weight"] = np.ones(hidden, np.float32)
        for bias, size in {"attn_q": hidden, "attn_k": keys, "attn_v": keys}.items():
            found[f"blk.{layer}.{bias}.bias"] = np.zeros(size, np.float32)
    return found


def _add_metadata(writer, shape):
    writer.add_block_count(shape["layers"])
    writer.add_context_length(shape["max_positions"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["ffn"])
    writer.add_head_count(shape["heads"])
    is_dense = shape["family"] == _DENSE
    writer.add_head_count_kv(shape["kv_heads"] if is_dense else _other(shape).kv_heads(shape))
    if not is_dense:
        _other(shape).add_metadata(writer, shape)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    # A letter for each byte, made-up words, and an end token.
    made_up = (f"w{number}" for number in range(shape["vocab"] - _BYTE_TOKENS - 1))
    tokens = [*_letters(), *made_up, "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["w 1"])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_chat_template(_CHAT_TEMPLATE)
    writer.add_add_bos_token(False)


def _letters():
    """The letter of each byte, as byte-level tokenizers have it."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(_BYTE_TOKENS) if byte not in shown]
    return [*map(chr, shown), *(chr(_BYTE_TOKENS + number) for number in range(len(others)))]


def main(arguments=None):
    """Write the file of a hybrid or a mixture; 2 where it cannot be written."""
    shapes = hybrid_shapes.SHAPES | mixture_shapes.SHAPES
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=shapes, metavar="SHAPE", help=", ".join(shapes))
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--type", choices=TYPES, default="Q4_0")
    options = parser.parse_args(arguments)
    shape = shapes[options.shape]
    try:
        write_shape(
            options.file, shape | {"layers": options.layers or shape["layers"]}, options.type
        )
    except OSError as error:
        print(f"shape_file.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_script(main)
