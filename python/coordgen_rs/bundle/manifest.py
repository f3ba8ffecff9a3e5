"""The manifest of a bundle: all that a session needs to know, and every file with its SHA-256.

In: the text of manifest.json. Out: a `Manifest`, checked for types and for agreement of its parts.
It does not look at the other files of the bundle; `directory.py` does.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coordgen_rs.bundle.assistant import AssistantFiles
from coordgen_rs.bundle.caches import LayerCache
from coordgen_rs.bundle.experts import ExpertLayers, ExpertRegion
from coordgen_rs.bundle.file_names import is_plain_name
from coordgen_rs.bundle.fixed_point import Encoding
from coordgen_rs.bundle.json_text import file_errors_as, parse_json
from coordgen_rs.bundle.panels import WeightType, num_bytes
from coordgen_rs.bundle.per_layer import PerLayerFile
from coordgen_rs.bundle.recommended import Recommended
from coordgen_rs.bundle.recurrent import RecurrentLayers
from coordgen_rs.bundle.rotation import QueryScaling
from coordgen_rs.bundle.typed_json import FieldError, parse
from coordgen_rs.errors import BundleError, OptionError

SCHEMA_VERSION = 7
_QNN_VERSIONS = (2, 3, 4, 5, 6, SCHEMA_VERSION)
"""What bundles for QNN may have: their graphs are the same in all."""
MANIFEST_NAME = "manifest.json"

MOST_OF_A_SIZE = 1 << 24
"""No known model has a larger size of any kind; a damaged file may, and would fill the memory."""

MOST_ROWS = 1 << 12
DEFAULT_CONTEXT = 4096
"""Most tokens of a request on CPU, where a longer context was not asked for."""
_MOST_BYTES = 1 << 50
_MOST_STATE = 1 << 28
_MOST_PER_LAYER_ROWS = (1 << 28) - 1
"""What `_core.weight_rows` reads of."""

WeightKind = Literal["fp32", "int8", "int4", "keep", "compiled"]
"""`keep`: as the checkpoint holds them; `compiled`: in context binaries made by other tools, which
do not tell the kind."""
GONE_WEIGHTS = {"w8a8": "int8"}
"""Kinds that earlier versions wrote, and for each the one that is faster and rounds less."""

EMBEDDING_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "uint16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class ModelShape:
    """The sizes of the target, each 1 to 2^24."""

    family: str
    """The name in `convert/families/table.py`; for people."""
    hidden_size: int
    ffn_size: int
    """0 where another tool's files do not tell it, like `num_heads`."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by their names."""
        return {name: size for name, size in vars(self).items() if isinstance(size, int)}


@dataclass(frozen=True)
class BlockFiles:
    """One block: consecutive layers, one weight file, a graph for every width."""

    first_layer: int
    num_layers: int
    weights: str
    graphs: dict[int, str]
    """File name by number of rows; widths may share a file whose rows are symbolic.

    Inputs and outputs are named in `convert/cpu/graph.py`.
    """

    @property
    def layers(self) -> range:
        """The numbers of its layers."""
        return range(self.first_layer, self.first_layer + self.num_layers)


@dataclass(frozen=True)
class HeadFiles:
    """Final norm and output layer: a graph for every width."""

    weights: list[str]
    """The files its graphs read."""
    graphs: dict[int, str]


@dataclass(frozen=True)
class MtpFiles:
    """A head for further tokens that came with the checkpoint (MTP): graphs for any width.

    Inputs and outputs are named in `convert/cpu/heads.py`.
    """

    weights: list[str]
    """Its own; the output layer is that of the head."""
    graph: str
    head: str
    num_scored: int
    """It knows the first tokens of the vocabulary alone."""
    experts: ExpertRegion | None = None
    """Those of its layer, whose number is 0, where it has some."""


@dataclass(frozen=True)
class PanelPlace:
    """Where an embedding's panels begin in their file, and what their weights are multiplied by."""

    offset: int
    scale: float


@dataclass(frozen=True)
class EmbeddingFile:
    """The embedding's raw rows, `(vocab_size, hidden_size)`, little-endian, read on the host.

    Or weights in panels, perhaps those of the head.
    """

    file: str
    dtype: Literal["float32", "float16", "uint16", WeightType]
    """uint16: encoded as the hidden states that the first block reads."""
    panels: PanelPlace | None = None


