"""A checkpoint: a model's configuration, its weights by name, and its tokenizer.

In: what a format's reader has opened. Out: a `Checkpoint`, the same for every format, and which of
its tensors make an embedding, a decoder layer, and the head. Weights carry their Hugging Face
names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.errors import CheckpointError
from coordgen_rs.text.chat_files import ChatTemplates

_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
_PER_LAYER = "model.embed_tokens_per_layer.weight"


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
        hidden, ffn = config.hidden_size, config.ffn_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        shapes = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        rows, columns = shapes[part]
        fused = {
            "self_attn.q_proj": ("self_attn.qkv_proj", query + 2 * key, 0),
            "self_attn.k_proj": ("self_attn.qkv_proj", query + 2 * key, query),
            "self_attn.v_proj": ("self_attn.qkv_proj", query + 2 * key, query + key),
            "mlp.gate_proj": ("mlp.gate_up_proj", 2 * ffn, 0),
            "mlp.up_proj": ("mlp.gate_up_proj", 2 * ffn, ffn),
        }
        if not config.is_fused or part not in fused:
            return self.tensor(f"{prefix}.{part}.weight", rows, columns)
        name, all_rows, first = fused[part]
        return self.tensor(f"{prefix}.{name}.weight", all_rows, columns).part(first, first + rows)


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
