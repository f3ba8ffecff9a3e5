"""Bytes that each block of a bundle takes when it is loaded.

In: a bundle. Out: bytes by graph and block, and how they were found: as growth of a fresh process's
resident memory, since memory that was in use before is taken again without growing; or, where
the system does not tell, an NPU has memory of its own, or experts that are in no graph would grow,
too, as sizes of files.
"""

from pathlib import Path

import numpy as np

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.lab.own_process import in_own_process
from coordgen_rs.loading.directory import ProviderChoice, device_class, open_bundle
from coordgen_rs.runtime.device import GRAPHS, Buffers, GraphName
from coordgen_rs.runtime.machine import resident_bytes
from coordgen_rs.runtime.ort_session import OrtSession


def block_bytes(
    bundle: Bundle, threads: int, provider: ProviderChoice
) -> tuple[dict[GraphName, list[int]], str]:
    """Bytes by graph and block, and a description of how they were found.

    Args:
        bundle: An opened bundle.
        threads: Compute threads, each of which has memory of its own.
        provider: What runs it.

    Raises:
        BundleError: A graph cannot be loaded or run.
    """
    device = device_class(bundle)
    is_apart = not device.is_host and not device.is_emulator()  # not this process's memory
    if is_apart or bundle.manifest.experts is not None or not resident_bytes():
        return {graph: _file_sizes(bundle, graph) for graph in GRAPHS}, "sizes of files"
    grown: dict[GraphName, list[int]] = {}
    for graph in GRAPHS:
        try:
            grown[graph] = in_own_process(grown_bytes, bundle.path, graph, threads, provider)
        except Exception as error:
            message = f"{bundle.shown}: its {graph} graphs cannot be run: {error}"
            raise BundleError(message) from error
    return grown, "growth of resident memory"


def grown_bytes(path: Path, graph: GraphName, threads: int, provider: ProviderChoice) -> list[int]:
    """Growth of this process as each block is loaded and run once, one after another."""
    bundle = open_bundle(path)
    manifest = bundle.manifest
    rows = manifest.prefill_rows if graph == "prefill" else manifest.decode_rows

    def opened() -> tuple[OrtSession, Buffers]:
        device = provider.device(bundle, share_graphs=False)
        session = OrtSession(device, threads=threads, preload=False)
        return session, session.forward.chain_buffers(np.zeros(rows, np.uint32))

    def load(session: OrtSession, buffers: Buffers, block: int) -> int:
        before = resident_bytes()
        session.device.load(block, graph)
        session.forward.run_block(block, graph, buffers)
        return max(0, resident_bytes() - before)

    # What only the first block of a process costs (threads, intermediate results) is no block's.
    first = opened()
    load(*first, 0)
    others = opened()
    return [load(*others, block) for block in range(len(manifest.blocks))]


def _file_sizes(bundle: Bundle, graph: GraphName) -> list[int]:
    """Bytes of what each block is loaded from: its context binaries, else its weights."""
    manifest, target = bundle.manifest, bundle.manifest.qnn
    compiled = None if target is None else target.shared or target.compiled
    if target is None or compiled is None:
        return [manifest.files[block.weights].num_bytes for block in manifest.blocks]
    widths = manifest.decode_widths if graph == "decode" else [manifest.prefill_rows]
    if compiled is target.shared:  # loaded as a whole
        widths = manifest.widths
    sizes = []
    for block in manifest.blocks:
        stems = tuple(Path(compiled.graphs[block.graphs[rows]]).stem for rows in widths)
        binaries = (n for n in manifest.files if n.startswith(stems) and n.endswith(".bin"))
        sizes.append(sum(manifest.files[name].num_bytes for name in binaries))
    return sizes
