"""Bytes that each block of a bundle takes when it is loaded.

In: a bundle. Out: bytes by graph and block, and how they were found: as growth of a fresh process's
resident memory, since memory that was in use before is taken again without growing; or, where
the system does not tell, as sizes of files.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np

from coordgen_rs.blocks import Buffers, CpuBlocks, GraphName
from coordgen_rs.bundle import Bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.kv_cache import KvCache
from coordgen_rs.onnx_runtime import set_threads

_STATM = Path("/proc/self/statm")


def block_bytes(path: Path, threads: int) -> tuple[dict[GraphName, list[int]], str]:
    """Bytes by graph and block, and in words how they were found.

    Args:
        path: The bundle's directory.
        threads: Compute threads, each of which has memory of its own.

    Raises:
        BundleError: A graph cannot be loaded or run.
    """
    if not _STATM.exists():
        sizes = _file_sizes(Bundle.open(path))
        return {"prefill": sizes, "decode": sizes}, "sizes of the weights' files"
    grown: dict[GraphName, list[int]] = {}
    graphs: tuple[GraphName, GraphName] = ("prefill", "decode")
    for graph in graphs:
        command = [sys.executable, "-m", __name__, str(path), graph, str(threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            said = done.stderr.strip().rpartition("\n")[2]
            raise BundleError(f"{path}: its {graph} graphs cannot be run: {said}")
        grown[graph] = json.loads(done.stdout)
    return grown, "growth of resident memory"


def resident_bytes() -> int:
    """Resident memory of this process, shared pages included; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def reset_peak() -> None:
    """Forget the peak of resident memory so far, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident_bytes() -> int:
    """Most resident memory of this process since `reset_peak`; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def grown_bytes(bundle: Bundle, graph: GraphName) -> list[int]:
    """Growth of this process as each block is loaded and run once, one after another."""
    manifest, model = bundle.manifest, bundle.manifest.model
    cache = KvCache(model.num_layers, model.num_kv_heads, manifest.slots, model.head_dim)
    rows = manifest.prefill_rows if graph == "prefill" else manifest.decode_rows
    buffers = Buffers.empty(rows, model, manifest.slots)
    buffers.inputs.fill_chain(np.zeros(rows, np.uint32), 0)

    def load(blocks: CpuBlocks, block: int) -> int:
        before = resident_bytes()
        blocks.load(block, graph)
        blocks.run(block, graph, buffers)
        return max(0, resident_bytes() - before)

    # What only the first block of a process costs (threads, intermediate results) is no block's.
    first = CpuBlocks(bundle, cache, share=False)
    load(first, 0)
    blocks = CpuBlocks(bundle, cache, share=False)
    return [load(blocks, block) for block in range(len(blocks))]


def _file_sizes(bundle: Bundle) -> list[int]:
    manifest = bundle.manifest
    return [manifest.files[block.weights].num_bytes for block in manifest.blocks]


if __name__ == "__main__":
    _bundle, _graph, _threads = sys.argv[1:]
    set_threads(int(_threads))
    print(json.dumps(grown_bytes(Bundle.open(_bundle), cast(GraphName, _graph))))
