"""A checkpoint: a model's configuration, its weights by name, and its tokenizer.

In: the path that a user gives, or a name of the Hugging Face Hub. Out: a `Checkpoint`, the same for
every container and family, and which of its tensors make an embedding, a decoder layer, and the
head. Weights carry Llama's and Qwen3-MoE's names and have their shapes; one that no model of the
family has is refused by name. Of a model that also sees pictures, it is what a checkpoint of its
language model alone would hold: pictures cannot be read. Only headers are read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from coordgen_rs.convert.containers.gguf.file import GgufHeader, GgufTensor, open_tensor, read_parts
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.containers.gguf.tokenizer import (
    chat_templates,
    generation_config,
    tokenizer_json,
)
from coordgen_rs.convert.containers.hugging_face import (
    fetch,
    hub_name,
    open_weights,
    read_json_file,
    read_tokenizer,
    read_tokenizer_json,
)
from coordgen_rs.convert.containers.llama2c import read_llama2c
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config_json import refuse_field
from coordgen_rs.convert.families.family import Family, model_config
from coordgen_rs.convert.families.gguf import (
    ROPE_TENSORS,
    Arranged,
    Gguf,
    config_fields,
    named_by_file,
)
from coordgen_rs.convert.families.model_config import (
    PARTS,
    ROUTER,
    ModelConfig,
    halved_experts,
    linear_layers,
    matrices_of_experts,
    matrices_of_recurrent_layers,
)
from coordgen_rs.convert.families.table import FAMILIES, family_of, gguf_family_of, parse_config
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from coordgen_rs.errors.json_text import JsonTextError, open_regular
from coordgen_rs.text.chat_template import ChatTemplates, read_templates

_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
_PER_LAYER = "model.embed_tokens_per_layer.weight"
_OUTSIDE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
"""Fields that the whole may have instead of its part."""
_OTHER_EMBEDDING = "mtp_use_dedicated_embeddings"


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; nothing but headers has been read."""

    config: ModelConfig
    tensors: dict[str, Tensor]
    read_tokenizer: Callable[[], str]
    """The text of a tokenizer.json; may raise CheckpointError."""
    read_chat: Callable[[], ChatTemplates] = ChatTemplates
    """The chat templates; none by default. May raise ChatTemplateError."""
    tokens: Sequence[str] = ()
    """The texts of the tokens, by id, where the checkpoint says them beside its tokenizer."""
    is_gguf: bool = False
    """Whether it is a GGUF file."""

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor of that name.

        Raises:
            CheckpointError: It is missing, or of another shape.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        if tensor.shape != shape:
            raise CheckpointError(f"{name} has the shape {tensor.shape}, expected {shape}")
        return tensor

    def embedding_tensor(self) -> Tensor:
        """The embedding, `(vocab_size, hidden_size)`; raises CheckpointError if it is not there."""
        # Which of its two names a tied tensor is stored under is the writer's choice.
        is_other_name = self.config.tied_head and _EMBEDDING not in self.tensors
        name = _OUTPUT if is_other_name else _EMBEDDING
        return self.tensor(name, self.config.vocab_size, self.config.hidden_size)

    def output_tensor(self) -> Tensor:
        """The output layer, `(vocab_size, hidden_size)`; raises as `embedding_tensor` does."""
        if self.config.tied_head:
            return self.embedding_tensor()
        return self.tensor(_OUTPUT, self.config.vocab_size, self.config.hidden_size)

    def first_hidden_tensor(self) -> Tensor:
        """The embedding as the first layer reads it; raises as `embedding_tensor` does."""
        return self.embedding_tensor().times(self.config.embedding_scale)

    def per_layer_tensor(self) -> Tensor | None:
        """The embedding of layers, `(vocab_size * num_layers, per_layer_size)`, if there is one.

        Raises CheckpointError if it should be there and is not.
        """
        config = self.config
        if not config.per_layer_size:
            return None
        columns = config.num_layers * config.per_layer_size
        return self.tensor(_PER_LAYER, config.vocab_size, columns).cut(config.num_layers)

    def norm_tensor(self, name: str, size: int) -> Tensor:
        """What a norm multiplies by, `(size,)`; raises CheckpointError if it is not there."""
        return self.tensor(f"{name}.weight", size).times(1.0, plus=self.config.norm_offset)

    def final_norm_tensor(self) -> Tensor:
        """What the last norm multiplies by, the scale of the logits included, `(hidden_size,)`.

        Raises CheckpointError if it is not there.
        """
        config = self.config
        return self.norm_tensor("model.norm", config.hidden_size).times(config.logits_scale)

    def weight_tensor(self, number: int, part: str) -> Tensor:
        """A linear layer's weight `(out, in)` in layer `number`, by its name in an unfused model.

        Raises CheckpointError if it is missing, misshaped or damaged.
        """
        config, prefix = self.config, f"model.layers.{number}"
        layers = linear_layers(replace(config, is_fused=False), number).values()
        shapes = next(shapes for shapes in layers if part in shapes)
        rows, columns = shapes[part]
        if not config.is_fused or len(shapes) == 1:
            return self.tensor(f"{prefix}.{part}.weight", rows, columns)
        whole = "mlp.gate_up_proj" if part.startswith("mlp.") else "self_attn.qkv_proj"
        sizes = [size for size, _ in shapes.values()]
        first = sum(sizes[: list(shapes).index(part)])
        fused = self.tensor(f"{prefix}.{whole}.weight", sum(sizes), columns)
        return fused.part(first, first + rows)


