"""Resident memory over many requests, each of which switches all blocks there and back.

    python tests/switch_memory.py BUNDLE

Fails where it grows by more than 2 % between the tenth request and any later one.
"""

import sys
from pathlib import Path

import numpy as np

from coordgen_rs.bundle import Bundle
from coordgen_rs.generate import plain
from coordgen_rs.profile_memory import resident_bytes
from coordgen_rs.session import OrtSession

STRATEGIES = ("just_in_time", "sync", "greedy", "auto")


def resident_after(requests: list[int], bundle: Path) -> list[int]:
    """Resident bytes after so many requests, counted from 1, by strategies in turn.

    Every other request starts with all blocks on G1; the plans of the others bring it back or not.
    """
    session = OrtSession(Bundle.open(bundle), share_graphs=False, preload=False)
    rows = session.bundle.manifest.prefill_rows
    prompt = np.arange(min(3 * rows, session.capacity - 2)) % session.vocab_size
    found = []
    for number in range(max(requests)):
        session.switching.only("prefill" if number % 2 else "decode")
        for _ in plain(session, prompt, max_new_tokens=2, switch=STRATEGIES[number % 4]):
            pass
        if number + 1 in requests:
            found.append(resident_bytes())
    return found


def main() -> None:
    points = [10, 50, 100, 200, 400, 600, 800, 1000]
    found = resident_after(points, Path(sys.argv[1]))
    for point, num_bytes in zip(points, found, strict=True):
        print(f"{point:5} requests: {num_bytes / 1e6:8.1f} MB, {num_bytes / found[0]:.4f} x")
    if max(found) > 1.02 * found[0]:
        sys.exit("memory grows")


if __name__ == "__main__":
    main()
