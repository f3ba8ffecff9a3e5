"""Opening a bundle for a command, with a progress bar."""

import argparse
from pathlib import Path
from typing import Any

from coordgen_rs.cli.options import provider as provider_options
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.opening.session import open_session
from coordgen_rs.target.ort_session import OrtSession


def opened(options: argparse.Namespace, bundle: Path, **more: Any) -> OrtSession:
    """Open a bundle under `--threads` and the options of `provider_options`."""
    with progress() as on_progress:
        return open_session(
            bundle,
            threads=options.threads,
            provider=provider_options.chosen(options),
            on_progress=on_progress,
            **more,
        )
