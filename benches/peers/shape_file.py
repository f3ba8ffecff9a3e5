"""GGUF files of a model's shape with random weights, for times that are the model's.

    python benches/peers/shape_file.py qwen3-30b-a3b mixture.gguf --layers 6

In: a shape of `shapes.toml`, and the type of a file. Out: a file that llama.cpp and coordgen open,
its matrices in the types that llama.cpp's quantiser gives them in a file of that type. What such a
model says means nothing. Needs gguf (`pip install --group peers`).
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np

from shape_families import EMBEDDING_SCALES, add_metadata, layer_matrices, vectors
from support.script import parser_of, reports_errors, run_script
from support.shapes import SHAPES

TYPES = ("Q4_0", "Q8_0", "Q4_K_M")
_SCALES = {"Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where a block holds float16 numbers: its scale, and the scale of its minima."""
_USUAL_SCALE = {"Q4_0": 4e-3, "Q5_0": 2e-3, "Q8_0": 2e-4, "Q4_K": 1e-4, "Q6_K": 2e-5}
_SMALLER = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What takes the place of a type of blocks of 256 weights in rows that have no such blocks."""
_MORE = ("attn_v", "ffn_down", "ffn_down_exps")
"""Matrices that have more bits in some layers of some files."""
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
    """All matrices of a model whose head is its embedding, in a file of one of `TYPES`."""
    layers = shape["layers"]
    found = [("token_embd", _head_type(file_type), shape["vocab"], shape["hidden"])]
    for layer in range(layers):
        usual, more = _layer_types(file_type, layer, layers)
        found += [
            (f"blk.{layer}.{name}", more if name in _MORE else usual, *sizes)
            for name, *sizes in layer_matrices(shape, layer)
        ]
    return [
        Matrix(f"{name}.weight", _fitting(weight_type, columns), rows, columns, *experts)
        for name, weight_type, rows, columns, *experts in found
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
    all_matrices, all_vectors = matrices(shape, file_type), vectors(shape)
    for name, values in all_vectors.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    for matrix in all_matrices:
        number = GGMLQuantizationType[matrix.weight_type]
        of_row = matrix.num_bytes // (max(matrix.experts, 1) * matrix.rows)
        stored = *([matrix.experts] if matrix.experts else []), matrix.rows, of_row
        writer.add_tensor_info(matrix.name, stored, np.dtype(np.uint8), matrix.num_bytes, number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for values in all_vectors.values():
        writer.write_tensor_data(values)
    random = np.random.default_rng(0)
    embedding = EMBEDDING_SCALES.get(shape["family"], 1.0)
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


def _add_metadata(writer, shape):
    writer.add_block_count(shape["layers"])
    writer.add_context_length(shape["max_positions"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["ffn"])
    writer.add_head_count(shape["heads"])
    add_metadata(writer, shape)
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


@reports_errors
def main(arguments=None):
    """Write the file; 2 where it cannot be written."""
    parser = parser_of(__doc__)
    shapes = {name: it for name, it in SHAPES.items() if it["family"] != "llama"}
    parser.add_argument("shape", choices=shapes, metavar="SHAPE", help=", ".join(shapes))
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--type", choices=TYPES, default="Q4_0")
    options = parser.parse_args(arguments)
    shape = shapes[options.shape]
    shape = shape | {"layers": options.layers or shape["layers"]}
    write_shape(options.file, shape, options.type)


if __name__ == "__main__":
    run_script(main)
