"""The manifest of a bundle: any file is refused by name, or is the same when written and read."""

from contextlib import suppress

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import MANIFEST_NAME, Manifest
from coordgen_rs.errors import BundleError
from scratch import FOLDER, holding

IS_JSON = True


def run(data: bytes) -> None:
    """Open a directory with this manifest and no other file."""
    holding(MANIFEST_NAME, data)
    with suppress(BundleError):
        Bundle.open(FOLDER)
    try:
        manifest = Manifest.from_json(data.decode())
    except (BundleError, UnicodeDecodeError):
        return
    assert Manifest.from_json(manifest.to_json()) == manifest
    for name in manifest.files:
        assert (FOLDER / name).parent == FOLDER, name
    assert manifest.decode_widths
    assert manifest.provider in ("cpu", "qnn")
