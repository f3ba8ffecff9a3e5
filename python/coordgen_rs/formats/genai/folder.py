"""A folder of ONNX Runtime GenAI as a bundle: its files stay as they are, nothing is written.

In: a path with a genai_config.json. Out: a `GenaiFolder`, whose manifest is made up from the config
and the graph. The contents of weight files are not read: a folder holds no checksums to compare
them with. What is run is made of the graph in `device.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from coordgen_rs.bundle.directory import GENAI_CONFIG_NAME as CONFIG_NAME
from coordgen_rs.bundle.manifest import (
    SCHEMA_VERSION,
    BlockFiles,
    EmbeddingFile,
    FileRecord,
    HeadFiles,
    Manifest,
    ModelShape,
    WeightKind,
)
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.errors.file_names import is_plain_name
from coordgen_rs.formats import ForeignFolder, check_sizes, check_tokens, read_content, record_of
from coordgen_rs.formats.genai.config import GenaiConfig, read_config

if TYPE_CHECKING:
    from coordgen_rs.formats.genai.graph import DecoderGraph

_TOKENIZER_NAME = "tokenizer.json"
DECODE_ROWS, _PREFILL_ROWS = 32, 256
_WIDTHS = [1, 4, 8, 16, DECODE_ROWS, _PREFILL_ROWS]
_MOST_CONTEXT = 4096
"""As of bundles that are exported without another wish: caches take memory for every token."""


@dataclass(frozen=True)
class GenaiFolder(ForeignFolder):
    """An opened folder.

    Attributes:
        config: What genai_config.json says.
    """

    config: GenaiConfig

    form = "genai"

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read the config and the graph, and check that every file is there.

        Args:
            path: The folder.

        Raises:
            BundleError: The folder is incomplete or malformed, cannot be run here, or the package
                onnx is missing; the message names the file or what is not supported.
            BundleDamagedError: A file is missing or shorter than the graph says.
        """
        directory = Path(path).absolute()
        config = read_config(directory / CONFIG_NAME)
        path = directory / config.decoder.filename
        graph, content = _read_graph(path, config)
        with damage_named(path):
            manifest = _manifest(directory, config, graph, content)
        return cls(directory, manifest, config)

    def graph(self) -> "DecoderGraph":
        """The graph, without the contents of weight files; read anew at each call.

        Raises:
            BundleError: It cannot be read.
        """
        graph = _read_graph(self.file(self.config.decoder.filename), self.config)[0]
        data = {name for name, _ in graph.data_ends()}
        graph.edit.relocate({name: self.file(name).resolve().name for name in data})
        return graph

    def weights_directory(self) -> Path:
        """Where the weight files lie that the names in `graph` are of.

        It is another directory where the folder's files are links, as in the hub's cache.

        Raises:
            BundleError: They do not lie together, and with the graph's file or in the folder.
        """
        graph = self.file(self.config.decoder.filename)
        names = self.manifest.files.keys() - {CONFIG_NAME, _TOKENIZER_NAME, graph.name}
        found = {self.file(name).resolve().parent for name in names} or {self.path.resolve()}
        if len(found) > 1 or not found <= {self.path.resolve(), graph.resolve().parent}:
            raise BundleError(f"{graph}: its weights are links to files elsewhere")
        return found.pop()


def _read_graph(path: Path, config: GenaiConfig) -> "tuple[DecoderGraph, bytes]":
    """The graph of a file, and the file's content.

    Raises:
        BundleError: It cannot be read, or the package onnx is missing.
    """
    try:
        from coordgen_rs.formats.genai.graph import DecoderGraph
    except ModuleNotFoundError as error:
        raise BundleError(
            f"{path.parent} is a folder of ONNX Runtime GenAI; opening it needs {error.name}: "
            f"{how_to_install('genai')}"
        ) from error
    content = read_content(path)
    with damage_named(path):
        return DecoderGraph(path, content, config), content


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Name a graph's file where the graph is not what its operators ask for.

    A node may lack an input or an attribute, or have one of another type: every place that looks
    at nodes would have to expect that.

    Raises:
        BundleError: It is so.
    """
    try:
        yield
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise BundleError(f"{path} is damaged: a node is not as it must be: {said:.200}") from error


def _manifest(
    directory: Path, config: GenaiConfig, graph: "DecoderGraph", content: bytes
) -> Manifest:
    """What a session has to know of a folder.

    Raises:
        BundleError: Config and graph contradict each other, or a size is impossible.
        BundleDamagedError: A file is missing or too short.
    """
    decoder, name = config.decoder, config.decoder.filename
    context = min(config.context_length, graph.most_positions, _MOST_CONTEXT)
    model = ModelShape(
        family=config.type,
        hidden_size=decoder.hidden_size,
        ffn_size=graph.ffn_size,
        num_layers=decoder.num_hidden_layers,
        num_heads=decoder.num_attention_heads,
        num_kv_heads=decoder.num_key_value_heads,
        head_dim=decoder.head_size,
        vocab_size=config.vocab_size,
        rms_norm_eps=graph.norm_epsilon,
    )
    path = directory / CONFIG_NAME
    check_sizes(path, {**model.sizes, "context_length": context})
    if model.num_heads % model.num_kv_heads:
        raise BundleError(
            f"{path}: {model.num_heads} heads cannot share {model.num_kv_heads} heads of keys and "
            "values"
        )
    check_tokens(path, [*config.end_token_ids, config.bos_token_id or 0], config.vocab_size)
    files = {
        CONFIG_NAME: record_of(read_content(path)),
        name: record_of(content),
        _TOKENIZER_NAME: record_of(read_content(directory / _TOKENIZER_NAME)),
    }
    data = _data_files(directory, graph)
    files |= data
    largest = max(data, key=lambda file: data[file].num_bytes, default=name)
    graphs = dict.fromkeys(_WIDTHS, name)
    weights: WeightKind = "fp32"
    if graph.weight_bits:
        weights = "int4" if min(graph.weight_bits) <= 4 else "int8"
    return Manifest(
        schema_version=SCHEMA_VERSION,
        tool="ONNX Runtime GenAI",
        model=model,
        weights=weights,
        context=context,
        slots=context + _WIDTHS[-1],
        widths=_WIDTHS,
        prefill_rows=_PREFILL_ROWS,
        decode_rows=DECODE_ROWS,
        bos_token_id=config.bos_token_id,
        end_token_ids=config.end_token_ids,
        inv_freq=[],
        blocks=[BlockFiles(0, model.num_layers, largest, graphs)],
        head=HeadFiles([largest], graphs),
        embedding=EmbeddingFile(largest, "float32"),
        tokenizer=_TOKENIZER_NAME,
        files=files,
    )


def _data_files(directory: Path, graph: "DecoderGraph") -> dict[str, FileRecord]:
    """The weight files, which must lie in the folder; their contents are not hashed.

    Raises:
        BundleError: The graph names a file elsewhere.
        BundleDamagedError: A file is missing, or ends before the weights do.
    """
    ends: dict[str, int] = {}
    for name, end in graph.data_ends():
        if not is_plain_name(name):
            raise BundleError(
                f"{graph.path} reads weights from {name!r:.60}, which is not a file beside it"
            )
        ends[name] = max(end, ends.get(name, 0))
    records = {}
    for name, end in ends.items():
        path = directory / name
        if not path.is_file():
            raise BundleDamagedError(f"{path} is missing")
        num_bytes = path.stat().st_size
        if num_bytes < end:
            raise BundleDamagedError(f"{path} is damaged: {num_bytes} bytes, expected {end}")
        records[name] = FileRecord(num_bytes, "")
    return records
