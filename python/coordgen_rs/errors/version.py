"""The version of this package, for records of what made a file."""

from importlib import metadata


def package_version() -> str:
    """Its version; "unknown" where it runs from its sources, without being installed."""
    try:
        return metadata.version("coordgen-rs")
    except metadata.PackageNotFoundError:
        return "unknown"