def read_tensors(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The tensors without those of keys and values that no layer reads, as some checkpoints have.

    They are of layers that read the keys and values of an earlier one.
    """
    left_out = tuple(
        f"model.layers.{number}.self_attn.{part}."
        for number in range(config.num_layers)
        if config.shares_keys(number)
        for part in ("k_proj", "v_proj", "k_norm", "v_norm")
    )
    return {name: it for name, it in tensors.items() if not name.startswith(left_out)}


def open_checkpoint(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Opens a Hugging Face directory, a GGUF file, or a llama2.c `.bin` or a directory with one.

    Args:
        path: The checkpoint's path, or `hf:OWNER/NAME[/FILE.gguf][@REVISION]`.
        tokenizer: A tokenizer.json that takes the place of the checkpoint's own.

    Raises:
        CheckpointError: Something is missing or damaged.
        UnsupportedModelError: The exporter cannot do this model.
        OptionError: The path is of the form `hf:..`, and malformed, or huggingface_hub is absent.
    """
    source = _open(path)
    if tokenizer is None:
        return source
    return replace(source, read_tokenizer=partial(_given_tokenizer, tokenizer, source))


def read_config(path: Path) -> ModelConfig:
    """What config.json and generation_config.json in a directory say.

    Raises:
        CheckpointError: One is missing or damaged.
        UnsupportedModelError: The exporter cannot do this model.
    """
    return parse_config(text_config(read_json_file(path / "config.json")), _read_generation(path))


def fetched(
    path: Path, check: Callable[[Path], object] = read_config, *, needs_tokenizer: bool = True
) -> Path:
    """Where a checkpoint is on this machine: the path itself, or what a name of the hub gave.

    Args:
        path: The path, or the name.
        check: Is given a directory of the hub when nothing but the configuration is in it.
        needs_tokenizer: Whether a directory of the hub without a tokenizer is refused.

    Raises:
        CheckpointError: It cannot be fetched.
        OptionError: The path is of the form `hf:..`, and malformed, or huggingface_hub is absent.
    """
    name = hub_name(path)
    return path if name is None else fetch(name, check, needs_tokenizer=needs_tokenizer)


def _given_tokenizer(path: Path, source: Checkpoint) -> str:
    """The text of a tokenizer.json that the user gives.

    Raises:
        CheckpointError: It is damaged, or of another model.
    """
    text = read_tokenizer_json(path)
    ids = Tokenizer.from_str(text).get_vocab()
    largest, size = max(ids.values(), default=0), source.config.vocab_size
    if largest >= size:
        raise CheckpointError(
            f"{path} is another model's: it has the token id {largest}, the vocabulary {size} ids"
        )
    others = [number for number, token in enumerate(source.tokens) if ids.get(token) != number]
    if len(others) > len(source.tokens) // 2:  # some may be padding, or written in another way
        raise CheckpointError(
            f"{path} is another model's: {len(others)} of {len(source.tokens)} tokens differ, "
            f"first {source.tokens[others[0]]!r:.40}"
        )
    return text


def _open(path: Path) -> Checkpoint:
    """The checkpoint with its own tokenizer.

    Raises:
        CheckpointError: Something is missing or damaged.
    """
    path = fetched(path)
    if (path / "config.json").is_file():
        return open_hugging_face(path)
    if path.is_file() and _is_gguf(path):
        return open_gguf(path)
    if path.is_file() and path.suffix == ".bin":
        return open_llama2c(path)
    if (path / "manifest.json").is_file():
        raise CheckpointError(f"{path} is a bundle: give the checkpoint that it was exported from")
    models = [file for file in path.glob("*.bin") if not file.name.startswith("tok")]
    if len(models) == 1:
        return open_llama2c(models[0])
    raise CheckpointError(f"{path} {_what_it_is(path)}")


def _is_gguf(path: Path) -> bool:
    """Whether a file is one of GGUF, by its name or, as in the store of Ollama, its first bytes."""
    if path.suffix == ".gguf":
        return True
    try:
        with open_regular(path) as stream:
            return stream.read(4) == b"GGUF"
    except (OSError, JsonTextError):
        return False


def _what_it_is(path: Path) -> str:
    """Why a path is no checkpoint."""
    if not path.exists():
        is_address = str(path).startswith(("http:/", "https:/"))
        why = "is an address" if is_address else "does not exist"
        return f"{why}; a model of the Hugging Face Hub is called hf:OWNER/NAME"
    files = sorted(path.glob("*.gguf"))
    if files:
        return f"is a directory with a GGUF file, not a checkpoint: give the file, {files[0]}"
    if path.is_file():
        return "is no GGUF file; give one, or a directory with a config.json"
    return "holds no config.json and no GGUF file, and no single llama2.c .bin file"


def open_hugging_face(path: Path) -> Checkpoint:
    """Opens a directory.

    Raises:
        CheckpointError: Something is missing or damaged.
        UnsupportedModelError: The exporter cannot do this model.
    """
    tensors = open_weights(path)
    whole = read_json_file(path / "config.json")
    config = text_config(whole)
    if config is not whole:
        tensors = text_tensors(tensors)
        # Where neither part says it, a head of its own tells.
        config = {"tie_word_embeddings": "lm_head.weight" not in tensors, **config}
    if config.get(_OTHER_EMBEDDING):  # a head for further tokens that the graphs cannot do
        tensors = {name: it for name, it in tensors.items() if not name.startswith("mtp.")}
    parsed = model_config(family_of(config), config, _read_generation(path))
    tensors = usual_tensors(tensors, family_of(config), parsed)
    read_chat = partial(read_templates, path)
    return Checkpoint(
        parsed, read_tensors(tensors, parsed), partial(read_tokenizer, path), read_chat
    )


def _read_generation(path: Path) -> dict[str, Any]:
    generation = path / "generation_config.json"
    return read_json_file(generation) if generation.exists() else {}


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the language model inside, or the same if that is all there is.

    Raises:
        CheckpointError: There is none inside.
        UnsupportedModelError: It is of a kind that is not supported, or a drafter.
    """
    architectures = config.get("architectures")
    drafter = next((it.assistant for it in FAMILIES if architectures == [it.assistant]), None)
    if drafter is not None:
        raise UnsupportedModelError(
            f"config.json: {drafter} drafts for another model: export that one, with this "
            "one as --assistant"
        )
    inside = [(it.inside, it) for it in FAMILIES if it.inside is not None]
    parts = {kind: family for (whole, kind), family in inside if architectures == [whole]}
    if not parts:
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        refuse_field(config, "text_config", "an object")
    kind = text.get("model_type", next(iter(parts)))
    if not isinstance(kind, str) or kind not in parts:
        raise UnsupportedModelError(
            f"config.json: text_config has the model_type {kind!r:.60}, which is not supported, "
            f"only {', '.join(parts)}"
        )
    outside = {name: config[name] for name in _OUTSIDE if name in config}
    return {**outside, **text, "architectures": [parts[kind].architecture]}


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file, which may be in parts.

    Raises:
        CheckpointError: It is damaged, or lacks something; or it is not the first part.
        UnsupportedModelError: The exporter cannot do this model.
    """
    header = read_parts(path)
    metadata = GgufMetadata(header)
    _, gguf = gguf_family_of(metadata)
    config = read_metadata(metadata)
    tensors, config = gguf_tensors(metadata, gguf, config)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return Checkpoint(
        config,
        read_tensors(tensors, config),
        partial(tokenizer_json, header),
        partial(chat_templates, header),
        tokens=tokens if isinstance(tokens, list) else [],
        is_gguf=True,
    )


def read_metadata(metadata: GgufMetadata) -> ModelConfig:
    """What the metadata of a GGUF file says.

    Raises:
        CheckpointError: A key is missing or malformed.
        UnsupportedModelError: The exporter cannot do this model.
    """
    family, gguf = gguf_family_of(metadata)
    with named_by_file(metadata, gguf):
        fields = config_fields(metadata, gguf)
        config = model_config(family, fields, generation_config(metadata.header))
    # llama.cpp's converter has added the offset of Gemma and Qwen3.5 to the weights.
    return replace(config, norm_offset=0.0)


def open_llama2c(path: Path) -> Checkpoint:
    """Opens a legacy checkpoint of llama2.c.

    Raises:
        CheckpointError: The header makes no sense, or the file has another length than it says.
    """
    found = read_llama2c(path)
    return Checkpoint(parse_config(found.config, {}), found.tensors, found.read_tokenizer)


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
