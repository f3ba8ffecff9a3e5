"""The models that a server offers: their names, where they are, and what they will take.

In: paths that a user gives, and a directory of models. Out: an `Offered` for each, with names that
differ. Nothing is opened.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coordgen_rs.bundle.file_names import is_further_part, with_parts
from coordgen_rs.errors import OptionError

_MARKS = ("manifest.json", "genai_config.json", "genie_config.json", "config.json")
"""Files that make a directory a model."""

LATEST = ":latest"
"""The tag that clients of Ollama add to a name that has none."""


@dataclass(frozen=True)
class Offered:
    """A model that may be asked for.

    Attributes:
        name: Its name for clients.
        path: Where it is, or `hf:OWNER/NAME`.
    """

    name: str
    path: Path

    @property
    def num_bytes(self) -> int:
        """The size of its files; 0 for what is not on this machine yet."""
        if self.path.is_file():
            parts = with_parts(self.path)
            return sum(path.stat().st_size for path in parts if path.is_file())
        found = (Path(folder) / name for folder, _, names in os.walk(self.path) for name in names)
        return sum(path.stat().st_size for path in found if path.is_file())


def offered(
    paths: Iterable[Path], directory: Path | None = None, name: str | None = None
) -> tuple[Offered, ...]:
    """The models at some paths, and behind them those in a directory, by name.

    Args:
        paths: Files or directories of models.
        directory: Its bundles, GGUF files and other models are offered, too.
        name: The name of the only model.

    Raises:
        OptionError: There is none, two have one name, several were to have the name given, or the
            directory cannot be read.
    """
    found = [*paths, *([] if directory is None else _models_in(directory))]
    if not found:
        where = "" if directory is None else f" {directory} holds none."
        raise OptionError(f"name a model, or --models-dir with models in it.{where}")
    if name is not None and len(found) > 1:
        raise OptionError("--name is for one model, but there are several")
    models = [Offered(name or name_of(path), path) for path in found]
    by_name: dict[str, Offered] = {}
    for model in models:
        other = by_name.setdefault(model.name, model)
        if other is not model:
            raise OptionError(
                f"two models have the name {model.name}: {other.path} and {model.path}"
            )
    return tuple(models)


def name_of(path: Path) -> str:
    """The name of a model: that of its directory, or of its file without `.gguf`."""
    # A link's own name: in a cache of the hub it leads to a file called by its checksum.
    name = Path(os.path.normpath(path.absolute())).name
    return name.removesuffix(".gguf") or name


def _models_in(directory: Path) -> list[Path]:
    """The models right below a directory, by name.

    Raises:
        OptionError: It cannot be read.
    """
    try:
        paths = sorted(directory.iterdir())
    except OSError as error:
        raise OptionError(f"--models-dir {directory}: {error.strerror}") from error
    return [path for path in paths if not path.name.startswith(".") and _is_model(path)]


def _is_model(path: Path) -> bool:
    if path.is_dir():
        return any((path / mark).is_file() for mark in _MARKS)
    is_none = is_further_part(path.name) or "mmproj" in path.name  # reads pictures for another
    return path.suffix == ".gguf" and not is_none and path.is_file()
