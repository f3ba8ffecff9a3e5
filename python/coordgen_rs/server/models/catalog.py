"""The models that a server offers: their names, where they are, and what clients are told of them.

In: paths that a user gives, and a directory of models; what is open of them. Out: a `ModelEntry`
for each, with names that differ; objects for JSON, as OpenAI, Anthropic and Ollama list them. Of a
model that is not open, only its file is known: nothing is opened for a list.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.errors.extras import package_version
from coordgen_rs.errors.file_names import is_further_part, with_parts
from coordgen_rs.model import Model
from coordgen_rs.server.dialects.prompts import infill_marks

_MARKS = ("manifest.json", "genai_config.json", "genie_config.json", "config.json")
"""Files that make a directory a model."""

LATEST = ":latest"
"""The tag that clients of Ollama add to a name that has none."""


@dataclass(frozen=True)
class ModelEntry:
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


def find_models(
    paths: Iterable[Path], directory: Path | None = None, name: str | None = None
) -> tuple[ModelEntry, ...]:
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
    models = [ModelEntry(name or name_of(path), path) for path in found]
    by_name: dict[str, ModelEntry] = {}
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


VERSION = "0.12.0"
"""The version of Ollama whose API this follows: clients ask for it before they use what is new."""

_NEVER = "9999-12-31T23:59:59Z"


class ModelStatus(NamedTuple):
    """How it stands with a model.

    Attributes:
        entry: The model.
        state: "unloaded", or that of its worker.
        model: The open model, if it can be asked now.
        num_bytes: What it is reckoned to take; 0 where it is not open.
    """

    entry: ModelEntry
    state: str
    model: Model | None
    num_bytes: int


def openai_model(status: ModelStatus, created: int) -> dict[str, Any]:
    """A model as OpenAI describes it, with what is known of it while it is open.

    Args:
        status: The model.
        created: Since when it is served, in seconds since 1970.
    """
    model = status.model
    told: dict[str, Any] = {"id": status.entry.name, "object": "model", "created": created}
    told |= {"owned_by": "coordgen", "version": package_version(), "state": status.state}
    if model is None:
        return told
    told |= {"context_length": model.context, "provider": model.provider}
    told |= {"parallel": model.parallel, "memory_bytes": status.num_bytes}
    if model.why_alone is not None:
        told["why_alone"] = model.why_alone
    told["recommended"] = dict(model.recommended)
    if (costs := model.step_costs) is not None:
        told["step_us"] = {
            rows: {"base": cost.base, "per_token": cost.per_token} for rows, cost in costs.items()
        }
    return told


def anthropic_model(status: ModelStatus, created: int) -> dict[str, Any]:
    """A model as Anthropic describes it; arguments are those of `openai_model`."""
    name = status.entry.name
    return {"type": "model", "id": name, "display_name": name, "created_at": _time(created)}


def anthropic_models(statuses: Sequence[ModelStatus], created: int) -> dict[str, Any]:
    """All models as Anthropic lists them."""
    data = [anthropic_model(one, created) for one in statuses]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return {"data": data, "has_more": False} | ends


def ollama_tags(statuses: Sequence[ModelStatus]) -> dict[str, Any]:
    """All models as Ollama lists them."""
    return {"models": [_listed(one.entry) for one in statuses]}


def ollama_running(statuses: Sequence[ModelStatus]) -> dict[str, Any]:
    """The models that are open, as Ollama lists them."""
    more = {"expires_at": _NEVER, "size_vram": 0}
    return {
        "models": [
            _listed(one.entry, one.model) | more | {"context_length": one.model.context}
            for one in statuses
            if one.model is not None
        ]
    }


def ollama_model(status: ModelStatus) -> dict[str, Any]:
    """What a model is and can do, as Ollama shows it."""
    entry, model = status.entry, status.model
    info: dict[str, Any] = {"general.architecture": "coordgen", "general.basename": entry.name}
    capabilities = ["completion", "tools"]  # what all can
    if model is not None:
        info["coordgen.context_length"] = model.context
        with suppress(CoordgenError):  # it has no chat template, or a malformed one
            capabilities += ["thinking"] if model.template_facts.thinking is not None else []
        capabilities += ["insert"] if infill_marks(model.tokenizer) is not None else []
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(entry, model),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": _modified(entry),
    }


def _listed(entry: ModelEntry, model: Model | None = None) -> dict[str, Any]:
    name = entry.name + LATEST
    return {
        "name": name,
        "model": name,
        "modified_at": _modified(entry),
        "size": entry.num_bytes,
        "digest": sha256(entry.name.encode()).hexdigest(),
        "details": _details(entry, model),
    }


def _details(entry: ModelEntry, model: Model | None) -> dict[str, Any]:
    """What a model is made of, as far as it is open; nothing counts its parameters."""
    family = weights = ""
    if model is not None:
        manifest = model.manifest
        family, weights = manifest.model.family, manifest.weights
        if manifest.kept:
            weights = max(manifest.kept, key=lambda kept: kept.num_tensors).type
    return {
        "parent_model": "",
        "format": "gguf" if entry.path.suffix == ".gguf" else "onnx",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": weights,
    }


def _modified(entry: ModelEntry) -> str:
    try:
        return _time(entry.path.stat().st_mtime)
    except OSError:  # a name at the hub, or gone
        return _time(0)


def _time(seconds: float) -> str:
    """Seconds since 1970, in letters."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