@dataclass(frozen=True)
class ChatFiles:
    """How a dialogue becomes a prompt: chat templates, in Jinja."""

    templates: dict[str, str]
    """File by the template's name: `default`, perhaps `tool_use` and others."""
    tokens: dict[str, str]
    """Texts of special tokens by the names that templates use, such as `bos_token`."""


@dataclass(frozen=True)
class CacheEncodings:
    """How a layer's keys and values are encoded: the past ones that it reads, and the new rows."""

    key: Encoding
    value: Encoding
    key_new: Encoding
    value_new: Encoding

    @property
    def is_exact(self) -> bool:
        """Whether a row's bits depend neither on where keys stand nor on rows it does not see.

        For that past and new rows share an encoding whose zero point is the middle of the integers
        (measured, `convert/qnn/quantize.py`).
        """
        is_tied = (self.key, self.value) == (self.key_new, self.value_new)
        return is_tied and self.key.is_symmetric and self.value.is_symmetric


@dataclass(frozen=True)
class CompiledGraphs:
    """Context binaries of the graphs: what the QNN provider loads instead of compiling."""

    provider_version: str
    """Version of onnxruntime-qnn."""
    qnn_version: str
    """Version of Qualcomm's libraries in it."""
    soc_model: int
    htp_arch: int
    graphs: dict[str, str]
    """File of a graph to the file that replaces it and refers to the binary."""


@dataclass(frozen=True)
class QnnTarget:
    """What a bundle for Qualcomm's HTP has beyond one for CPU.

    Its graphs take and give integers, named in `convert/qnn/graph.py`; `slots` is the context.
    """

    soc: str
    soc_model: int
    htp_arch: int
    mask_value: float
    """Additive mask value of a slot that a row does not see."""
    mask: Encoding
    rotation: Encoding
    """The encoding of the inputs `cos` and `sin`."""
    hidden: list[Encoding]
    """The encodings of the hidden states before each block, and before the head."""
    caches: list[CacheEncodings]
    """One per layer."""
    logits: Encoding
    compiled: CompiledGraphs | None = None
    """A binary for each graph."""
    shared: CompiledGraphs | None = None
    """A binary with all graphs of a block, which share weights; loaded as a whole."""

    @property
    def is_exact(self) -> bool:
        """Whether every path of a tree is bit-equal to plain decoding; see `CacheEncodings`."""
        return all(cache.is_exact for cache in self.caches)


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class KeptWeights:
    """The tensors of one type of a checkpoint whose weights were kept."""

    type: str
    """Its name in GGUF, such as `Q4_0` or `BF16`."""
    num_tensors: int
    is_exact: bool
    """Whether the bundle holds the same values; else they are 8-bit integers near to them."""


