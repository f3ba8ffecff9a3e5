"""The layers and the head of a checkpoint in the weight files of a bundle.

In: a `Checkpoint`. Out: weights appended through a `WeightWriter`, with records for the graphs.
"""

from coordgen_rs.tools.export.checkpoints.checkpoint import (
    Checkpoint,
    final_norm_tensor,
    norm_names,
    norm_tensor,
    output_tensor,
)
from coordgen_rs.tools.export.checkpoints.tensor import Tensor
from coordgen_rs.tools.export.stored import (
    Bits,
    StoredHead,
    StoredLayer,
    StoredLinear,
    StoredTensor,
    WeightWriter,
)


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
