"""What clients are told of models: which there are, which are open, and what one can do.

In: the models of a server. Out: objects for JSON, as OpenAI, Anthropic and Ollama list them. Of a
model that is not open, only its file is known: nothing is opened for a list.
"""

from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from coordgen_rs.errors import CoordgenError
from coordgen_rs.errors.extras import package_version
from coordgen_rs.model import Model
from coordgen_rs.server.models import LATEST, Offered
from coordgen_rs.server.models.models import Models
from coordgen_rs.server.requests.prompts import infill_marks

VERSION = "0.12.0"
"""The version of Ollama whose API this follows: clients ask for it before they use what is new."""

_NEVER = "9999-12-31T23:59:59Z"


def described(models: Models, one: Offered, created: int) -> dict[str, Any]:
    """A model as OpenAI describes it, with what is known of it while it is open.

    Args:
        models: The models of the server.
        one: The model.
        created: Since when it is served, in seconds since 1970.
    """
    told: dict[str, Any] = {"id": one.name, "object": "model", "created": created}
    told |= {"owned_by": "coordgen", "version": package_version(), "state": models.state(one.name)}
    model = models.open_one(one.name)
    if model is None:
        return told
    told |= {"context_length": model.context, "provider": model.provider}
    told |= {"parallel": model.parallel, "memory_bytes": models.taken(one.name)}
    if model.why_alone is not None:
        told["why_alone"] = model.why_alone
    told["recommended"] = dict(model.recommended)
    if (costs := model.step_costs) is not None:
        told["step_us"] = {
            rows: {"base": cost.base, "per_token": cost.per_token} for rows, cost in costs.items()
        }
    return told


def described_to_anthropic(name: str, created: int) -> dict[str, Any]:
    """A model as Anthropic describes it; arguments are those of `described`."""
    return {"type": "model", "id": name, "display_name": name, "created_at": _time(created)}


def listed_to_anthropic(models: Models, created: int) -> dict[str, Any]:
    """All models as Anthropic lists them."""
    names = [one.name for one in models.offered]
    return {
        "data": [described_to_anthropic(name, created) for name in names],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }


def tags(models: Models) -> dict[str, Any]:
    """All models as Ollama lists them."""
    return {"models": [_entry(one) for one in models.offered]}


def running(models: Models) -> dict[str, Any]:
    """The models that are open, as Ollama lists them."""
    entries = []
    for one in models.offered:
        model = models.open_one(one.name)
        if model is not None:
            more = {"expires_at": _NEVER, "size_vram": 0, "context_length": model.context}
            entries.append(_entry(one, model) | more)
    return {"models": entries}


def shown(models: Models, one: Offered) -> dict[str, Any]:
    """What a model is and can do, as Ollama shows it."""
    model = models.open_one(one.name)
    info: dict[str, Any] = {"general.architecture": "coordgen", "general.basename": one.name}
    if model is not None:
        info["coordgen.context_length"] = model.context
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(one, model),
        "model_info": info,
        "capabilities": _capabilities(model),
        "modified_at": _modified(one),
    }


def _capabilities(model: Model | None) -> list[str]:
    """What a model can do; of one that is not open, what all can."""
    found = ["completion", "tools"]
    if model is not None:
        with suppress(CoordgenError):  # it has no chat template, or a malformed one
            found += ["thinking"] if model.template_facts.thinking is not None else []
        found += ["insert"] if infill_marks(model.tokenizer) is not None else []
    return found


def _entry(one: Offered, model: Model | None = None) -> dict[str, Any]:
    name = one.name + LATEST
    return {
        "name": name,
        "model": name,
        "modified_at": _modified(one),
        "size": one.num_bytes,
        "digest": sha256(one.name.encode()).hexdigest(),
        "details": _details(one, model),
    }


def _details(one: Offered, model: Model | None) -> dict[str, Any]:
    """What a model is made of, as far as it is open; nothing counts its parameters."""
    family = weights = ""
    if model is not None:
        manifest = model.manifest
        family, weights = manifest.model.family, manifest.weights
        if manifest.kept:
            weights = max(manifest.kept, key=lambda kept: kept.num_tensors).type
    return {
        "parent_model": "",
        "format": "gguf" if one.path.suffix == ".gguf" else "onnx",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": weights,
    }


def _modified(one: Offered) -> str:
    try:
        return _time(one.path.stat().st_mtime)
    except OSError:  # a name at the hub, or gone
        return _time(0)


def _time(seconds: float) -> str:
    """Seconds since 1970, in letters."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
