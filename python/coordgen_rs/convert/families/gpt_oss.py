"""gpt-oss: what its files say, in the words of others.

In: the fields of a config.json, or of a GGUF file; tensors by name. Out: the same in Llama's and
Qwen3-MoE's words. Its experts' activation has a limit that no option of the graphs changes, so
another is refused. Rows of gates and of ups take turns in its checkpoints, in MXFP4 or, column by
column, in floats.

MXFP4 are numbers of 4 bits, and exponents of 32 each: two tensors of bytes,
`{name}_blocks (.., groups, 16)` and `{name}_scales (.., groups)`. They become a matrix of as many
rows as there are in all of `..`, whose blocks have the order of GGUF, which products read: an
exponent, then 16 bytes, whose low halves are the first 16 numbers. In the files neighbours share a
byte, the first of them in its low half. The numbers and the exponents, 127 of which is 1, mean the
same in both.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from coordgen_rs.convert.containers.gguf.file import MOST_EXPONENT, float_rows
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.containers.tensor import ReadBytes, StoredBlocks, Tensor
from coordgen_rs.convert.families.config_json import flag, pattern_layers, positive, refused
from coordgen_rs.convert.families.family import Family
from coordgen_rs.convert.families.gguf import (
    EXPERTS,
    NORM_BEHIND_ATTENTION,
    SOFTMAX_OF_CHOSEN,
    Gguf,
    expert_fields,
    window_fields,
)
from coordgen_rs.convert.families.model_config import PARTS, Experts, read_experts
from coordgen_rs.errors import CheckpointError

_TYPE = "MXFP4"
_BLOCKS, _SCALES = "_blocks", "_scales"
_SIZE = 32
"""Numbers with one exponent."""
_HALF = _SIZE // 2
_BYTES = "U8"
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "use_sliding_window": True,
    "sliding_window": 128,
    "sliding_window_pattern": 2,
    "rope_theta": 150_000.0,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The rotation of a config.json that tells of none."""
_ACTIVATION = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""By which gates are multiplied before the sigmoid, and what they and ups are clamped to."""
_GATE_UP, _DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
_BIAS = "_bias"
_FLOATS = {"F32": "<f4", "F16": "<f2"}
"""How numpy calls types of floats; it has no BF16."""
Turned = Callable[[Tensor, int], NDArray[np.float32]]
"""Reads the columns of one of a tensor's matrices, by its number, as rows."""


def _gpt_oss_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of gpt-oss with the rotation that it means by telling of none.

    Raises:
        UnsupportedModelError: Attention has no biases, or experts another activation.
        CheckpointError: A field is malformed.
    """
    name = "gpt-oss"
    refused(config, name, "attention_bias", not flag(config, "attention_bias", True))
    for field, value in _ACTIVATION.items():
        refused(config, name, field, config.get(field) not in (None, value))
    words: dict[str, Any] = {
        "num_experts": positive(config, "num_local_experts"),
        "moe_intermediate_size": config["intermediate_size"],
    }
    if not config.get("rope_parameters") and not config.get("rope_scaling"):
        words["rope_parameters"] = _YARN
    return {**config, **words}


def _gpt_oss_experts(config: Mapping[str, Any], num_layers: int) -> Experts:
    """Those of gpt-oss: in every layer; shares are the softmax over the chosen alone.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    return read_experts(config, range(num_layers), gate="clamped_swiglu", has_biases=True)


def gpt_oss_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of gpt-oss as those of Qwen3-MoE, with biases `(experts, outputs)`.

    Raises:
        CheckpointError: Experts have a shape or a form that they never have.
    """
    found, turned = dict[str, Tensor](), last_turned()
    for name, tensor in unpacked(tensors).items():
        if name.endswith((_GATE_UP, _GATE_UP + _BIAS)):
            prefix, parts = name.partition("gate_up_proj")[0], _parts(name, tensor, turned)
            kind = "bias" if name.endswith(_BIAS) else "weight"
            found |= {
                f"{prefix}{part}.{kind}": it for part, it in zip(PARTS[:2], parts, strict=True)
            }
        elif name.endswith(_DOWN):
            found[f"{name}.weight"] = _by_rows(tensor, turned)
        elif name.endswith(_DOWN + _BIAS):
            found[f"{name.removesuffix(_BIAS)}.bias"] = tensor
        else:
            found[name] = tensor
    return found


def _parts(name: str, both: Tensor, turned: Turned) -> tuple[Tensor, Tensor]:
    """Gates and ups of tensors in which they take turns.

    Raises:
        CheckpointError: There is an odd number of them.
    """
    is_bias = name.endswith(_BIAS)
    rows = both if is_bias else _by_rows(both, turned)
    outputs = rows.shape[-1 if is_bias else 0]
    if len(rows.shape) != 2 or outputs % 2:
        raise CheckpointError(f"{name} has the shape {both.shape}, which cannot be halved")
    if not is_bias:
        return rows.every(2, 0), rows.every(2, 1)
    numbers: NDArray[np.int64] = np.arange(0, outputs, 2)
    return rows.columns(numbers), rows.columns(numbers + 1)


def _by_rows(tensor: Tensor, turned: Turned) -> Tensor:
    """All experts' outputs one below the other; floats have each expert's outputs as columns."""
    return transposed(tensor, turned) if len(tensor.shape) == 3 else tensor


def transposed(matrices: Tensor, turned: Turned) -> Tensor:
    """Matrices of floats `(n, rows, columns)` as one `(n * columns, rows)`: columns become rows.

    Args:
        matrices: A whole one is read at a time.
        turned: Reads it.
    """
    number, rows, columns = matrices.shape

    def read_rows(start: int, stop: int) -> NDArray[np.float32]:
        numbers = range(start // columns, -(-stop // columns))
        parts = [
            turned(matrices, it)[max(start - it * columns, 0) : stop - it * columns]
            for it in numbers
        ]
        return np.concatenate(parts)

    def read_blocks(start: int, stop: int) -> NDArray[np.uint8]:
        floats = read_rows(start, stop)
        if matrices.stored_type == "BF16":
            stored: NDArray[Any] = (floats.view(np.uint32) >> 16).astype("<u2")
        else:
            stored = floats.astype(_FLOATS[str(matrices.stored_type)])
        return stored.view(np.uint8).reshape(*floats.shape, stored.itemsize)

    is_known = matrices.stored_type in (*_FLOATS, "BF16")
    blocks = StoredBlocks(str(matrices.stored_type), read_blocks) if is_known else None
    return replace(matrices, shape=(number * columns, rows), read_rows=read_rows, blocks=blocks)


def last_turned() -> Turned:
    """Keeps the last matrix that it has read, 66 MB of gpt-oss, as long as it lives itself.

    So all tensors of a checkpoint share one, which goes with them.
    """
    return lru_cache(maxsize=1)(_turned)


def _turned(matrices: Tensor, number: int) -> NDArray[np.float32]:
    """Columns of a matrix as rows."""
    return np.ascontiguousarray(matrices.read_rows(number, number + 1)[0].T)


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, of which those in MXFP4 are matrices under their names.

    Raises:
        CheckpointError: One has blocks alone, or of another form.
    """
    found = dict(tensors)
    for name, blocks in tensors.items():
        if name.endswith(_BLOCKS) and blocks.stored_type == _BYTES and blocks.read_bytes:
            whole, scales = name.removesuffix(_BLOCKS), f"{name.removesuffix(_BLOCKS)}{_SCALES}"
            del found[name]
            found[whole] = _matrix(whole, blocks, blocks.read_bytes, found.pop(scales, None))
    return found


