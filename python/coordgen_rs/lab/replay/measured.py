"""Cells that measure methods with a real model: the section `methods` of `coordgen bench`.

In: settings with a bundle and a file of prompts. Out: a row for each task and method. Each cell
runs in a process of its own, whose threads and memory end with it.
"""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.measuring.settings import Settings
from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.sections.methods import measure_methods
from coordgen_rs.lab.own_process import in_own_process
from coordgen_rs.lab.replay.cells import flattened, sha256_of
from coordgen_rs.lab.replay.table_file import Row
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.loading.profile import device_facts

_UNUSED = ("prompt_len", "strategies", "load_delay_s", "profile", "power_root")
"""Settings that only other sections read."""


@dataclass(frozen=True)
class Measured:
    """A cell: what `coordgen bench --sections methods` measures with these settings."""

    wanted: Settings

    def settings(self) -> Row:
        """Same as in `Cell`.

        Raises:
            OptionError: There are no prompts.
            BundleError: A bundle cannot be used.
        """
        wanted = self.wanted
        if wanted.data is None:
            raise OptionError("section 'methods' needs DATA, a file of prompts")
        row: Row = {
            "command": "bench methods",
            "data": wanted.data.name,
            "data_sha256": sha256_of(wanted.data),
        }
        for name in ("bundle", "draft_model"):
            path = getattr(wanted, name)
            row[name] = None if path is None else path.name
            row[f"{name}_sha256"] = None if path is None else _identity(path)
        table = wanted.lookup_table
        row["lookup_table_sha256"] = None if table is None else sha256_of(table)
        left = asdict(wanted)
        for name in (*_UNUSED, "bundle", "data", "draft_model", "lookup_table"):
            del left[name]
        return row | {name: _cell(value) for name, value in left.items()}

    def measure(self) -> list[Row]:
        """Same as in `Cell`."""
        rows: list[Row] = in_own_process(_rows, self.wanted)
        return rows


def _rows(wanted: Settings) -> list[Row]:
    bench = Workbench.open(wanted, lambda what, done, total: None)
    device = flattened({"device": device_facts(bench.session.bundle, bench.session.threads)})
    return [flattened(row) | device for row in measure_methods(bench).to_json()["rows"]]


def _identity(path: Path) -> str:
    return hashlib.sha256(open_bundle(path).identity()).hexdigest()


def _cell(value: Any) -> Any:
    """A setting as a word, a number or None."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={inner}" for name, inner in value.items() if inner is not None)
    return ",".join(value) if isinstance(value, tuple) else value
