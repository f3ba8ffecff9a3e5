"""Graphs as metadata.json describes them: instead of the binaries' own word, or beside it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordgen_rs.errors import BundleError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.formats.genie.binary.metadata import METADATA_NAME
from coordgen_rs.formats.genie.binary.names import GraphName
from coordgen_rs.formats.genie.binary.tensors import GraphFacts, TensorFacts

_SAME_SCALE = 1e-5
"""Relative: JSON may hold fewer digits than a float32 has."""


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