def _matrix(name: str, blocks: Tensor, numbers: ReadBytes, scales: Tensor | None) -> Tensor:
    """The matrix that blocks and their exponents are.

    Raises:
        CheckpointError: Exponents are missing, or do not match.
    """
    if scales is None:
        raise CheckpointError(f"the checkpoint has {blocks.name}, but no {name}{_SCALES}")
    if len(blocks.shape) < 3 or blocks.shape[-1] != _HALF or scales.shape != blocks.shape[:-1]:
        raise CheckpointError(
            f"{blocks.name} has the shape {blocks.shape} and {scales.name} {scales.shape}, "
            f"expected (.., groups, {_HALF}) and (.., groups)"
        )
    if scales.stored_type != _BYTES or scales.read_bytes is None:
        raise CheckpointError(f"{scales.name} has the type {scales.stored_type}, expected {_BYTES}")
    *outer, groups = scales.shape
    packed = _Packed(scales.name, groups, numbers, scales.read_bytes)
    shape = (math.prod(outer), groups * _SIZE)
    return Tensor(name, shape, packed.rows, StoredBlocks(_TYPE, packed.blocks), _TYPE)


@dataclass(frozen=True)
class _Packed:
    """The rows of a matrix in MXFP4."""

    name: str
    """That of the exponents."""
    groups: int
    """Exponents of a row."""
    read_numbers: ReadBytes
    read_exponents: ReadBytes

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start..stop` as float32.

        Raises:
            CheckpointError: As of `blocks`.
        """
        blocks = self.blocks(start, stop)
        return float_rows(GGMLQuantizationType.MXFP4, blocks.reshape(stop - start, -1))

    def blocks(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows `start..stop`, `(n, groups, 17)`.

        Raises:
            CheckpointError: A file ends early, or an exponent makes numbers that are no float32.
        """
        first, last = start * self.groups, stop * self.groups
        exponents = self.read_exponents(first, last)
        if (exponents > MOST_EXPONENT).any():
            raise CheckpointError(f"{self.name} holds NaN or infinite values")
        pairs = self.read_numbers(first * _HALF, last * _HALF).reshape(-1, 2, _HALF // 2)
        low, high = pairs[:, 0], pairs[:, 1]
        blocks = np.empty((len(pairs), 1 + _HALF), np.uint8)
        blocks[:, 0] = exponents
        blocks[:, 1::2] = low & 15 | high << 4
        blocks[:, 2::2] = low >> 4 | high & 0xF0
        return blocks.reshape(stop - start, self.groups, 1 + _HALF)


def _gguf_fields(metadata: GgufMetadata) -> dict[str, Any]:
    """Its experts and windows.

    Raises:
        CheckpointError: A value is missing or no number.
        UnsupportedModelError: Experts are chosen in another way.
    """
    sizes = expert_fields(metadata, SOFTMAX_OF_CHOSEN)
    return {
        **window_fields(metadata, 2),
        "num_local_experts": sizes["num_experts"],
        "num_experts_per_tok": sizes["num_experts_per_tok"],
        "intermediate_size": sizes["moe_intermediate_size"],
    }


GPT_OSS = Family(
    "gpt_oss",
    "GptOssForCausalLM",
    _DEFAULTS,
    _gpt_oss_fields,
    qkv_bias=True,
    out_bias=True,
    has_sinks=True,
    quantized_by="mxfp4",
    window_rule=pattern_layers,
    has_layer_types=True,
    experts=_gpt_oss_experts,
    names={".mlp.router.": ".mlp.gate."},
    tensors=gpt_oss_tensors,
    gguf=(
        Gguf(
            "gpt-oss",
            NORM_BEHIND_ATTENTION | EXPERTS,
            fields=_gguf_fields,
            whole_names={"attn_sinks.weight": "self_attn.sinks"},
        ),
    ),
)