@dataclass(frozen=True)
class Manifest:
    """The whole manifest. File names are plain names inside the bundle's directory."""

    schema_version: int
    tool: str
    """Name and version of what wrote it; for people."""
    model: ModelShape
    weights: WeightKind
    context: int
    """Most tokens of a request, prompt and answer together."""
    slots: int
    """Length of the key and value caches; on CPU `context` plus the widest graph, which writes."""
    widths: list[int]
    """The numbers of rows for which there are graphs, ascending."""
    prefill_rows: int
    decode_rows: int
    bos_token_id: int | None
    end_token_ids: list[int]
    inv_freq: list[float]
    """Rotation per position and pair, rope scaling included, float32 values.

    `(head_dim / 2,)`, or fewer where only the first dimensions of a head are rotated.
    Where layers have heads of different sizes, of those without a window.
    """
    blocks: list[BlockFiles]
    head: HeadFiles
    embedding: EmbeddingFile
    tokenizer: str
    files: dict[str, FileRecord]
    """Every file of the bundle except the manifest itself."""
    qnn: QnnTarget | None = None
    """None for a bundle that runs on CPU."""
    window: int | None = None
    """Tokens that layers with a sliding window see; None where they see the whole context."""
    window_inv_freq: list[float] | None = None
    """Rotation in layers with a sliding window, where it is another than `inv_freq`."""
    rope_factor: float | None = None
    """What cosines and sines of `inv_freq` are multiplied by; None for 1."""
    query_scaling: QueryScaling | None = None
    """How queries grow with their position; None where they do not within the context."""
    kept: list[KeptWeights] | None = None
    """One entry per type of tensor if the weights are those of the checkpoint, else None."""
    chat: ChatFiles | None = None
    """None for a model without a chat template, and for bundles of earlier versions."""
    mtp: MtpFiles | None = None
    """None for a model without a head for further tokens."""
    assistant: AssistantFiles | None = None
    """None for a model without a published drafter beside it."""
    recurrent: RecurrentLayers | None = None
    """None for a model whose layers all have attention."""
    experts: ExpertLayers | None = None
    """None for a model without mixtures of experts."""
    caches: list[LayerCache] | None = None
    """One per layer; None where each has keys and values of its own, of the model's size."""
    per_layer: PerLayerFile | None = None
    """None for a model with one embedding."""
    recommended: Recommended | None = None
    """None where the model's makers recommend no sampling, and for bundles of earlier versions."""

    @property
    def has_draft_head(self) -> bool:
        """Whether it has a head for further tokens, or a drafter beside it."""
        return self.mtp is not None or self.assistant is not None

    def cache_of(self, layer: int) -> LayerCache:
        """The keys and values that a layer with attention reads."""
        if self.caches is not None:
            return self.caches[layer]
        return LayerCache(self.model.num_kv_heads, self.model.head_dim, layer)

    @property
    def cached_layers(self) -> list[int]:
        """The layers that have keys and values of their own, ascending."""
        others = () if self.recurrent is None else self.recurrent.layers
        layers = sorted(set(range(self.model.num_layers)).difference(others))
        return [layer for layer in layers if self.cache_of(layer).written_by == layer]

    @property
    def described_layers(self) -> str | None:
        """What people are told of layers that are not all alike; None where they are."""
        if self.recurrent is not None:
            return self.recurrent.described(self.model.num_layers)
        if self.caches is None:
            return None
        sharing = len(self.caches) - len(self.cached_layers)
        return f"{len(self.caches)}, {sharing} of them with the keys and values of earlier ones"

    @property
    def cache_heads(self) -> list[tuple[int, int]]:
        """Of each of them, the heads of keys and values, and the numbers of a head."""
        caches = map(self.cache_of, self.cached_layers)
        return [(cache.num_kv_heads, cache.head_dim) for cache in caches]

    @property
    def provider(self) -> Literal["cpu", "qnn"]:
        """What the graphs were made for."""
        return "cpu" if self.qnn is None else "qnn"

    @property
    def decode_widths(self) -> list[int]:
        """The widths that decoding may use: those up to `decode_rows`."""
        return [width for width in self.widths if width <= self.decode_rows]

    @property
    def has_symbolic_rows(self) -> bool:
        """Whether a graph takes any number of rows: on CPU, where all widths share one file."""
        files = [*(block.graphs for block in self.blocks), self.head.graphs]
        is_one = all(len(set(graphs.values())) == 1 for graphs in files)
        return self.qnn is None and is_one and len(self.widths) > 1

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str = MANIFEST_NAME) -> "Manifest":
        """Read and check a manifest; `name` is that of its file, for messages.

        Raises:
            BundleError: It is malformed; the message names the field.
        """
        with file_errors_as(BundleError, name):
            document = parse_json(text, name)
        if not isinstance(document, dict):
            raise BundleError(f"{name} does not hold an object")
        weights = document.get("weights")
        if isinstance(weights, str) and weights in GONE_WEIGHTS:
            raise BundleError(
                f"{name} is of a bundle with {weights} weights, which are gone: export it again "
                f"with --weights {GONE_WEIGHTS[weights]}"
            )
        version = document.get("schema_version")
        if version not in (_QNN_VERSIONS if document.get("qnn") else (SCHEMA_VERSION,)):
            raise BundleError(
                f"{name} has schema version {version!r}, "
                f"this coordgen_rs reads {SCHEMA_VERSION}: export the checkpoint again"
            )
        try:
            manifest = parse(cls, document, "manifest")
        except FieldError as error:
            raise BundleError(str(error)) from error
        _check(manifest)
        return manifest


