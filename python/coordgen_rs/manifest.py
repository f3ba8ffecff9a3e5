"""The manifest of a bundle: every figure that a session needs, and every file with its SHA-256.

In: the text of manifest.json. Out: a `Manifest`, checked for types and for agreement of its parts.
It does not look at the other files of the bundle; `bundle.py` does.
"""

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar

from coordgen_rs.errors import BundleError

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"

WeightKind = Literal["fp32", "int8", "int4"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of the target."""

    family: str
    """`llama` or `qwen2`."""
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float


@dataclass(frozen=True)
class BlockFiles:
    """One block: consecutive layers, one weight file, a graph for every width."""

    first_layer: int
    num_layers: int
    weights: str
    graphs: dict[int, str]
    """File name by number of rows; widths may share a file whose rows are symbolic.

    Inputs and outputs are named in `export/graph.py`.
    """

    @property
    def layers(self) -> range:
        """The numbers of its layers."""
        return range(self.first_layer, self.first_layer + self.num_layers)


@dataclass(frozen=True)
class HeadFiles:
    """Final norm and output layer: a graph for every width."""

    weights: list[str]
    """The files its graphs read; a tied fp32 head reads the embedding's own."""
    graphs: dict[int, str]


@dataclass(frozen=True)
class EmbeddingFile:
    """The embedding's raw rows, `(vocab_size, hidden_size)`, little-endian, read on the host."""

    file: str
    dtype: Literal["float32", "float16"]


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The whole manifest. File names are plain names inside the bundle's directory."""

    schema_version: int
    tool: str
    """Name and version of what wrote it; for people."""
    model: ModelShape
    weights: WeightKind
    context: int
    """Most tokens that a request may hold, prompt and answer together."""
    slots: int
    """Length of the key and value caches: `context` plus the widest graph, so every write fits."""
    widths: list[int]
    """The numbers of rows for which there are graphs, ascending."""
    prefill_rows: int
    decode_rows: int
    bos_token_id: int | None
    end_token_ids: list[int]
    inv_freq: list[float]
    """Rotation per position and pair, `(head_dim / 2,)`, rope scaling included, float32 values."""
    blocks: list[BlockFiles]
    head: HeadFiles
    embedding: EmbeddingFile
    tokenizer: str
    files: dict[str, FileRecord]
    """Every file of the bundle except the manifest itself."""

    @property
    def decode_widths(self) -> list[int]:
        """The widths that decoding may use: those up to `decode_rows`."""
        return [width for width in self.widths if width <= self.decode_rows]

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Reads and checks a manifest; raises BundleError that names the field."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise BundleError(f"{MANIFEST_NAME} is not valid JSON: {error}") from error
        if not isinstance(document, dict):
            raise BundleError(f"{MANIFEST_NAME} does not hold an object")
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise BundleError(
                f"{MANIFEST_NAME} has schema version {version!r}, "
                f"this coordgen_rs reads {SCHEMA_VERSION}"
            )
        manifest = _parse(cls, document, "manifest")
        _check(manifest)
        return manifest


def _parse(expected: type[_T], value: Any, where: str) -> _T:
    """Turns parsed JSON into `expected`: a dataclass, list, dict, Literal, optional or plain type.

    Unknown fields are ignored, so that a later version may add some.
    """
    parsed: Any = _parse_any(expected, value, where)
    return typing.cast(_T, parsed)


def _parse_any(expected: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        return _parse_fields(expected, _instance(dict, value, where), where)
    if origin is list:
        items = _instance(list, value, where)
        return [_parse_any(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items)]
    if origin is dict:
        return {
            _parse_key(arguments[0], key, where): _parse_any(arguments[1], item, f"{where}.{key}")
            for key, item in _instance(dict, value, where).items()
        }
    if origin is Literal:
        if value not in arguments:
            raise BundleError(f"{where} is {value!r}, expected one of {', '.join(arguments)}")
        return value
    if origin is types.UnionType:
        return None if value is None else _parse_any(arguments[0], value, where)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _instance(expected, value, where)


def _parse_fields(expected: Any, value: dict[str, Any], where: str) -> Any:
    types_by_name = typing.get_type_hints(expected)
    missing = sorted(types_by_name.keys() - value.keys())
    if missing:
        raise BundleError(f"{where} has no field {missing[0]}")
    return expected(
        **{
            name: _parse_any(kind, value[name], f"{where}.{name}")
            for name, kind in types_by_name.items()
        }
    )


def _parse_key(expected: Any, key: str, where: str) -> Any:
    if expected is str:
        return key
    if not key.isascii() or not key.isdigit():
        raise BundleError(f"{where} has the key {key!r}, expected a number")
    return int(key)


def _instance(expected: Any, value: Any, where: str) -> Any:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise BundleError(
            f"{where} is {type(value).__name__} {value!r:.60}, expected {expected.__name__}"
        )
    return value


def _check(manifest: Manifest) -> None:
    """Raises BundleError where the parts of a manifest contradict each other."""
    model = manifest.model
    sizes = {
        **{k: v for k, v in dataclasses.asdict(model).items() if isinstance(v, int)},
        "context": manifest.context,
        "prefill_rows": manifest.prefill_rows,
        "decode_rows": manifest.decode_rows,
    }
    for name, size in sizes.items():
        if size <= 0:
            raise BundleError(f"manifest.{name} is {size}, expected a positive number")
    widths = manifest.widths
    if not widths or widths != sorted(set(widths)) or widths[0] < 1:
        raise BundleError(f"manifest.widths is {widths}, expected ascending positive numbers")
    if not {manifest.prefill_rows, manifest.decode_rows} <= set(widths):
        raise BundleError(f"manifest.widths {widths} lack prefill_rows or decode_rows")
    if manifest.slots < manifest.context + widths[-1]:
        raise BundleError(f"manifest.slots is {manifest.slots}, too few for the widest graph")
    if len(manifest.inv_freq) * 2 != model.head_dim:
        raise BundleError("manifest.inv_freq does not have head_dim / 2 entries")
    for token_id in [*manifest.end_token_ids, manifest.bos_token_id or 0]:
        if not 0 <= token_id < model.vocab_size:
            raise BundleError(f"manifest holds the token id {token_id}, outside the vocabulary")
    _check_layers(manifest)
    _check_files(manifest)


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
    for graphs in [block.graphs for block in manifest.blocks] + [manifest.head.graphs]:
        if sorted(graphs) != manifest.widths:
            raise BundleError("manifest: a block or the head lacks the graph of a width")


def _check_files(manifest: Manifest) -> None:
    used = [manifest.embedding.file, manifest.tokenizer, *manifest.head.weights]
    used += manifest.head.graphs.values()
    for block in manifest.blocks:
        used += [block.weights, *block.graphs.values()]
    for name in used:
        if name not in manifest.files:
            raise BundleError(f"manifest.files lacks {name}")
    for name in manifest.files:
        if PurePosixPath(name).name != name or name in ("", ".", "..", MANIFEST_NAME):
            raise BundleError(f"manifest.files holds {name!r}, which is not a plain file name")
