"""Writing a whole bundle.

In: the path of a checkpoint and what the bundle shall be. Out: a directory for `Bundle.open`.
"""

from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx

from coordgen_rs.errors import OptionError
from coordgen_rs.export.checkpoint import Checkpoint, open_checkpoint
from coordgen_rs.export.graph import GraphShape, block_graph, head_graph
from coordgen_rs.export.stored import (
    StoredHead,
    StoredLayer,
    StoredLinear,
    StoredTensor,
    WeightWriter,
)
from coordgen_rs.export.tensor import Tensor
from coordgen_rs.export.writer import Staging, staged_directory
from coordgen_rs.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    BlockFiles,
    EmbeddingFile,
    HeadFiles,
    Manifest,
    ModelShape,
    WeightKind,
)

_NARROW_WIDTHS = (1, 4, 8, 16, 32)
_DEFAULT_CONTEXT = 4096
_BITS: dict[str, tuple[int | None, int | None]] = {
    "fp32": (None, None),
    "int8": (8, 8),
    "int4": (4, 8),
}
"""Bits of the blocks and of the head, which is more sensitive, by kind of weights."""


def export_checkpoint(
    checkpoint: str | Path,
    out: str | Path,
    *,
    weights: WeightKind = "fp32",
    blocks: int = 1,
    prefill_rows: int = 256,
    decode_rows: int = 32,
    context: int | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Writes the bundle `out` from a checkpoint that `open_checkpoint` knows.

    The layers are cut into `blocks` blocks of nearly equal length. Graphs are made for the widths
    1, 4, 8, 16 and 32 up to `decode_rows`, for `decode_rows` and for `prefill_rows`. `context`, the
    most tokens of a request, is the model's own limit but at most 4,096 if it is None.
    `on_progress(what, done, total)` is called before each layer and after the last.

    Memory: some pieces of 8 MiB and, when quantising, the scales of one layer. `out` appears only
    when it is complete; after an exception nothing is left behind.
    Raises OptionError for an option outside its range, CheckpointError (UnsupportedModelError) for
    the checkpoint, ExportError if `out` exists or cannot be written.
    """
    source = open_checkpoint(Path(checkpoint))
    if context is None:
        context = min(source.config.max_positions, _DEFAULT_CONTEXT)
    _check_options(source, weights, blocks, prefill_rows, decode_rows, context)
    with staged_directory(Path(out)) as staging:
        _Exporter(
            source, staging, weights, blocks, prefill_rows, decode_rows, context, on_progress
        ).run()


def _check_options(
    source: Checkpoint,
    weights: str,
    blocks: int,
    prefill_rows: int,
    decode_rows: int,
    context: int,
) -> None:
    if weights not in _BITS:
        raise OptionError(f"weights is {weights!r}, expected one of {', '.join(_BITS)}")
    limits = {
        "blocks": (blocks, source.config.num_layers),
        "decode_rows": (decode_rows, 1 << 16),
        "prefill_rows": (prefill_rows, 1 << 16),
        "context": (context, source.config.max_positions),
    }
    for name, (value, most) in limits.items():
        if not 1 <= value <= most:
            raise OptionError(f"{name} is {value}, expected 1 to {most}")


class _Exporter:
    """The state of one export: what is written so far, and the options."""

    def __init__(
        self,
        source: Checkpoint,
        staging: Staging,
        weights: WeightKind,
        num_blocks: int,
        prefill_rows: int,
        decode_rows: int,
        context: int,
        on_progress: Callable[[str, int, int], None] | None,
    ) -> None:
        config = source.config
        self._source = source
        self._staging = staging
        self._weights: WeightKind = weights
        self._block_bits, self._head_bits = _BITS[weights]
        self._num_blocks = num_blocks
        self._prefill_rows = prefill_rows
        self._decode_rows = decode_rows
        self._context = context
        self._on_progress = on_progress
        narrow = {width for width in _NARROW_WIDTHS if width <= decode_rows}
        self._widths = sorted(narrow | {decode_rows, prefill_rows})
        self._slots = context + self._widths[-1]
        self._model = ModelShape(
            family=config.family,
            hidden_size=config.hidden_size,
            ffn_size=config.ffn_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            rms_norm_eps=config.rms_norm_eps,
        )

    def run(self) -> None:
        """Writes all files, the manifest last."""
        config, num_layers = self._source.config, self._model.num_layers
        tokenizer = self._source.read_tokenizer()
        self._staging.write("tokenizer.json", tokenizer.encode())
        self._progress("embedding", 0)
        embedding = self._write_embedding()
        blocks = [
            self._write_block(index, layers)
            for index, layers in enumerate(_cut(num_layers, self._num_blocks))
        ]
        self._progress("head", num_layers + 1)
        head = self._write_head(embedding)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            tool=f"coordgen-rs {metadata.version('coordgen-rs')}",
            model=self._model,
            weights=self._weights,
            context=self._context,
            slots=self._slots,
            widths=self._widths,
            prefill_rows=self._prefill_rows,
            decode_rows=self._decode_rows,
            bos_token_id=config.bos_token_id,
            end_token_ids=config.end_token_ids,
            inv_freq=config.inv_freq,
            blocks=blocks,
            head=head,
            embedding=embedding,
            tokenizer="tokenizer.json",
            files=dict(self._staging.records),
        )
        self._staging.write(MANIFEST_NAME, manifest.to_json().encode())
        self._progress("done", num_layers + 2)

    def _write_embedding(self) -> EmbeddingFile:
        tensor = self._embedding()
        is_exact = self._weights == "fp32"
        dtype = np.dtype("<f4" if is_exact else "<f2")
        with self._staging.create("embedding.bin") as file:
            for piece in tensor.pieces():
                file.write(piece.astype(dtype, copy=False))
        return EmbeddingFile("embedding.bin", "float32" if is_exact else "float16")

    def _write_block(self, index: int, layers: range) -> BlockFiles:
        name = f"block_{index:02}"
        stored = []
        with self._staging.create(f"{name}.weights") as file:
            writer = WeightWriter(f"{name}.weights", file)
            for layer in layers:
                self._progress(f"layer {layer}", layer + 1)
                stored.append(self._write_layer(writer, layer))
        graphs = self._write_graphs(name, lambda shape: block_graph(shape, stored, layers.start))
        return BlockFiles(layers.start, len(layers), f"{name}.weights", graphs)

    def _write_layer(self, writer: WeightWriter, number: int) -> StoredLayer:
        config, source, bits = self._source.config, self._source, self._block_bits
        hidden, ffn = config.hidden_size, config.ffn_size
        queries, keys = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        layer = f"model.layers.{number}"

        def matrix(part: str, out_features: int, in_features: int) -> Tensor:
            return source.tensor(f"{layer}.{part}.weight", out_features, in_features)

        def norm(part: str) -> StoredTensor:
            return writer.tensor(source.tensor(f"{layer}.{part}.weight", hidden))

        projections = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        biases = [
            source.tensor(f"{layer}.self_attn.{part}.bias", size)
            for part, size in projections.items()
            if config.qkv_bias
        ]
        qkv = [matrix(f"self_attn.{part}", size, hidden) for part, size in projections.items()]
        attention_out = matrix("self_attn.o_proj", hidden, queries)
        gate_up = [matrix(f"mlp.{part}", ffn, hidden) for part in ("gate_proj", "up_proj")]
        return StoredLayer(
            attention_norm=norm("input_layernorm"),
            qkv=writer.linear(qkv, bits, biases),
            attention_out=writer.linear([attention_out], bits),
            ffn_norm=norm("post_attention_layernorm"),
            gate_up=writer.linear(gate_up, bits),
            down=writer.linear([matrix("mlp.down_proj", hidden, ffn)], bits),
        )

    def _write_head(self, embedding: EmbeddingFile) -> HeadFiles:
        config, bits = self._source.config, self._head_bits
        with self._staging.create("head.weights") as file:
            writer = WeightWriter("head.weights", file)
            norm = writer.tensor(self._source.tensor("model.norm.weight", config.hidden_size))
            if not config.tied_head:
                shape = (config.vocab_size, config.hidden_size)
                output = writer.linear([self._source.tensor("lm_head.weight", *shape)], bits)
            elif bits is None:
                output = self._tied_output(embedding.file)
            else:
                output = writer.linear([self._embedding()], bits)
        graphs = self._write_graphs(
            "head", lambda shape: head_graph(shape, StoredHead(norm, output))
        )
        return HeadFiles(sorted({"head.weights", output.weight.file}), graphs)

    def _embedding(self) -> Tensor:
        config = self._source.config
        name = "model.embed_tokens.weight"
        if config.tied_head and name not in self._source.tensors:
            # Which of the two names a tied tensor is stored under is the writer's choice.
            name = "lm_head.weight"
        return self._source.tensor(name, config.vocab_size, config.hidden_size)

    def _tied_output(self, file: str) -> StoredLinear:
        """The embedding's own rows as the output layer."""
        num_bytes = self._staging.records[file].num_bytes
        shape = (self._model.vocab_size, self._model.hidden_size)
        weight = StoredTensor(file, 0, num_bytes, shape, onnx.TensorProto.FLOAT)
        return StoredLinear(shape[1], shape[0], None, weight, None, None, None)

    def _write_graphs(
        self, name: str, build: Callable[[GraphShape], onnx.ModelProto]
    ) -> dict[int, str]:
        """One graph per width over the same weights; file names by width."""
        names = {}
        for rows in self._widths:
            model = build(GraphShape(self._model, rows, self._slots))
            names[rows] = f"{name}.rows_{rows}.onnx"
            self._staging.write(names[rows], model.SerializeToString())
        return names

    def _progress(self, what: str, done: int) -> None:
        if self._on_progress is not None:
            self._on_progress(what, done, self._model.num_layers + 2)


def _cut(num_layers: int, num_blocks: int) -> Iterator[range]:
    """`num_layers` layers in `num_blocks` runs whose lengths differ by at most one."""
    for index in range(num_blocks):
        yield range(num_layers * index // num_blocks, num_layers * (index + 1) // num_blocks)