def refuse_gone(name: str, weights: str) -> None:
    """Refuse weights that only earlier versions wrote; `name` is that of the option.

    Raises:
        OptionError: They are; the message says what to take.
    """
    if better := GONE_WEIGHTS.get(weights):
        raise OptionError(f"{name} {weights} is gone: {better} is faster and rounds less")


def _check(manifest: Manifest) -> None:
    """Check the parts of a manifest against each other.

    Raises:
        BundleError: They contradict each other.
    """
    model = manifest.model
    sizes = {
        **model.sizes,
        "context": manifest.context,
        "prefill_rows": manifest.prefill_rows,
        "decode_rows": manifest.decode_rows,
    }
    for name, size in sizes.items():
        _check_range(name, size, 1, MOST_ROWS if name.endswith("_rows") else MOST_OF_A_SIZE)
    _check_range("slots", manifest.slots, 1, MOST_OF_A_SIZE + MOST_ROWS)
    _check_range("rms_norm_eps", model.rms_norm_eps, 0, 1)
    widths = manifest.widths
    if not widths or widths != sorted(set(widths)) or widths[0] < 1:
        raise BundleError(f"manifest.widths is {widths}, expected ascending positive numbers")
    if not {manifest.prefill_rows, manifest.decode_rows} <= set(widths):
        raise BundleError(f"manifest.widths {widths} lack prefill_rows or decode_rows")
    if manifest.decode_rows > manifest.prefill_rows:
        raise BundleError(
            f"manifest.decode_rows is {manifest.decode_rows}, more than prefill_rows, "
            f"{manifest.prefill_rows}: export the checkpoint again"
        )
    written = widths[-1] if manifest.qnn is None else 0
    if manifest.slots < manifest.context + written:
        raise BundleError(f"manifest.slots is {manifest.slots}, too few for the widest graph")
    _check_rotations(manifest)
    for token_id in [*manifest.end_token_ids, manifest.bos_token_id or 0]:
        if not 0 <= token_id < model.vocab_size:
            raise BundleError(f"manifest holds the token id {token_id}, outside the vocabulary")
    _check_layers(manifest)
    _check_files(manifest)
    if manifest.assistant is not None:
        _check_assistant(manifest.assistant, manifest)
    if manifest.qnn is not None:
        _check_qnn(manifest, manifest.qnn)


def _check_rotations(manifest: Manifest) -> None:
    most = max([manifest.model.head_dim, *(it.head_dim for it in manifest.caches or ())]) // 2
    for name in ("inv_freq", "window_inv_freq"):
        frequencies = getattr(manifest, name)
        if frequencies is not None and not 1 <= len(frequencies) <= most:
            raise BundleError(
                f"manifest.{name} has {len(frequencies)} entries, "
                f"expected 1 to head_dim / 2, {most}"
            )
    if manifest.window is not None:
        _check_range("window", manifest.window, 1, MOST_OF_A_SIZE)
    if manifest.rope_factor is not None:
        _check_range("rope_factor", manifest.rope_factor, 0, 1000)
    if manifest.query_scaling is not None:
        _check_range("query_scaling.beta", manifest.query_scaling.beta, 0, 1000)
        _check_range("query_scaling.period", manifest.query_scaling.period, 1, MOST_OF_A_SIZE)


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BundleError(f"manifest.{name} is {value}, expected {least} to {most}")


def _check_layers(manifest: Manifest) -> None:
    next_layer = 0
    for i, block in enumerate(manifest.blocks):
        if block.first_layer != next_layer or block.num_layers < 1:
            raise BundleError(f"manifest.blocks[{i}] does not start at layer {next_layer}")
        next_layer += block.num_layers
    if next_layer != manifest.model.num_layers:
        raise BundleError(
            f"manifest.blocks hold {next_layer} layers, the model has {manifest.model.num_layers}"
        )
    if manifest.recurrent is not None:
        _check_recurrent(manifest.recurrent, manifest)
    if manifest.experts is not None:
        _check_experts(manifest.experts, manifest)
    if manifest.caches is not None:
        _check_caches(manifest.caches, manifest)
    for graphs in [block.graphs for block in manifest.blocks] + [manifest.head.graphs]:
        if sorted(graphs) != manifest.widths:
            raise BundleError("manifest: a block or the head lacks the graph of a width")


