"""What the blocks of a bundle cost according to a profile, for plans.

In: a profile, a bundle, and how it will be run. Out: the costs of its blocks, with a warning if
they may have changed, and an error if they are for other blocks. It measures nothing.
"""

import hashlib
import platform
import warnings

import onnxruntime

from coordgen_rs._core import BlockCost
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import ProfileError, StaleProfileWarning
from coordgen_rs.loading.directory import provider_class
from coordgen_rs.loading.profile import Profile
from coordgen_rs.runtime.machine import cpu_name, usable_cores


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
