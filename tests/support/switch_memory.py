"""Resident memory over many requests, each of which switches all blocks there and back.

    python tests/support/switch_memory.py BUNDLE

Fails where it grows by more than 2 % between the tenth request and any later one.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.generation.loop import plain
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.machine import resident_bytes
from coordgen_rs.runtime.onnx_runtime import set_threads
from coordgen_rs.runtime.ort_session import OrtSession

STRATEGIES = ("just_in_time", "sync", "greedy", "auto")


def resident_after(requests: list[int], bundle: Path) -> Iterator[int]:
    """Yield resident bytes with all blocks on G2 after so many requests, by strategies in turn.

    Every other request starts with all blocks on G1; the plans of the others bring it back or not.
    """
    session = OrtSession(CpuDevice(Bundle.open(bundle), share_graphs=False), preload=False)
    rows = session.bundle.manifest.prefill_rows
    prompt = np.arange(min(3 * rows, session.capacity - 2)) % session.vocab_size
    for number in range(max(requests)):
        session.switcher.settle(STRATEGIES[number % 4])
        session.switcher.only("prefill" if number % 2 else "decode")
        for _ in plain(session, prompt, max_new_tokens=2):
            pass
        if number + 1 in requests:
            session.switcher.only("decode")  # a plan may keep both graphs of a block
            yield resident_bytes()


def main() -> None:
    points = [10, 50, 100, 200, 400, 600, 800, 1000]
    set_threads(1)  # the other core loads
    found: list[int] = []
    for point, num_bytes in zip(points, resident_after(points, Path(sys.argv[1])), strict=True):
        found.append(num_bytes)
        print(f"{point:5} requests: {num_bytes / 1e6:8.1f} MB, {num_bytes / found[0]:.4f} x")
    if max(found) > 1.02 * found[0]:
        sys.exit("memory grows")


if __name__ == "__main__":
    main()
