"""What a bundle of AI Hub says beside its binaries: metadata.json, versions, and the chip.

In: the bundle's directory. Out: a `GenieMetadata`; what is not said is None. Since AI Hub Models
0.65 there is a metadata.json; tool-versions.yaml and the backend's own config are older. It tells
of graphs instead of the binaries' own word, or beside it.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordgen_rs.errors import BundleError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.errors.json_text import JsonTextError, file_errors_as, parse, read_bytes
from coordgen_rs.formats import read_object
from coordgen_rs.formats.genie.binary import GraphFacts, TensorFacts
from coordgen_rs.formats.genie.graphs import GraphName

METADATA_NAME, VERSIONS_NAME = "metadata.json", "tool-versions.yaml"
_MOST_YAML_BYTES = 1 << 20
_QAIRT = re.compile(r"^\s*qairt\s*:\s*[\"']?v?(\d+(?:\.\d+)+)", re.MULTILINE)
_ARCH = re.compile(r"v?(\d{2,3})")
_SAME_SCALE = 1e-5
"""Relative: JSON may hold fewer digits than a float32 has."""


@dataclass(frozen=True)
class _Quantization:
    scale: float
    zero_point: int


@dataclass(frozen=True)
class _Tensor:
    shape: list[int]
    dtype: str
    quantization_parameters: _Quantization | None = None


@dataclass(frozen=True)
class _ModelFile:
    inputs: dict[str, _Tensor]
    outputs: dict[str, _Tensor]


@dataclass(frozen=True)
class _Chipset:
    htp_version: int | None = None
    soc_model: int | None = None


@dataclass(frozen=True)
class _ToolVersions:
    qairt: str | None = None


@dataclass(frozen=True)
class _Document:
    model_files: dict[str, _ModelFile]
    model_id: str | None = None
    chipset_attributes: _Chipset | None = None
    tool_versions: _ToolVersions | None = None


@dataclass(frozen=True)
class GenieMetadata:
    """What the files beside the binaries say.

    Attributes:
        graphs: Graphs by their names, or by the names of their binaries.
        model_id: AI Hub's name of the model.
        soc_models: Numbers of the chip, with the file that says each.
        htp_archs: Versions of its HTP, with the file that says each.
        qairt: Version of what compiled the binaries.
    """

    graphs: dict[str, GraphFacts]
    model_id: str | None
    soc_models: dict[int, str]
    htp_archs: dict[int, str]
    qairt: str | None


def read_metadata(directory: Path, extensions: str | None) -> GenieMetadata:
    """Read what is there.

    Args:
        directory: The bundle.
        extensions: File name of the backend's config, if any.

    Raises:
        BundleError: A file is malformed, or two contradict each other; the message names them.
    """
    document = _document(directory / METADATA_NAME)
    chipset = document.chipset_attributes or _Chipset()
    told = [(chipset.soc_model, chipset.htp_version, METADATA_NAME)]
    if extensions is not None and (directory / extensions).exists():
        told.append((*_extensions(directory / extensions), extensions))
    socs = {soc: file for soc, _, file in told if soc is not None}
    archs = {arch: file for _, arch, file in told if arch is not None}
    for what, found in (("soc_model", socs), ("HTP version", archs)):
        check_one(directory, what, found)
    versions = document.tool_versions or _ToolVersions()
    return GenieMetadata(
        graphs={name: _facts(file) for name, file in document.model_files.items()},
        model_id=document.model_id,
        soc_models=socs,
        htp_archs=archs,
        qairt=versions.qairt or _qairt(directory / VERSIONS_NAME),
    )


def check_one(directory: Path, what: str, found: dict[int, str]) -> None:
    """Refuse a bundle whose files disagree.

    Raises:
        BundleError: More than one value was found.
    """
    if len(found) > 1:
        said = " and ".join(f"{value} ({file})" for value, file in sorted(found.items()))
        raise BundleError(f"{directory}: its files disagree about the {what}: {said}")


def _document(path: Path) -> _Document:
    if not path.exists():
        return _Document({})
    with file_errors_as(BundleError, path):
        return parse(_Document, read_object(path), "metadata")


def _facts(file: _ModelFile) -> GraphFacts:
    return GraphFacts(
        *(
            {name: _tensor_facts(tensor) for name, tensor in tensors.items()}
            for tensors in (file.inputs, file.outputs)
        )
    )


def _tensor_facts(tensor: _Tensor) -> TensorFacts:
    encoding = tensor.quantization_parameters
    scale, zero_point = (encoding.scale, encoding.zero_point) if encoding else (None, None)
    return TensorFacts(tuple(tensor.shape), tensor.dtype, scale, zero_point)


def _extensions(path: Path) -> tuple[int | None, int | None]:
    """Number of the chip and version of its HTP in a backend's config.

    Raises:
        BundleError: It is malformed.
    """
    devices: Any = read_object(path).get("devices")
    first = devices[0] if isinstance(devices, list) and devices else {}
    if not isinstance(first, dict):
        raise BundleError(f"{path}: devices holds {first!r:.60}, expected an object")
    soc, arch = first.get("soc_model"), _ARCH.fullmatch(str(first.get("dsp_arch", "")))
    return soc if isinstance(soc, int) else None, int(arch[1]) if arch else None


def _qairt(path: Path) -> str | None:
    """The version that a tool-versions.yaml names: a line such as `qairt: 2.45.0.260326`.

    Raises:
        BundleError: It cannot be read.
    """
    if not path.exists():
        return None
    try:
        text = read_bytes(path, most_bytes=_MOST_YAML_BYTES).decode(errors="replace")
    except (JsonTextError, OSError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    found = _QAIRT.search(text)
    return found[1] if found else None


def version_numbers(text: str) -> tuple[int, ...]:
    """Major and minor of a version such as `v2.45.0.260326`: what must not be newer."""
    numbers: Iterable[str] = re.findall(r"\d+", text)[:2]
    return tuple(map(int, numbers))


def described(
    directory: Path, binaries: Sequence[str], graphs: Mapping[str, GraphFacts]
) -> dict[str, tuple[str, GraphFacts]]:
    """File and facts of each graph, where Qualcomm's library is not here to read binaries.

    Args:
        directory: The bundle, for messages.
        binaries: Names of its binaries, one for each part.
        graphs: What metadata.json says of each graph.

    Raises:
        BundleError: It says nothing, or not in which binary a graph is.
    """
    named = {name: GraphName.of(name) for name in graphs}
    parts = {name: at for name, at in named.items() if at is not None}
    if not parts:
        raise BundleError(
            f"{directory} has no {METADATA_NAME} that tells of its graphs; its binaries can be "
            f"read with {how_to_install('qnn')}"
        )
    for name, at in parts.items():
        if at.num_parts != len(binaries):
            raise BundleError(
                f"{directory}: {name} is one of {at.num_parts} parts, but there are "
                f"{len(binaries)} binaries; which has which can be read with "
                f"{how_to_install('qnn')}"
            )
    return {name: (binaries[at.part - 1], graphs[name]) for name, at in parts.items()}


def compared(
    directory: Path, said: Mapping[str, GraphFacts], found: Mapping[str, tuple[str, GraphFacts]]
) -> None:
    """Refuse a metadata.json that belongs to other binaries.

    Raises:
        BundleError: It tells of a graph that is not there, or otherwise of one that is.
    """
    files = {file for file, _ in found.values()}
    for name, graph in said.items():
        # Named by its binary, it is not said which graph it is; and AI Hub may leave both empty.
        if name in files or not (graph.inputs or graph.outputs):
            continue
        if name not in found:
            raise BundleError(f"{directory}: {METADATA_NAME} tells of {name}, which no binary has")
        file, facts = found[name]
        ways = ((graph.inputs, facts.inputs), (graph.outputs, facts.outputs))
        for expected, there in ways:
            unlike = sorted(expected.keys() ^ there.keys())
            unlike += [
                each for each in expected if not unlike and _differ(expected[each], there[each])
            ]
            if unlike:
                raise BundleError(
                    f"{directory}: {METADATA_NAME} and {file} disagree about {unlike[0]} of {name}"
                )


def _differ(one: TensorFacts, other: TensorFacts) -> bool:
    if one.shape != other.shape:
        return True
    if one.scale is None or other.scale is None:
        return False  # of integers, either may say nothing
    is_close = math.isclose(one.scale, other.scale, rel_tol=_SAME_SCALE)
    return not is_close or one.zero_point != other.zero_point
