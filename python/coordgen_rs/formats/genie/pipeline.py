"""A pipeline of ONNX Runtime GenAI for QNN, as AI Hub Models up to 0.46 made it, run unchanged.

In: a folder whose genai_config.json is of the type decoder-pipeline. Out: a `PipelineFolder`: the
same graphs as in a bundle of Genie, in binaries that small ONNX files of the folder name. Of its
graphs for CPU only the one for positions is run: masks are made here, and
encodings stand in the binaries.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import GENAI_CONFIG_NAME as CONFIG_NAME
from coordgen_rs.errors import BundleError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.errors.file_names import is_plain_name
from coordgen_rs.errors.json_text import JsonTextError, file_errors_as, parse, read_bytes, read_json
from coordgen_rs.formats import MOST_JSON_BYTES, read_object, token_ids
from coordgen_rs.formats.genie.binary import GraphFacts, can_read, read_binary
from coordgen_rs.formats.genie.config import GenieConfig
from coordgen_rs.formats.genie.folder import GenieFolder, opened
from coordgen_rs.formats.genie.graphs import COS, MASK, SIN
from coordgen_rs.formats.genie.metadata import read_metadata
from coordgen_rs.formats.genie.model import GenieModel
from coordgen_rs.runtime.onnx_runtime import cpu_session, set_threads

if TYPE_CHECKING:
    import onnx

_SAME_SCALE = 1e-5
_TOKENIZER_NAME = "tokenizer.json"
_AT_ONCE = 64
_TYPES = {"tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(float)": np.float32}


@dataclass(frozen=True)
class _Stage:
    filename: str
    inputs: list[str]
    outputs: list[str]


@dataclass(frozen=True)
class _Decoder:
    pipeline: list[dict[str, _Stage]]


@dataclass(frozen=True)
class _Model:
    type: str
    context_length: int
    vocab_size: int
    eos_token_id: object
    decoder: _Decoder
    bos_token_id: int | None = None


@dataclass(frozen=True)
class PipelineFolder(GenieFolder):
    """An opened pipeline.

    Attributes:
        positions: File name of the graph for CPU that makes cosines and sines.
    """

    positions: str

    form = "genai pipeline"

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read the config, the graphs that name binaries, and the binaries.

        Args:
            path: The folder.

        Raises:
            BundleError: The folder is incomplete or malformed, its files disagree, it cannot be run
                here, or a package is missing; the message names the file or the reason.
            BundleDamagedError: A binary or the tokenizer is missing or damaged.
        """
        directory = Path(path).absolute()
        if not can_read():
            raise BundleError(
                f"{directory} is a pipeline for QNN; opening it needs {how_to_install('genie')}"
            )
        path = directory / CONFIG_NAME
        with file_errors_as(BundleError, path):
            config = parse(_Model, read_object(path).get("model"), "model")
        stages = [stage for group in config.decoder.pipeline for stage in group.values()]
        wrapped = _wrapped(directory, stages)
        files = dict.fromkeys(file for file, _ in wrapped)
        binaries = {file: read_binary(directory / file) for file in files}
        graphs: dict[str, tuple[str, GraphFacts]] = {}
        for file, node in wrapped:
            graphs[node.name] = file, _checked(directory, file, node, binaries[file].graphs)
        _check_quantizer(directory, stages, graphs)
        names = GenieConfig(
            context=config.context_length,
            vocab_size=config.vocab_size,
            bos_token_id=config.bos_token_id,
            end_token_ids=token_ids(f"{path}: eos_token_id", config.eos_token_id),
            tokenizer=_TOKENIZER_NAME,
            binaries=list(binaries),
        )
        metadata = read_metadata(directory, None)
        fields = opened(directory, CONFIG_NAME, names, metadata, binaries, graphs)
        return cls(**fields, positions=_positions(directory, stages))

    def rope_tables(self) -> dict[str, NDArray[np.float32]]:
        """Same as in `GenieFolder`, made by the pipeline's own graph.

        Raises:
            BundleError: The graph cannot be run.
        """
        return _position_tables(self.file(self.positions), self.model)


def is_pipeline(path: Path) -> bool:
    """Whether a folder with a genai_config.json, or that file, is a pipeline."""
    config = path if path.name == CONFIG_NAME else path / CONFIG_NAME
    try:
        document = read_json(config, most_bytes=MOST_JSON_BYTES, long_integers=True)
        model: Any = document["model"]
        return bool(model.get("type") == "decoder-pipeline" or "pipeline" in model["decoder"])
    except (JsonTextError, OSError, KeyError, TypeError, AttributeError):
        return False  # then it is for the reader of other folders to say what is wrong


def _wrapped(directory: Path, stages: list[_Stage]) -> "list[tuple[str, onnx.NodeProto]]":
    """The binary and the node of each stage that runs on the HTP.

    Raises:
        BundleError: A stage is none that is known, or refers to something else.
    """
    wrapped = []
    for stage in stages:
        path, nodes = directory / stage.filename, _graph(directory, stage.filename).node
        attention = [node.op_type for node in nodes if node.op_type.endswith("Attention")]
        if attention:
            raise BundleError(
                f"{path} runs {attention[0]} on the CPU between graphs for the HTP, as pipelines "
                "of Olive do; only those of AI Hub can be opened"
            )
        of_qnn = (node for node in nodes if node.op_type == "EPContext")
        wrapped += [(_binary_name(path, node), node) for node in of_qnn]
    if not wrapped:
        raise BundleError(f"{directory}: no stage of its pipeline is a context binary of QNN")
    return wrapped


