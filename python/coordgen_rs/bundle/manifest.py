"""The manifest of a bundle: all that a session needs to know, and every file with its SHA-256.

In: the text of manifest.json. Out: a `Manifest`, checked for types and for agreement of its parts.
It does not look at the other files of the bundle; `directory.py` does.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from coordgen_rs.bundle.layers import (
    MOST_OF_A_SIZE,
    ExpertLayers,
    ExpertRegion,
    LayerCache,
    PerLayerFile,
    RecurrentLayers,
    Size,
    WeightType,
    check_caches,
    num_bytes,
)
from coordgen_rs.bundle.qnn import QnnTarget
from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.errors import BundleError, OptionError
from coordgen_rs.errors.file_names import is_plain_name
from coordgen_rs.errors.json_text import (
    FieldError,
    Within,
    file_errors_as,
    parse,
    parse_object,
    require,
    require_range,
)

SCHEMA_VERSION = 7
_QNN_VERSIONS = (2, 3, 4, 5, 6, SCHEMA_VERSION)
"""What bundles for QNN may have: their graphs are the same in all."""
MANIFEST_NAME = "manifest.json"

MOST_ROWS = 1 << 12
_Rows = Annotated[int, Within(1, MOST_ROWS)]
DEFAULT_CONTEXT = 4096
"""Most tokens of a request on CPU, where a longer context was not asked for."""
_MOST_BYTES = 1 << 50

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
    hidden_size: Size
    ffn_size: Size
    """0 where another tool's files do not tell it, like `num_heads`."""
    num_layers: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    vocab_size: Size
    rms_norm_eps: Annotated[float, Within(0, 1)]

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
class ClusterFiles:
    """An output layer that scores the tokens of the likeliest clusters alone."""

    num: int
    """Clusters, each of as many tokens."""
    chosen: int
    """Clusters whose tokens are scored."""
    ordering: str
    """Token ids, cluster after cluster: `(vocab_size,)`, u32, little-endian."""
    output: str
    """Weights of the output layer in panels, `(vocab_size, hidden_size)`, in this order."""
    dtype: WeightType


@dataclass(frozen=True)
class AssistantFiles:
    """A published drafter that reads the target's states, keys and values: a graph for any width.

    Inputs and outputs are named in `convert/cpu/heads.py`; how it drafts is in `runtime/heads/`.
    """

    weights: list[str]
    graph: str
    num_layers: Size
    hidden_size: Size
    reads: list[int]
    """The target's layers whose keys and values it reads, ascending."""
    clusters: ClusterFiles | None = None
    """None where its graph scores every token."""

    @property
    def described(self) -> str:
        """What people are told of it."""
        reads = ", ".join(map(str, self.reads))
        scored = "all tokens"
        if self.clusters is not None:
            scored = f"the tokens of {self.clusters.chosen} in {self.clusters.num:,} clusters"
        return (
            f"a drafter beside the model, {self.num_layers} layers, hidden {self.hidden_size}, "
            f"that reads keys and values of layers {reads} and scores {scored}"
        )


