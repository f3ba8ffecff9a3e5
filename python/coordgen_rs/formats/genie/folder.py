"""A bundle of Genie as a bundle of ours: its files stay as they are, nothing is written.

In: a path with a genie_config.json. Out: a `GenieFolder`, whose manifest is made up from the config
and what the binaries, or metadata.json, say of their graphs. `device.py` runs them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle import rotation
from coordgen_rs.bundle.directory import GENIE_CONFIG_NAME as CONFIG_NAME
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.formats.genie.binary.described import compared, described
from coordgen_rs.formats.genie.binary.file import can_read, read_binary
from coordgen_rs.formats.genie.binary.metadata import GenieMetadata, read_metadata
from coordgen_rs.formats.genie.binary.tensors import BinaryFacts, GraphFacts
from coordgen_rs.formats.genie.config import GenieConfig, read_config
from coordgen_rs.formats.genie.lookup import read_lookup
from coordgen_rs.formats.genie.manifest import manifest_of, target_of
from coordgen_rs.formats.genie.model import GenieModel, choose_model


@dataclass(frozen=True)
class GenieFolder(Bundle):
    """An opened bundle of Genie.

    Attributes:
        config: What genie_config.json says.
        model: The graphs that are run.
        made_by: Version of QAIRT that compiled the binaries; None if nothing says it.
        num_graphs: Graphs in each binary; empty where binaries cannot be read here.
    """

    config: GenieConfig
    model: GenieModel
    made_by: str | None
    num_graphs: dict[str, int]

    form = "genie"
    has_checksums = False
    tokenizer_config = "tokenizer_config.json"

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read the config and what is known of the graphs, and check that they can be run.

        Args:
            path: The directory.

        Raises:
            BundleError: The bundle is incomplete or malformed, its files disagree, or it cannot be
                run here; the message names the file or what is not supported.
            BundleDamagedError: A binary or the tokenizer is missing or damaged.
        """
        directory = Path(path).absolute()
        config = read_config(directory / CONFIG_NAME)
        metadata = read_metadata(directory, config.extensions)
        binaries = read_binaries(directory, config.binaries) if can_read() else {}
        graphs = _graphs(directory, config, metadata, binaries)
        return cls(**opened(directory, CONFIG_NAME, config, metadata, binaries, graphs))

    def identity(self) -> bytes:
        """Same as in `Bundle`; hashes of config and tokenizer, and sizes of the binaries."""
        return self.manifest.to_json().encode()

    def verify(self, on_progress: Callable[[str, int, int], None] | None = None) -> None:
        """Does nothing: the bundle says nothing of its files' contents."""

    def shares(self, file: str) -> bool:
        """Whether a binary holds several graphs, or nobody could look."""
        return self.num_graphs.get(file, 2) > 1

    def embedded_rows(self) -> Callable[[NDArray[np.int64]], NDArray[Any]]:
        """A function from token ids to their rows of the embedding, as the first graph reads them.

        Raises:
            BundleDamagedError: The embedding's file cannot be mapped.
            BundleError: It is of an unknown type, or there is none.
        """
        return read_lookup(self.path, self.config, self.model)

    def rope_tables(self) -> dict[str, NDArray[np.float32]]:
        """Same as in `Bundle`, for every position that a run can reach."""
        cos, sin = rotation.tables(self.model.context, self.manifest.inv_freq)
        return {"cos": cos, "sin": sin}


def opened(
    directory: Path,
    config_name: str,
    config: GenieConfig,
    metadata: GenieMetadata,
    binaries: dict[str, BinaryFacts],
    graphs: dict[str, tuple[str, GraphFacts]],
) -> dict[str, Any]:
    """The fields of a `GenieFolder`.

    Args:
        directory: The bundle.
        config_name: File name of its config.
        config: What that says.
        metadata: What other files say.
        binaries: What the binaries say; empty if they cannot be read here.
        graphs: File and facts of each graph.

    Raises:
        BundleError: The graphs cannot be run, or the files disagree.
        BundleDamagedError: A file is missing.
    """
    for name in config.binaries:
        if not (directory / name).is_file():
            raise BundleDamagedError(f"{directory / name} is missing")
    model = choose_model(str(directory), graphs, config.context)
    target = target_of(directory, model, metadata, binaries)
    return {
        "path": directory,
        "manifest": manifest_of(directory, config_name, config, model, target, metadata),
        "config": config,
        "model": model,
        "made_by": next((it.build_id for it in binaries.values()), None) or metadata.qairt,
        "num_graphs": {name: len(facts.graphs) for name, facts in binaries.items()},
    }


def read_binaries(directory: Path, names: Iterable[str]) -> dict[str, BinaryFacts]:
    """What each binary says of itself.

    Raises:
        BundleDamagedError: One is missing, or is no context binary.
    """
    return {name: read_binary(directory / name) for name in names}


def _graphs(
    directory: Path,
    config: GenieConfig,
    metadata: GenieMetadata,
    binaries: dict[str, BinaryFacts],
) -> dict[str, tuple[str, GraphFacts]]:
    """File and facts of each graph: of the binaries themselves, or else of metadata.json.

    Raises:
        BundleError: Both tell of a graph, but not the same; or neither tells of any.
    """
    if not binaries:
        return described(directory, config.binaries, metadata.graphs)
    found: dict[str, tuple[str, GraphFacts]] = {}
    for file, facts in binaries.items():
        for name, graph in facts.graphs.items():
            if name in found:
                raise BundleError(f"{directory}: both {found[name][0]} and {file} have {name}")
            found[name] = file, graph
    compared(directory, metadata.graphs, found)
    return found
