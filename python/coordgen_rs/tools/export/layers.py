"""Which tensors of a checkpoint make an embedding, a decoder layer, and the head.

In: a `Checkpoint`. Out: weights appended through a `WeightWriter`, with records for the graphs.
"""

from coordgen_rs.tools.export.checkpoints.checkpoint import Checkpoint
from coordgen_rs.tools.export.checkpoints.config import ModelConfig
from coordgen_rs.tools.export.checkpoints.tensor import Tensor
from coordgen_rs.tools.export.stored import (
    Bits,
    StoredHead,
    StoredLayer,
    StoredLinear,
    StoredTensor,
    WeightWriter,
)

_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def embedding_tensor(source: Checkpoint) -> Tensor:
    """The embedding, `(vocab_size, hidden_size)`; raises CheckpointError if it is not there."""
    # Which of its two names a tied tensor is stored under is the writer's choice.
    is_other_name = source.config.tied_head and _EMBEDDING not in source.tensors
    name = _OUTPUT if is_other_name else _EMBEDDING
    return source.tensor(name, source.config.vocab_size, source.config.hidden_size)


def output_tensor(source: Checkpoint) -> Tensor:
    """The output layer, `(vocab_size, hidden_size)`; raises CheckpointError if it is not there."""
    if source.config.tied_head:
        return embedding_tensor(source)
    return source.tensor(_OUTPUT, source.config.vocab_size, source.config.hidden_size)


def first_hidden_tensor(source: Checkpoint) -> Tensor:
    """The embedding as the first layer reads it; raises as `embedding_tensor` does."""
    return embedding_tensor(source).times(source.config.embedding_scale)


def norm_tensor(source: Checkpoint, name: str, size: int) -> Tensor:
    """What a norm multiplies by, `(size,)`; raises CheckpointError if it is not there."""
    return source.tensor(f"{name}.weight", size).times(1.0, plus=source.config.norm_offset)


def norm_names(config: ModelConfig, number: int) -> dict[str, str]:
    """The tensors of the norms of layer `number`, by their field in a `StoredLayer`."""
    names = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if config.output_norms:
        names |= {
            "attention_out_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "ffn_out_norm": "post_feedforward_layernorm",
        }
    if config.qk_norm:
        names |= {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
    return {field: f"model.layers.{number}.{name}" for field, name in names.items()}


def final_norm_tensor(source: Checkpoint, is_shared: bool) -> Tensor:
    """What the last norm multiplies by, the scale of the logits included, `(hidden_size,)`.

    With an output layer that is shared with the embedding, the scale of that is taken out again.
    Raises CheckpointError if it is not there.
    """
    config = source.config
    scale = config.logits_scale / (config.embedding_scale if is_shared else 1.0)
    return norm_tensor(source, "model.norm", config.hidden_size).times(scale)


def weight_tensor(source: Checkpoint, number: int, part: str) -> Tensor:
    """A linear layer's weight `(out, in)` in layer `number`, by its name in an unfused model.

    Raises CheckpointError if it is missing, misshaped or damaged.
    """
    config, prefix = source.config, f"model.layers.{number}"
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
        return source.tensor(f"{prefix}.{part}.weight", rows, columns)
    name, all_rows, first = fused[part]
    return source.tensor(f"{prefix}.{name}.weight", all_rows, columns).part(first, first + rows)


def write_layer(source: Checkpoint, writer: WeightWriter, number: int, bits: Bits) -> StoredLayer:
    """Appends layer `number`.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged, and ExportError if
    the disk is full.
    """
    config = source.config
    hidden, ffn = config.hidden_size, config.ffn_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv_sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
    gate_up_sizes = {"gate_proj": ffn, "up_proj": ffn}
    if config.is_fused:
        qkv_sizes, gate_up_sizes = {"qkv_proj": query + 2 * key}, {"gate_up_proj": 2 * ffn}

    def tensor(part: str, *shape: int) -> Tensor:
        return source.tensor(f"model.layers.{number}.{part}", *shape)

    qkv = [tensor(f"self_attn.{part}.weight", n, hidden) for part, n in qkv_sizes.items()]
    biases = [
        tensor(f"self_attn.{part}.bias", n) for part, n in qkv_sizes.items() if config.qkv_bias
    ]
    gate_up = [tensor(f"mlp.{part}.weight", n, hidden) for part, n in gate_up_sizes.items()]
    norms = norm_names(config, number)

    def norm(field: str) -> StoredTensor:
        size = config.head_dim if field in ("query_norm", "key_norm") else hidden
        return writer.tensor(norm_tensor(source, norms[field], size))

    return StoredLayer(
        attention_norm=norm("attention_norm"),
        qkv=writer.linear(qkv, bits, biases),
        attention_out=writer.linear([tensor("self_attn.o_proj.weight", hidden, query)], bits),
        ffn_norm=norm("ffn_norm"),
        gate_up=writer.linear(gate_up, bits),
        down=writer.linear([tensor("mlp.down_proj.weight", hidden, ffn)], bits),
        **{field: norm(field) for field in norms if field not in ("attention_norm", "ffn_norm")},
    )


def write_head(
    source: Checkpoint, writer: WeightWriter, bits: Bits, shared: StoredLinear | None
) -> StoredHead:
    """Appends the final norm and the output layer, unless that is `shared` with the embedding.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    norm = writer.tensor(final_norm_tensor(source, shared is not None))
    if shared is not None:
        return StoredHead(norm, shared)
    return StoredHead(norm, writer.linear([output_tensor(source)], bits))
