"""A folder of ONNX Runtime GenAI on ONNX Runtime's CPU provider: the device of such sessions.

In: an opened folder. Out: a `CpuDevice` with one block, which embeds and rotates by itself. Its
graphs are made in memory and read their weights from the folder's files: all layers, which read
token ids, and the head, the product that makes logits, cut off, as reading a prompt needs none.

GroupQueryAttention is replaced by attention along the paths of a draft tree (`src/ort`), whose rows
have the same bits at every width and which writes keys and values to the cache in place. The
original has a kernel of its own for one row, which gives other bits, and cannot be told of a tree.
"""

from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper

from coordgen_rs.bundle.manifest import ModelShape
from coordgen_rs.errors import BundleError
from coordgen_rs.formats.genai.folder import GenaiFolder, damage_named
from coordgen_rs.formats.genai.graph import DecoderGraph, attributes
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.cpu import CpuDevice, load_graph
from coordgen_rs.runtime.onnx_runtime import KERNEL_DOMAIN

_OPSET, _IR_VERSION = 24, 11
_ROWS, _SLOTS, _ROW_BYTES = "rows", "slots", "row_bytes"

_PATH: dict[str, int | str] = {"parents": "nodes", "sequences": "nodes", "lengths": 1, "span": 2}
"""What attention reads of a step, and how much of it."""
_ANY = -1
"""The dimension that a Reshape infers."""
_NO_WINDOW = -1

_INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
    *("k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
)
_UNSUPPORTED_INPUTS = (
    *("attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
)
"""ONNX Runtime's CPU provider does not run the last four: a folder for CPU has none of them."""
_READ = (
    *("num_heads", "kv_num_heads", "scale", "local_window_size", "softcap", "do_rotary"),
    "rotary_interleaved",
)
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "sliding_window_cache": (0, 1),
    "smooth_softmax": (0, -1),
    "causal": (1,),
    "k_quant_type": (b"NONE",),
    "v_quant_type": (b"NONE",),
    "kv_cache_bit_width": (0,),
    "qk_output": (0,),
}
"""Attributes that are not read, and the values that they may have."""


class GenaiDevice(CpuDevice):
    """A folder on ONNX Runtime's CPU provider.

    Args:
        folder: An opened folder.
        share_graphs: Same as in `CpuDevice`.
        kv_cache: Same as in `CpuDevice`.

    Raises:
        OptionError: Keys and values cannot be held so.
        BundleError: The graph does something that cannot be run; the message names it.
    """

    reads_tokens = True

    def __init__(
        self, folder: GenaiFolder, *, share_graphs: bool = True, kv_cache: str = KV_FORMS[0]
    ) -> None:
        super().__init__(folder, share_graphs=share_graphs, kv_cache=kv_cache)
        self._weights = folder.weights_directory()  # a refusal comes before anything is loaded
        self._path, model = folder.file(folder.config.decoder.filename), folder.manifest.model
        with damage_named(self._path):
            self._head_model = _head_model(folder.graph(), model)
            self._block_model = _block_model(folder.graph(), model)

    def open_graph(self, block: int | None, rows: int) -> onnxruntime.InferenceSession:
        """Load all layers of the folder's graph, or its last product.

        Raises:
            BundleError: ONNX Runtime cannot load it.
        """
        model = self._head_model if block is None else self._block_model
        return load_graph(self._path, model, self._weights)

    def name_failure(self, error: Exception, block: int | None) -> None:
        """Say that a graph cannot be run: its shapes do not agree.

        Raises:
            BundleError: It is so.
        """
        if isinstance(error, RuntimeError):
            raise BundleError(f"{self._path}: ONNX Runtime cannot run it: {error}") from error


def _block_model(graph: DecoderGraph, model: ModelShape) -> bytes:
    """All layers, from token ids to the hidden states that the head reads; changes `graph`.

    Inputs: input_ids, position_ids (1, M) int64; parents, sequences (nodes,), lengths (1,), span
    (2,) int32; key_i, value_i (1, kv_heads, slots, row_bytes) uint8 for each layer i. Outputs:
    hidden_out (1, M, hidden_size), and key_i_out, value_i_out, the caches with M slots overwritten.

    Raises:
        BundleError: The graph does something that cannot be run; the message names it.
    """
    writer = _AttentionWriter(graph, model)
    layers = {id(node): layer for layer, node in enumerate(graph.attention)}
    for node in list(graph.edit.nodes):  # in this order: what layers share stands before the first
        if id(node) in layers:
            graph.edit.replace(node, writer.replacement(node, layers[id(node)]))
    graph.edit.append(helper.make_node("Identity", [graph.hidden], ["hidden_out"]))
    cache = (1, model.num_kv_heads, _SLOTS, _ROW_BYTES)
    names = [f"{kind}_{layer}" for layer in range(model.num_layers) for kind in ("key", "value")]
    inputs = [
        _info("input_ids", 1, _ROWS, kind=TensorProto.INT64),
        _info("position_ids", 1, _ROWS, kind=TensorProto.INT64),
        *(_info(name, size, kind=TensorProto.INT32) for name, size in _PATH.items()),
        *(_info(name, *cache, kind=TensorProto.UINT8) for name in names),
    ]
    outputs = [_info("hidden_out", 1, _ROWS, model.hidden_size)]
    outputs += [_info(f"{name}_out", *cache, kind=TensorProto.UINT8) for name in names]
    return _part(graph, outputs, inputs)


