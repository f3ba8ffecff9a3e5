"""What became of the weights of a checkpoint that were kept, in words.

In: a manifest. Out: a line per type of tensor, none for other weights.
"""

from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.cli.terminal.printable import printable


def kept_lines(manifest: Manifest) -> list[str]:
    """Lines such as `kept: 210 Q4_0 tensors, exactly`."""
    return [
        f"kept: {kept.num_tensors} {printable(kept.type)} "
        f"tensor{'' if kept.num_tensors == 1 else 's'}, "
        f"{'exactly' if kept.is_exact else 'as the nearest 8-bit integers'}"
        for kept in manifest.kept or []
    ]
