"""The tensors of a checkpoint in Llama's and Qwen3-MoE's names and shapes.

In: the tensors of a Hugging Face directory, or of a GGUF file, and the model's family. Out: the
same, as a `Checkpoint` has them. A tensor that no model of the family has is refused by name.
"""

from dataclasses import replace

from coordgen_rs.convert.containers.gguf.file import GgufHeader, GgufTensor, open_tensor
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config.layers import (
    PARTS,
    ROUTER,
    halved_experts,
    matrices_of_experts,
    matrices_of_recurrent_layers,
)
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.family import Family
from coordgen_rs.convert.families.gguf import ROPE_TENSORS, Arranged, Gguf
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_PREFIXES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "model.mtp.": "mtp.",
    "language_model.lm_head.": "lm_head.",
}
"""What names of tensors begin with, before and since transformers 5, and without the rest."""
_ALONE = ("lm_head.", "mtp.")
"""What names begin with that are the same without the rest."""
_BIASES = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
_EXPERTS_BIASES = (f"{ROUTER}.bias", *(f".experts.{part}.bias" for part in PARTS))
_EXPERTS = ".mlp.experts."
_ROTATED = (".q_proj.", ".k_proj.")


def text_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the language model inside, under the names that they have alone."""
    found = {}
    for name, tensor in tensors.items():
        for prefix, alone in _PREFIXES.items():
            if name.startswith(prefix):
                found[alone + name.removeprefix(prefix)] = tensor
        if name.startswith(_ALONE):
            found[name] = tensor
    return found


def usual_tensors(
    tensors: dict[str, Tensor], family: Family, config: ModelConfig
) -> dict[str, Tensor]:
    """The tensors of a directory in Llama's and Qwen3-MoE's names and shapes.

    Raises:
        CheckpointError: One has a shape that it never has.
    """
    found = {}
    for name, tensor in tensors.items():
        for part, usual in family.names.items():
            name = name.replace(part, usual)
        found[name] = tensor
    found = family.tensors(found)
    if family.rotates_neighbours:
        found = {name: _in_halves(name, it, config, name) for name, it in found.items()}
    if config.experts is not None:
        found = halved_experts(matrices_of_experts(found), config.experts.num)
    return found if config.recurrent is None else matrices_of_recurrent_layers(found)


def gguf_tensors(metadata: GgufMetadata, gguf: Gguf, config: ModelConfig) -> Arranged:
    """The tensors of a GGUF file in the same names and shapes, and the configuration for them.

    Raises:
        UnsupportedModelError: A tensor has no such name, or is a bias that the graphs do not add.
        CheckpointError: A tensor has a shape that its kind never has.
    """
    path, layers, blocks = metadata.header.path, metadata.layers, metadata.blocks
    names = gguf.tensor_names(layers)
    left_out = (*ROPE_TENSORS, *(f"blk.{number}." for number in range(layers, blocks)))
    if blocks == layers + 1:
        names |= _next_names(gguf, metadata.header, layers)
    biases = _biases(config)
    tensors = {}
    for stored in metadata.header.tensors.values():
        name = names.get(stored.name)
        if name is None and stored.name.startswith(left_out):
            continue
        if name is None:
            raise UnsupportedModelError(
                f"{path}: the tensor {stored.name} is not one of this kind of model"
            )
        if name.endswith(".bias") and not name.endswith(biases):
            raise UnsupportedModelError(f"{path}: {name} is a bias, which is not supported")
        tensor = replace(open_tensor(_as_its_kind(stored, name, config)), name=name)
        if gguf.rotates_neighbours:
            tensor = _in_halves(name, tensor, config, f"{stored.path}: {stored.name}")
        tensors[name] = tensor
    tensors, config = gguf.arranged(tensors, config)
    if config.experts is not None:
        tensors = halved_experts(tensors, config.experts.num)
    return tensors, config


def _as_its_kind(stored: GgufTensor, name: str, config: ModelConfig) -> GgufTensor:
    """The tensor with as many dimensions as its kind has, a convolution without those of 1.

    Raises:
        CheckpointError: It has more.
    """
    shape, most = stored.shape, 3 if _EXPERTS in name and name.endswith(".weight") else 2
    recurrent = config.recurrent
    if recurrent is not None and name.endswith(f"{recurrent.tensors.convolution}.weight"):
        shape = (shape[0], *(size for size in shape[1:] if size != 1))
    if len(shape) > most:
        raise CheckpointError(
            f"{stored.path}: {stored.name} has the shape {stored.shape} of {stored.type.name}"
        )
    return replace(stored, shape=shape)


def _in_halves(name: str, tensor: Tensor, config: ModelConfig, told: str) -> Tensor:
    """The tensor; queries and keys, whose neighbours are rotated together, with these in halves.

    Args:
        name: The usual one.
        tensor: What it names.
        config: The model's.
        told: What it is called in messages.

    Raises:
        CheckpointError: It has no whole heads.
    """
    if not any(part in name for part in _ROTATED):
        return tensor
    if tensor.shape[0] % config.head_dim:
        raise CheckpointError(f"{told} has no whole heads of {config.head_dim} rows")
    return tensor.halves(config.head_dim, 2 * len(config.inv_freq))


def _biases(config: ModelConfig) -> tuple[str, ...]:
    """What the names of the biases end with that the graphs add; no metadata tells of others."""
    found: tuple[str, ...] = _BIASES if config.qkv_bias else ()
    if config.out_bias:
        found += ("self_attn.o_proj.bias",)
    if config.experts is not None and config.experts.has_biases:
        found += _EXPERTS_BIASES
    if config.recurrent is not None and config.recurrent.tensors.has_bias:
        found += (f"{config.recurrent.tensors.convolution}.bias",)
    return found


def _next_names(gguf: Gguf, header: GgufHeader, block: int) -> dict[str, str]:
    """The names of a head for further tokens; none where it is not like that of Qwen3.5.

    That reads the model's own embedding, and is scored by its own output layer.
    """
    names = gguf.next_token_names(block)
    beside = {name for name in header.tensors if name.startswith(f"blk.{block}.nextn.")}
    return names if beside == {name for name in names if ".nextn." in name} else {}