def _head_model(graph: DecoderGraph, model: ModelShape) -> bytes:
    """The head, from `hidden (1, M, hidden_size)` to `logits (1, M, vocab_size)`; changes `graph`.

    Raises:
        BundleError: Logits need more than hidden states.
    """
    product = onnx.NodeProto()
    product.CopyFrom(graph.product)
    product.input[0] = "hidden"
    graph.edit.replace(graph.product, [product])
    if graph.logits != "logits":
        graph.edit.append(helper.make_node("Identity", [graph.logits], ["logits"]))
    inputs = [_info("hidden", 1, _ROWS, model.hidden_size)]
    return _part(graph, [_info("logits", 1, _ROWS, model.vocab_size)], inputs)


def _part(
    graph: DecoderGraph, outputs: list[onnx.ValueInfoProto], inputs: list[onnx.ValueInfoProto]
) -> bytes:
    """The model from `inputs` to `outputs`.

    Raises:
        BundleError: They are computed from other inputs, too.
    """
    unknown = graph.edit.unknown_inputs(
        [value.name for value in outputs], [value.name for value in inputs]
    )
    if unknown:
        raise graph.error(
            f"it uses {unknown[0]!r:.60} for more than the length of the text, which does not "
            "allow draft trees"
        )
    part: bytes = graph.edit.part(outputs, inputs, _OPSET, _IR_VERSION).SerializeToString()
    return part


def _info(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


class _AttentionWriter:
    """Writes the nodes for all layers; what they share is written once.

    Args:
        graph: Holds the nodes, and what they rotate by.
        sizes: The sizes of all layers.
    """

    def __init__(self, graph: DecoderGraph, sizes: ModelShape) -> None:
        self._graph, self._sizes = graph, sizes
        self._nodes: list[onnx.NodeProto] = []
        self._shared: set[str] = set()

    def replacement(self, node: onnx.NodeProto, layer: int) -> list[onnx.NodeProto]:
        """The nodes that compute what `node` does.

        Raises:
            BundleError: It does something that they cannot; the message names it.
        """
        self._nodes, name = [], f"coordgen.layer_{layer}"
        given = {name: value for name, value in zip(_INPUTS, node.input, strict=False) if value}
        options = attributes(node)
        self._check(node, given, options)
        angles = self._rotations(given) if options.get("do_rotary") else ["", ""]
        rows, sizes = given["query"], self._sizes
        if "key" in given:
            parts = [given[part] for part in ("query", "key", "value")]
            rows = self._node("Concat", parts, f"{name}.qkv", axis=-1)
        caches = [f"key_{layer}", f"value_{layer}"]
        window = int(options.get("local_window_size", _NO_WINDOW))
        attended = self._node(
            "Attention",
            [rows, *angles, *caches, *_PATH],
            f"{name}.attended",
            *(f"{cache}_out" for cache in caches),
            domain=KERNEL_DOMAIN,
            heads=sizes.num_heads,
            kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            scale=float(options.get("scale") or sizes.head_dim**-0.5),
            softcap=max(float(options.get("softcap", 0.0)), 0.0),
            window=max(window, 0),
            interleaved=int(options.get("rotary_interleaved", 0)),
            epsilon=0.0,
            shares_keys=0,
        )
        width = self._integers(1, _ANY, sizes.num_heads * sizes.head_dim)
        self._node("Reshape", [attended, width], node.output[0])
        return self._nodes

    def _check(self, node: onnx.NodeProto, given: dict[str, str], options: dict[str, Any]) -> None:
        """Refuse what the nodes would ignore.

        Raises:
            BundleError: There is something.
        """
        refused = [name for name in _UNSUPPORTED_INPUTS if name in given]
        refused += [f"input {len(_INPUTS)}"] if len(node.input) > len(_INPUTS) else []
        for name, value in options.items():
            if name not in _READ and value not in _WITHOUT_EFFECT.get(name, ()):
                refused.append(f"{name}={value!r:.30}")
        if any(node.output[3:]):
            refused.append("output 3")
        if options.get("local_window_size") == 0:
            refused.append("local_window_size=0")
        if refused:
            raise self._graph.error(
                f"its attention uses {', '.join(refused)}, which is not supported"
            )
        heads = options.get("num_heads"), options.get("kv_num_heads")
        if heads != (self._sizes.num_heads, self._sizes.num_kv_heads):
            raise self._graph.error(f"its attention has {heads} heads, unlike its config")

    def _rotations(self, given: dict[str, str]) -> list[str]:
        """The names of the cosines and sines of each row, `(1, M, size / 2)`."""
        if "cos_cache" not in given or "sin_cache" not in given:
            raise self._graph.error("its attention rotates without cos_cache and sin_cache")
        rows = []
        for name in (given["cos_cache"], given["sin_cache"]):
            # A draft may reach beyond the last position; it is cut off when it is accepted.
            last = self._graph.num_positions(name) - 1
            inputs = ["position_ids", self._integers(last)]
            positions = self._shared_node("Min", inputs, f"coordgen.positions_to_{last}")
            rows.append(self._shared_node("Gather", [name, positions], f"coordgen.{name}.rows"))
        return rows

    def _shared_node(self, operator: str, inputs: list[str], name: str, **options: Any) -> str:
        if name not in self._shared:
            self._shared.add(name)
            self._node(operator, inputs, name, **options)
        return name

    def _integers(self, *values: int) -> str:
        name = "coordgen.integers_" + "_".join(map(str, values))
        tensor = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        return self._shared_node("Constant", [], name, value=tensor)

    def _node(self, operator: str, inputs: list[str], *outputs: str, **options: Any) -> str:
        """Add a node that is named as its first output."""
        self._nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], **options))
        return outputs[0]
