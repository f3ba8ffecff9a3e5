"""A profile: what the blocks of a bundle cost on one device, measured or taken from a paper.

In: a JSON file, or the name of a profile that comes with the package. Out: a `Profile`, checked for
types and impossible values; for a bundle the costs of its blocks, with a warning if they may have
changed, and an error if they are for other blocks. It measures nothing, and plans nothing.
"""

import dataclasses
import hashlib
import json
import platform
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, Literal

import onnxruntime

from coordgen_rs._core import BlockCost
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import ProfileError, StaleProfileWarning
from coordgen_rs.errors.json_text import (
    FieldError,
    JsonTextError,
    file_errors_as,
    parse,
    parse_object,
    read_bytes,
)
from coordgen_rs.loading.directory import provider_class
from coordgen_rs.runtime.machine import cpu_name, usable_cores
from coordgen_rs.store.files import write_file

SCHEMA_VERSION = 1

_LARGEST = 2.0**50  # thirty years in microseconds, a petabyte
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class GraphFigures:
    """One graph of a block. Times are in microseconds; a spread is what repeats differ by."""

    load_us: float
    load_spread_us: float
    compute_us: float
    """One run of all rows."""
    compute_spread_us: float
    num_bytes: int
    """Memory that it takes while loaded."""


@dataclass(frozen=True)
class DecodeFigures(GraphFigures):
    """The decode graph of a block; `compute_us` is that of `decode_rows` rows."""

    compute_us_by_width: dict[int, float]
    """One run, by number of rows."""


@dataclass(frozen=True)
class BlockFigures:
    """One block under both graphs."""

    prefill: GraphFigures
    decode: DecodeFigures


@dataclass(frozen=True)
class HeadFigures:
    """Final norm and output layer."""

    load_us: float
    load_spread_us: float
    num_bytes: int
    compute_us_by_width: dict[int, float]
    """One run, by number of rows."""


@dataclass(frozen=True)
class Profile:
    """What a bundle costs on one device."""

    schema_version: int
    source: Literal["measured", "paper"]
    note: str
    """How it was made; for people."""
    bundle: dict[str, object]
    """What was measured."""
    device: dict[str, object]
    """What it was measured on; another device or version makes the profile stale."""
    prefill_rows: int
    decode_rows: int
    blocks: list[BlockFigures]
    head: HeadFigures | None
    step_us_by_width: dict[int, float]
    """A whole step: all blocks and the head, by number of rows."""
    watts: float | None = None
    """Mean power of the device while it works; None where it is not known."""

    def block_costs(self) -> list[BlockCost]:
        """The costs of the blocks for plans, in whole microseconds."""
        return [
            BlockCost(
                prefill_load_us=round(block.prefill.load_us),
                prefill_compute_us=round(block.prefill.compute_us),
                prefill_bytes=block.prefill.num_bytes,
                decode_load_us=round(block.decode.load_us),
                decode_compute_us=round(block.decode.compute_us),
                decode_bytes=block.decode.num_bytes,
            )
            for block in self.blocks
        ]

    def to_json(self) -> str:
        """The text of a profile's file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write or replace the file at `path`, completely or not at all; raises OSError."""
        write_file(path, self.to_json().encode())

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "the profile") -> "Profile":
        """Read and check a profile.

        Args:
            text: A JSON document.
            name: Its name for messages.

        Raises:
            ProfileError: It is malformed; the message names it and the field.
        """
        with file_errors_as(ProfileError, name):
            document = parse_object(text, name)
            version = document.get("schema_version")
            if version != SCHEMA_VERSION:
                raise ProfileError(
                    f"{name} has schema version {version!r}, this coordgen_rs reads "
                    f"{SCHEMA_VERSION}"
                )
            profile = parse(cls, document, "profile")
            _check(profile)
        return profile

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """Read and check the file at `path`.

        Raises:
            ProfileError: It is not a profile; the message names the file and the field.
            OSError: It cannot be read.
        """
        try:
            text = read_bytes(path, most_bytes=_MOST_BYTES)
        except JsonTextError as error:
            raise ProfileError(str(error)) from error
        return cls.from_json(text, str(path))

    @classmethod
    def find(cls, name: str) -> "Profile":
        """The packaged profile of that name, or else the file at that path.

        Raises:
            ProfileError: There is neither, or the file is not a profile.
            OSError: The file cannot be read.
        """
        if name in packaged_profiles():
            return cls.from_json(json.dumps(packaged_profiles()[name]), name)
        if not Path(name).exists():
            known = ", ".join(packaged_profiles())
            raise ProfileError(f"there is no profile at {name}; the packaged ones are {known}")
        return cls.read(Path(name))