def _check_recurrent(recurrent: RecurrentLayers, manifest: Manifest) -> None:
    layers, num_layers = recurrent.layers, manifest.model.num_layers
    if not layers or layers != sorted(set(layers) & set(range(num_layers))):
        raise BundleError(
            f"manifest.recurrent.layers is {layers!s:.200}, expected ascending numbers of its "
            f"{num_layers} layers"
        )
    names = [sizes.name for sizes in recurrent.states]
    if not names or len(set(names)) < len(names):
        raise BundleError(f"manifest.recurrent.states are called {names}, expected different names")
    for sizes in recurrent.states:
        _check_range(f"recurrent: numbers of {sizes.name!r}", sizes.numbers, 1, _MOST_STATE)
        _check_range(f"recurrent: numbers of {sizes.name!r}", sizes.node_numbers, 1, _MOST_STATE)
    if manifest.qnn is not None:
        raise BundleError("manifest.recurrent: recurrent layers do not run on QNN")


def _check_experts(experts: ExpertLayers, manifest: Manifest) -> None:
    own = None if manifest.mtp is None else manifest.mtp.experts
    held = {name: record.num_bytes for name, record in manifest.files.items()}
    model = manifest.model
    experts.check([] if own is None else [own], model.num_layers, model.hidden_size, held)
    if manifest.qnn is not None:
        raise BundleError("manifest.experts: mixtures of experts do not run on QNN")


def _check_caches(caches: list[LayerCache], manifest: Manifest) -> None:
    if len(caches) != manifest.model.num_layers:
        raise BundleError(
            f"manifest.caches holds {len(caches)} layers, the model has {manifest.model.num_layers}"
        )
    if manifest.qnn is not None or manifest.recurrent is not None:
        raise BundleError(
            "manifest.caches: such layers run neither on QNN nor beside recurrent ones"
        )
    for layer, cache in enumerate(caches):
        for name in ("num_kv_heads", "head_dim"):
            _check_range(f"caches[{layer}].{name}", getattr(cache, name), 1, MOST_OF_A_SIZE)
        _check_range(f"caches[{layer}].written_by", cache.written_by, 0, layer)
        if caches[cache.written_by] != cache:
            raise BundleError(
                f"manifest.caches[{layer}] and the layer {cache.written_by} that writes it differ"
            )


def _check_per_layer(entry: PerLayerFile, manifest: Manifest) -> None:
    model, held = manifest.model, manifest.files[entry.file].num_bytes
    _check_range("per_layer.size", entry.size, 1, MOST_OF_A_SIZE)
    _check_range("per_layer.scale", abs(entry.scale), 1e-30, 1e30)
    rows = model.vocab_size * model.num_layers
    _check_range("per_layer: rows", rows, 1, _MOST_PER_LAYER_ROWS)
    expected = num_bytes(entry.dtype, rows, entry.size)
    if held != expected:
        raise BundleError(
            f"manifest.per_layer: {entry.file} has {held} bytes, but {rows} rows of {entry.size} "
            f"{entry.dtype} are {expected}"
        )
    if manifest.qnn is not None:
        raise BundleError("manifest.per_layer: embeddings of layers do not run on QNN")


def _check_assistant(assistant: AssistantFiles, manifest: Manifest) -> None:
    _check_range("assistant.num_layers", assistant.num_layers, 1, MOST_OF_A_SIZE)
    _check_range("assistant.hidden_size", assistant.hidden_size, 1, MOST_OF_A_SIZE)
    cached, reads = manifest.cached_layers, assistant.reads
    if not reads or reads != sorted(set(reads) & set(cached)):
        raise BundleError(
            f"manifest.assistant.reads is {reads!s:.200}, expected ascending numbers of the "
            f"{len(cached)} layers that have keys and values"
        )
    if manifest.qnn is not None:
        raise BundleError("manifest.assistant: drafters beside a model do not run on QNN")
    clusters, vocab_size = assistant.clusters, manifest.model.vocab_size
    if clusters is None:
        return
    _check_range("assistant.clusters.num", clusters.num, 1, vocab_size)
    _check_range("assistant.clusters.chosen", clusters.chosen, 1, clusters.num)
    if vocab_size % clusters.num:
        raise BundleError(
            f"manifest.assistant: {clusters.num} clusters do not share {vocab_size} tokens"
        )
    sizes = {
        clusters.ordering: 4 * vocab_size,
        clusters.output: num_bytes(clusters.dtype, vocab_size, assistant.hidden_size),
    }
    for name, expected in sizes.items():
        if (held := manifest.files[name].num_bytes) != expected:
            raise BundleError(
                f"manifest.assistant: {name} has {held} bytes, {vocab_size} tokens take {expected}"
            )