def _binary_name(path: Path, node: "onnx.NodeProto") -> str:
    """The binary that a node names.

    Raises:
        BundleError: It names none beside it, or something else than a binary.
    """
    from onnx import helper

    said = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    kind = said.get("ep_context_type", b"")
    if kind == b"dlc":
        raise BundleError(f"{path} refers to a DLC, which the QNN provider cannot load")
    name = said.get("ep_cache_context", b"")
    text = name.decode(errors="replace") if isinstance(name, bytes) else ""
    if said.get("embed_mode", 1) != 0 or not is_plain_name(text):
        raise BundleError(f"{path} names {text!r:.60}, which is not a file beside it")
    return text


def _checked(
    directory: Path, file: str, node: "onnx.NodeProto", graphs: dict[str, GraphFacts]
) -> GraphFacts:
    """The graph of a node.

    Raises:
        BundleError: The binary has no such graph, or it has other inputs and outputs.
    """
    if node.name not in graphs:
        said = ", ".join(sorted(graphs)[:3])
        raise BundleError(f"{directory / file} has no graph {node.name}, but {said}")
    facts = graphs[node.name]
    for names, there in ((node.input, facts.inputs), (node.output, facts.outputs)):
        unlike = sorted(set(names) ^ there.keys(), key=repr)  # damaged ones are bytes
        if unlike:
            raise BundleError(
                f"{directory / file}: graph {node.name} and the ONNX file that names it disagree "
                f"about {unlike[0]}"
            )
    return facts


def _check_quantizer(
    directory: Path, stages: list[_Stage], graphs: dict[str, tuple[str, GraphFacts]]
) -> None:
    """Refuse a quantizer.onnx that belongs to other binaries.

    Raises:
        BundleError: Its scales are others than those of the binaries.
    """
    from onnx import numpy_helper

    for stage in stages:
        if MASK not in stage.outputs:
            continue
        graph = _graph(directory, stage.filename)
        scales = {
            tensor.name: float(numpy_helper.to_array(tensor))
            for tensor in graph.initializer
            if tensor.name.endswith("_scale") and not tensor.dims
        }
        for file, facts in graphs.values():
            for name in (MASK, COS, SIN):
                said, found = scales.get(f"{name}_scale"), facts.inputs.get(name)
                if said is None or found is None or found.scale is None:
                    continue
                if not math.isclose(said, found.scale, rel_tol=_SAME_SCALE):
                    raise BundleError(
                        f"{directory}: {stage.filename} and {file} disagree about the scale of "
                        f"{name}"
                    )


def _positions(directory: Path, stages: list[_Stage]) -> str:
    """The stage that makes cosines and sines of position ids.

    Raises:
        BundleError: There is none.
    """
    for stage in stages:
        if "position_ids" in stage.inputs and any(COS in name for name in stage.outputs):
            return stage.filename
    raise BundleError(f"{directory}: no stage of its pipeline makes cosines of position_ids")


def _graph(directory: Path, name: str) -> "onnx.GraphProto":
    """The graph of a small ONNX file.

    Raises:
        BundleError: It cannot be read, or the package onnx is missing.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise BundleError(
            f"{directory} is a pipeline for QNN; opening it needs {how_to_install('genie')}"
        ) from error
    if not is_plain_name(name):
        raise BundleError(f"{directory / CONFIG_NAME} names {name!r:.60}, not a file beside it")
    try:
        content = read_bytes(directory / name, most_bytes=MOST_JSON_BYTES)
        model = onnx.load_model_from_string(content)
    except FileNotFoundError as error:
        raise BundleError(f"{directory / name} is missing") from error
    except Exception as error:  # protobuf raises its own unrelated classes
        raise BundleError(f"{directory / name} cannot be read: {error}") from error
    return model.graph


def _position_tables(path: Path, model: GenieModel) -> dict[str, NDArray[np.float32]]:
    """Cosines and sines by position, `(context, head_dim / 2) f32` each.

    The graph is run once, on a few positions at a time, since it makes a mask of them all, too,
    which is not used.

    Raises:
        BundleError: The graph cannot be run, or gives something else.
    """
    set_threads(None)
    pieces: dict[str, list[NDArray[np.float32]]] = {"cos": [], "sin": []}
    try:
        session = cpu_session(path)
        given = [item.name for item in session.get_outputs()]
        # An output's name begins with that of the input that it is for.
        outputs = [next(it for it in given if it.startswith(name)) for name in (COS, SIN)]
        for first in range(0, model.context, _AT_ONCE):
            positions = np.arange(first, min(first + _AT_ONCE, model.context))
            mask = np.ones((1, model.context))  # of a context that is full
            fed = {
                item.name: (positions[np.newaxis] if item.name == "position_ids" else mask).astype(
                    _TYPES[item.type]
                )
                for item in session.get_inputs()
            }
            for piece, result in zip(pieces.values(), session.run(outputs, fed), strict=True):
                piece.append(np.asarray(result, np.float32).reshape(len(positions), -1))
        tables = {key: np.concatenate(arrays) for key, arrays in pieces.items()}
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise BundleError(f"{path}: ONNX Runtime cannot run it: {error}") from error
    for key, table in tables.items():
        if table.shape != (model.context, model.head_dim // 2) or not np.isfinite(table).all():
            raise BundleError(f"{path} gives {key} of the shape {table.shape}")
    return tables