@cache
def packaged_profiles() -> dict[str, dict[str, Any]]:
    """The profiles that come with the package, by name, as their files would hold them."""
    text = resources.files("coordgen_rs.loading").joinpath("published.toml").read_text("utf-8")
    told = tomllib.loads(text)
    step_us = {int(rows): us for rows, us in told["step_us"].items()}
    widest, num_blocks = told["prefill_rows"], told["num_blocks"]

    def graph(rows: int) -> dict[str, Any]:
        times = {"load_us": told["load_us"], "compute_us": step_us[rows]}
        spreads = {"load_spread_us": 0.0, "compute_spread_us": 0.0}
        shares = {name: round(us / num_blocks, 1) for name, us in times.items()}
        return shares | spreads | {"num_bytes": told["num_bytes"] // num_blocks}

    found = {}
    for (phone, device), rows in product(told["phones"].items(), told["decode_rows"]):
        by_width = {width: us for width, us in step_us.items() if width <= rows}
        shares = {width: round(us / num_blocks, 1) for width, us in by_width.items()}
        block = {"prefill": graph(widest), "decode": graph(rows) | {"compute_us_by_width": shares}}
        suffix = "" if rows == told["decode_rows"][0] else f"-g2-{rows}"
        found[f"{phone}-qwen2.5-1.5b{suffix}"] = {
            "schema_version": SCHEMA_VERSION,
            "source": "paper",
            "note": told["note"],
            "bundle": {"model": told["model"]},
            "device": device,
            "prefill_rows": widest,
            "decode_rows": rows,
            "blocks": [block] * num_blocks,
            "head": None,
            "step_us_by_width": by_width,
        }
    return found


def _check(profile: Profile) -> None:
    """Check the figures of a profile.

    Raises:
        FieldError: A value is impossible; the message names it.
    """
    if not 1 <= profile.decode_rows <= profile.prefill_rows:
        raise FieldError(
            f"profile.decode_rows is {profile.decode_rows}, "
            f"expected 1 to prefill_rows, {profile.prefill_rows}"
        )
    if not profile.blocks:
        raise FieldError("profile.blocks is empty")
    for name, value in _numbers(dataclasses.asdict(profile), "profile"):
        if not 0 <= value <= _LARGEST:
            raise FieldError(f"{name} is {value}, expected 0 or more, and below 2^50")


def _numbers(value: object, where: str) -> Iterator[tuple[str, float]]:
    """All times and sizes with their names; the free-form parts are left out.

    Raises:
        FieldError: A width is not a number of rows.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, int) and key < 1:
                raise FieldError(f"{where} has the key {key}, expected a number of rows")
            if where != "profile" or key not in ("bundle", "device"):
                yield from _numbers(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{where}[{index}]")
    elif isinstance(value, int | float):
        yield where, value


def fitting_costs(profile: Profile, bundle: Bundle, threads: int) -> list[BlockCost]:
    """What the blocks of a bundle cost by a profile; a stale profile causes a warning.

    Args:
        profile: Measured, or taken from a paper.
        bundle: The bundle it will be used for.
        threads: Compute threads that will be used.

    Raises:
        ProfileError: The profile has a different number of blocks or rows.
        ProviderError: Same as in `device_facts`.
    """
    manifest = bundle.manifest
    for name, measured, there in (
        ("blocks", len(profile.blocks), len(manifest.blocks)),
        ("prefill_rows", profile.prefill_rows, manifest.prefill_rows),
        ("decode_rows", profile.decode_rows, manifest.decode_rows),
    ):
        if measured != there:
            raise ProfileError(f"the profile has {measured} {name}, {bundle.shown} has {there}")
    stale = stale_facts(profile, bundle, threads)
    if stale:
        warnings.warn(
            f"the profile is stale, measure again with coordgen profile: {'; '.join(stale)}",
            StaleProfileWarning,
            stacklevel=2,
        )
    return profile.block_costs()


def bundle_facts(bundle: Bundle) -> dict[str, object]:
    """Facts about a bundle; a profile is stale if they have changed."""
    digest = hashlib.sha256(bundle.identity())
    return {
        "name": bundle.path.name,
        "manifest_sha256": digest.hexdigest(),
        "weights": bundle.manifest.weights,
    }


def device_facts(bundle: Bundle, threads: int) -> dict[str, object]:
    """Facts about this machine; a profile is stale if they have changed.

    Raises:
        ProviderError: The bundle is for QNN, which is not installed or cannot run here.
    """
    facts: dict[str, object] = {
        "provider": bundle.manifest.provider,
        **machine_facts(),
        "threads": threads,
        "onnxruntime": onnxruntime.__version__,
    }
    return facts | provider_class(bundle.manifest.provider).facts(bundle)


def machine_facts() -> dict[str, object]:
    """Facts about this machine alone: processor, cores that may be used, system."""
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def stale_facts(profile: Profile, bundle: Bundle, threads: int) -> list[str]:
    """What has changed since a profile was measured, in words; empty if nothing has.

    Args:
        profile: One taken from a paper is always stale.
        bundle: The bundle it will be used for.
        threads: Compute threads that will be used.

    Raises:
        ProviderError: Same as in `device_facts`.
    """
    pairs = {
        "bundle": (profile.bundle, bundle_facts(bundle)),
        "device": (profile.device, device_facts(bundle, threads)),
    }
    return [
        f"{part}.{name} was {measured.get(name)!r}, is {value!r}"
        for part, (measured, now) in pairs.items()
        for name, value in now.items()
        if name != "name" and measured.get(name) != value
    ]