def _check_qnn(manifest: Manifest, qnn: QnnTarget) -> None:
    if len(qnn.caches) != manifest.model.num_layers:
        raise BundleError(f"manifest.qnn.caches holds {len(qnn.caches)} layers")
    if len(qnn.hidden) != len(manifest.blocks) + 1:
        raise BundleError(f"manifest.qnn.hidden holds {len(qnn.hidden)} encodings")
    if manifest.embedding.dtype != "uint16":
        raise BundleError(f"manifest.embedding.dtype is {manifest.embedding.dtype} for QNN")
    encodings = [qnn.mask, qnn.rotation, qnn.logits, *qnn.hidden]
    for cache in qnn.caches:
        encodings += [cache.key, cache.value, cache.key_new, cache.value_new]
    for encoding in encodings:
        most = 255 if encoding.dtype == "uint8" else 65_535
        _check_range("qnn: a scale", encoding.scale, 1e-30, 1e30)
        _check_range("qnn: a zero point", encoding.zero_point, 0, most)
    for compiled in (qnn.compiled, qnn.shared):
        for name in {} if compiled is None else compiled.graphs.values():
            if name not in manifest.files:
                raise BundleError(f"manifest.files lacks {name}")


def _check_files(manifest: Manifest) -> None:
    used = [manifest.embedding.file, manifest.tokenizer, *manifest.head.weights]
    used += manifest.head.graphs.values()
    for block in manifest.blocks:
        used += [block.weights, *block.graphs.values()]
    if (mtp := manifest.mtp) is not None:
        used += [*mtp.weights, mtp.graph, mtp.head]
        _check_range("mtp.num_scored", mtp.num_scored, 1, manifest.model.vocab_size)
    if (assistant := manifest.assistant) is not None:
        used += [*assistant.weights, assistant.graph]
        if assistant.clusters is not None:
            used += [assistant.clusters.ordering, assistant.clusters.output]
    if manifest.chat is not None:
        used += manifest.chat.templates.values()
    if manifest.per_layer is not None:
        used.append(manifest.per_layer.file)
    for name in used:
        if name not in manifest.files:
            raise BundleError(f"manifest.files lacks {name}")
    for name, record in manifest.files.items():
        _check_range(f"files.{name!r}.num_bytes", record.num_bytes, 0, _MOST_BYTES)
        if not is_plain_name(name) or name == MANIFEST_NAME:
            raise BundleError(f"manifest.files holds {name!r}, which is not a plain file name")
    entry, model = manifest.embedding, manifest.model
    held = manifest.files[entry.file].num_bytes
    place = entry.panels
    if (place is None) != (entry.dtype in EMBEDDING_TYPES):
        raise BundleError(f"manifest.embedding: {entry.dtype} and panels do not go together")
    if place is None:
        expected = model.vocab_size * model.hidden_size * EMBEDDING_TYPES[entry.dtype].itemsize
        is_whole = held == expected
    else:
        expected = num_bytes(entry.dtype, model.vocab_size, model.hidden_size)
        _check_range("embedding.panels.offset", place.offset, 0, _MOST_BYTES)
        _check_range("embedding.panels.scale", abs(place.scale), 1e-30, 1e30)
        is_whole = held >= place.offset + expected
    if not is_whole:
        raise BundleError(
            f"manifest.embedding: {entry.file} has {held} bytes, "
            f"but {model.vocab_size} rows of {model.hidden_size} {entry.dtype} are {expected}"
        )
    if manifest.per_layer is not None:
        _check_per_layer(manifest.per_layer, manifest)
