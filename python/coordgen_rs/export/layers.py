"""Which tensors of a checkpoint make an embedding, a decoder layer, and the head.

In: a `Checkpoint`. Out: weights appended through a `WeightWriter`, with records for the graphs.
"""

from coordgen_rs.export.checkpoints.checkpoint import Checkpoint
from coordgen_rs.export.checkpoints.tensor import Tensor
from coordgen_rs.export.stored import StoredHead, StoredLayer, StoredLinear, WeightWriter

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


def write_layer(
    source: Checkpoint, writer: WeightWriter, number: int, bits: int | None
) -> StoredLayer:
    """Appends layer `number`; `bits` is None for float32.

    Raises CheckpointError for a tensor that is missing, misshaped or damaged, and ExportError if
    the disk is full.
    """
    config = source.config
    hidden, ffn = config.hidden_size, config.ffn_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv_sizes = {"q_proj": query, "k_proj": key, "v_proj": key}

    def tensor(part: str, *shape: int) -> Tensor:
        return source.tensor(f"model.layers.{number}.{part}", *shape)

    qkv = [tensor(f"self_attn.{part}.weight", n, hidden) for part, n in qkv_sizes.items()]
    biases = [
        tensor(f"self_attn.{part}.bias", n) for part, n in qkv_sizes.items() if config.qkv_bias
    ]
    norms = {"query_norm": "q_norm", "key_norm": "k_norm"} if config.qk_norm else {}
    gate_up = [tensor(f"mlp.{part}.weight", ffn, hidden) for part in ("gate_proj", "up_proj")]
    return StoredLayer(
        attention_norm=writer.tensor(tensor("input_layernorm.weight", hidden)),
        qkv=writer.linear(qkv, bits, biases),
        attention_out=writer.linear([tensor("self_attn.o_proj.weight", hidden, query)], bits),
        ffn_norm=writer.tensor(tensor("post_attention_layernorm.weight", hidden)),
        gate_up=writer.linear(gate_up, bits),
        down=writer.linear([tensor("mlp.down_proj.weight", hidden, ffn)], bits),
        **{
            name: writer.tensor(tensor(f"self_attn.{part}.weight", config.head_dim))
            for name, part in norms.items()
        },
    )


def write_head(
    source: Checkpoint, writer: WeightWriter, bits: int | None, shared: StoredLinear | None
) -> StoredHead:
    """Appends the final norm and the output layer, unless that is `shared` with the embedding.

    Raises CheckpointError and ExportError as `write_layer` does.
    """
    config = source.config
    norm = writer.tensor(source.tensor("model.norm.weight", config.hidden_size))
    if shared is not None:
        return StoredHead(norm, shared)
    return StoredHead(norm, writer.linear([output_tensor(source)], bits))
