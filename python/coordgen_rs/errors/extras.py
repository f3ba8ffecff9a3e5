"""This installation of the package: its version, and how to install what an extra of it needs.

In: the name of an extra in pyproject.toml. Out: the command to type. Whether it is needed is for
the caller to find out, but for pyarrow, which several callers need for files.
"""

import json
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from coordgen_rs.errors import OptionError

_NAME = "coordgen-rs"


def package_version() -> str:
    """The version, for records of what made a file.

    "unknown" where the package runs from its sources, without being installed.
    """
    try:
        return metadata.version(_NAME)
    except metadata.PackageNotFoundError:
        return "unknown"


def how_to_install(extra: str) -> str:
    """The command that installs an extra: `pip install 'coordgen-rs[export]'`.

    A package that was installed from a checkout or a wheel on this machine is named by its place,
    because no index need have it (PEP 610).
    """
    url, is_editable = _origin()
    place = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
    if place is None or not place.exists():
        return f"pip install '{_NAME}[{extra}]'"
    if is_editable:
        return f"pip install -e '{place}[{extra}]'"
    return f"pip install '{_NAME}[{extra}] @ {url}'"


def how_to_install_engine(package: str) -> str:
    """The command that installs an engine, which no extra brings."""
    return f"pip install {package}"


def pyarrow_for(path: Path) -> Any:
    """The package pyarrow, which a file needs.

    Raises:
        OptionError: It is not installed; the message says for which file, and what to do.
    """
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{path} needs the package pyarrow, which is not installed: {how_to_install('parquet')}"
        ) from error
    return pyarrow


def _origin() -> tuple[str, bool]:
    """Where the package was installed from, and whether it is used there; "" for an index."""
    try:
        text = metadata.distribution(_NAME).read_text("direct_url.json")
        origin = json.loads(text or "{}")
        return str(origin.get("url", "")), bool(origin.get("dir_info", {}).get("editable"))
    except (metadata.PackageNotFoundError, ValueError, AttributeError, OSError):
        return "", False