@dataclass(frozen=True)
class PanelPlace:
    """Where an embedding's panels begin in their file, and what their weights are multiplied by."""

    offset: Annotated[int, Within(0, _MOST_BYTES)]
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
class FileRecord:
    """What a file must be."""

    num_bytes: Annotated[int, Within(0, _MOST_BYTES)]
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
class Recommended:
    """How a model's makers recommend to draw from it: told to people, never applied by itself.

    As in `RequestOptions`; None for what nothing is said about.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def told(self) -> dict[str, float]:
        """What something is said about, by name."""
        return {name: it for name, it in dataclasses.asdict(self).items() if it is not None}


@dataclass(frozen=True)
class Manifest:
    """The whole manifest. File names are plain names inside the bundle's directory."""

    schema_version: int
    tool: str
    """Name and version of what wrote it; for people."""
    model: ModelShape
    weights: WeightKind
    context: Size
    """Most tokens of a request, prompt and answer together."""
    slots: Annotated[int, Within(1, MOST_OF_A_SIZE + MOST_ROWS)]
    """Length of the key and value caches; on CPU `context` plus the widest graph, which writes."""
    widths: list[int]
    """The numbers of rows for which there are graphs, ascending."""
    prefill_rows: _Rows
    decode_rows: _Rows
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
    window: Size | None = None
    """Tokens that layers with a sliding window see; None where they see the whole context."""
    window_inv_freq: list[float] | None = None
    """Rotation in layers with a sliding window, where it is another than `inv_freq`."""
    rope_factor: Annotated[float, Within(0, 1000)] | None = None
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
            document = parse_object(text, name)
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
            manifest._check()
        except FieldError as error:
            raise BundleError(str(error)) from error
        return manifest

    def _check(self) -> None:
        """Check the parts against each other.

        Raises:
            FieldError: They contradict each other.
        """
        model, widths = self.model, self.widths
        require(
            bool(widths) and widths == sorted(set(widths)) and widths[0] >= 1,
            f"manifest.widths is {widths}, expected ascending positive numbers",
        )
        require(
            {self.prefill_rows, self.decode_rows} <= set(widths),
            f"manifest.widths {widths} lack prefill_rows or decode_rows",
        )
        require(
            self.decode_rows <= self.prefill_rows,
            f"manifest.decode_rows is {self.decode_rows}, more than prefill_rows, "
            f"{self.prefill_rows}: export the checkpoint again",
        )
        written = widths[-1] if self.qnn is None else 0
        is_enough = self.slots >= self.context + written
        require(is_enough, f"manifest.slots is {self.slots}, too few for the widest graph")
        for token_id in [*self.end_token_ids, self.bos_token_id or 0]:
            is_known = 0 <= token_id < model.vocab_size
            require(is_known, f"manifest holds the token id {token_id}, outside the vocabulary")
        self._check_rope()
        self._check_layers()
        self._check_files()
        self._check_embedding()
        if self.per_layer is not None:
            held = self.files[self.per_layer.file].num_bytes
            self.per_layer.check(model.vocab_size * model.num_layers, held)
        if self.assistant is not None:
            self._check_assistant(self.assistant)
        if self.qnn is not None:
            self._check_qnn(self.qnn)

    def _check_rope(self) -> None:
        most = max([self.model.head_dim, *(it.head_dim for it in self.caches or ())]) // 2
        for name in ("inv_freq", "window_inv_freq"):
            found = getattr(self, name)
            require(
                found is None or 1 <= len(found) <= most,
                f"manifest.{name} has {len(found or ())} entries, expected 1 to head_dim / 2, "
                f"{most}",
            )

    def _check_layers(self) -> None:
        num_layers, next_layer = self.model.num_layers, 0
        for i, block in enumerate(self.blocks):
            is_next = block.first_layer == next_layer and block.num_layers >= 1
            require(is_next, f"manifest.blocks[{i}] does not start at layer {next_layer}")
            next_layer += block.num_layers
        require(
            next_layer == num_layers,
            f"manifest.blocks hold {next_layer} layers, the model has {num_layers}",
        )
        for graphs in [*(block.graphs for block in self.blocks), self.head.graphs]:
            has_all = sorted(graphs) == self.widths
            require(has_all, "manifest: a block or the head lacks the graph of a width")
        if self.recurrent is not None:
            self.recurrent.check(num_layers)
        if self.experts is not None:
            own = None if self.mtp is None else self.mtp.experts
            held = {name: record.num_bytes for name, record in self.files.items()}
            others = [] if own is None else [own]
            self.experts.check(others, num_layers, self.model.hidden_size, held)
        if self.caches is not None:
            check_caches(self.caches, num_layers)
            require(
                self.recurrent is None,
                "manifest.caches: such layers do not run beside recurrent ones",
            )

    def _check_files(self) -> None:
        used = [self.embedding.file, self.tokenizer, *self.head.weights]
        used += self.head.graphs.values()
        for block in self.blocks:
            used += [block.weights, *block.graphs.values()]
        if (mtp := self.mtp) is not None:
            used += [*mtp.weights, mtp.graph, mtp.head]
            require_range("manifest.mtp.num_scored", mtp.num_scored, 1, self.model.vocab_size)
        if (assistant := self.assistant) is not None:
            used += [*assistant.weights, assistant.graph]
            if assistant.clusters is not None:
                used += [assistant.clusters.ordering, assistant.clusters.output]
        if self.chat is not None:
            used += self.chat.templates.values()
        if self.per_layer is not None:
            used.append(self.per_layer.file)
        if self.qnn is not None:
            used += self.qnn.compiled_files
        for name in used:
            require(name in self.files, f"manifest.files lacks {name}")
        for name in self.files:
            require(
                is_plain_name(name) and name != MANIFEST_NAME,
                f"manifest.files holds {name!r}, which is not a plain file name",
            )

    def _check_embedding(self) -> None:
        entry, rows, size = self.embedding, self.model.vocab_size, self.model.hidden_size
        held, place = self.files[entry.file].num_bytes, entry.panels
        require(
            (place is None) == (entry.dtype in EMBEDDING_TYPES),
            f"manifest.embedding: {entry.dtype} and panels do not go together",
        )
        if place is None:
            expected = rows * size * EMBEDDING_TYPES[entry.dtype].itemsize
            is_whole = held == expected
        else:
            expected = num_bytes(entry.dtype, rows, size)
            require_range("manifest.embedding.panels.scale", abs(place.scale), 1e-30, 1e30)
            is_whole = held >= place.offset + expected
        require(
            is_whole,
            f"manifest.embedding: {entry.file} has {held} bytes, but {rows} rows of {size} "
            f"{entry.dtype} are {expected}",
        )

    def _check_assistant(self, assistant: AssistantFiles) -> None:
        cached, reads = self.cached_layers, assistant.reads
        require(
            bool(reads) and reads == sorted(set(reads) & set(cached)),
            f"manifest.assistant.reads is {reads!s:.200}, expected ascending numbers of the "
            f"{len(cached)} layers that have keys and values",
        )
        clusters, tokens = assistant.clusters, self.model.vocab_size
        if clusters is None:
            return
        require_range("manifest.assistant.clusters.num", clusters.num, 1, tokens)
        require_range("manifest.assistant.clusters.chosen", clusters.chosen, 1, clusters.num)
        require(
            tokens % clusters.num == 0,
            f"manifest.assistant: {clusters.num} clusters do not share {tokens} tokens",
        )
        output = num_bytes(clusters.dtype, tokens, assistant.hidden_size)
        for name, expected in ((clusters.ordering, 4 * tokens), (clusters.output, output)):
            held = self.files[name].num_bytes
            require(
                held == expected,
                f"manifest.assistant: {name} has {held} bytes, {tokens} tokens take {expected}",
            )

    def _check_qnn(self, qnn: QnnTarget) -> None:
        for name in ("recurrent", "experts", "caches", "per_layer", "assistant"):
            is_absent = getattr(self, name) is None
            require(is_absent, f"manifest.{name}: a model that has some does not run on QNN")
        qnn.check(self.model.num_layers, len(self.blocks))
        dtype = self.embedding.dtype
        require(dtype == "uint16", f"manifest.embedding.dtype is {dtype} for QNN")


def refuse_gone(name: str, weights: str) -> None:
    """Refuse weights that only earlier versions wrote; `name` is that of the option.

    Raises:
        OptionError: They are; the message says what to take.
    """
    if better := GONE_WEIGHTS.get(weights):
        raise OptionError(f"{name} {weights} is gone: {better} is faster and rounds less")
