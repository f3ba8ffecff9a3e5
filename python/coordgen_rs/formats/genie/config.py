"""genie_config.json: what Genie is told of a model.

In: the path of such a file. Out: a `GenieConfig`, checked for types and for what can run here: one
decoder in context binaries for HTP. How its graphs look stands in the binaries (`binary.py`).
Fields that only tune Genie itself (threads, sampling, the drafting of its dialog) are not read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.rope import scaled_as_llama3, unscaled
from coordgen_rs.errors import BundleError
from coordgen_rs.errors.file_names import is_plain_name
from coordgen_rs.errors.json_text import file_errors_as, parse
from coordgen_rs.formats import read_object, token_ids

_DIALOGS = ("basic", "ssd-q1", "lade")
"""Dialogs of one target model; how Genie itself drafts in them does not matter."""


@dataclass(frozen=True)
class _Context:
    size: int
    n_vocab: int
    eos_token: object
    bos_token: int | None = None


@dataclass(frozen=True)
class _Tokenizer:
    path: str


@dataclass(frozen=True)
class RopeScaling:
    """What the frequencies of a rotation are changed by."""

    rope_type: str | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None


@dataclass(frozen=True)
class _Positions:
    type: str | None = None
    rope_dim: int | None = None
    rope_theta: float | None = None
    rope_scaling: RopeScaling | None = None


@dataclass(frozen=True)
class _Htp:
    pos_id_dim: int | None = None
    rope_theta: float | None = None


@dataclass(frozen=True)
class _Backend:
    type: str
    QnnHtp: _Htp | None = None
    extensions: str | None = None


@dataclass(frozen=True)
class _Binary:
    ctx_bins: list[str]
    lora: object = None


@dataclass(frozen=True)
class _Model:
    type: str
    binary: _Binary | None = None
    positional_encoding: _Positions | None = None


@dataclass(frozen=True)
class _Engine:
    backend: _Backend
    model: _Model


@dataclass(frozen=True)
class Lookup:
    """The embedding as a file, where it is not in the first graph."""

    lut_path: str
    size: int | None = None
    datatype: str | None = None


@dataclass(frozen=True)
class _Dialog:
    context: _Context
    tokenizer: _Tokenizer
    engine: _Engine
    type: str | None = None
    embedding: Lookup | None = None


@dataclass(frozen=True)
class GenieConfig:
    """What a config says of its model.

    Attributes:
        context: Most tokens of a request.
        vocab_size: Number of tokens.
        bos_token_id: The token that begins a text, if any.
        end_token_ids: Tokens that end an answer.
        tokenizer: File name.
        binaries: File names of the context binaries, in the order of the model's parts.
        extensions: File name of the backend's own config, if any.
        embedding: The embedding's file, if it is one.
        rope_theta: Base of the rotation by positions; None where a graph for CPU encodes them
            (`pipeline.py`).
        rope_scaling: What the rotation's frequencies are changed by.
    """

    context: int
    vocab_size: int
    bos_token_id: int | None
    end_token_ids: list[int]
    tokenizer: str
    binaries: list[str]
    extensions: str | None = None
    embedding: Lookup | None = None
    rope_theta: float | None = None
    rope_scaling: RopeScaling = RopeScaling()

    def frequencies(self, head_dim: int) -> list[float]:
        """Radians per position of each pair of a head; none where a graph encodes positions."""
        if self.rope_theta is None:
            return []
        frequencies, scaling = unscaled(self.rope_theta, head_dim), self.rope_scaling
        if scaling.rope_type == "llama3":
            bounds = scaling.low_freq_factor, scaling.high_freq_factor
            figures = scaling.factor, *bounds, scaling.original_max_position_embeddings
            frequencies = scaled_as_llama3(frequencies, *(float(figure or 1) for figure in figures))
        per_position: list[float] = frequencies.tolist()
        return per_position


def read_config(path: Path) -> GenieConfig:
    """Read a genie_config.json.

    Raises:
        BundleError: It is missing or malformed, or is for a model that cannot run here; the
            message names the file, and the field or the reason.
    """
    document = read_object(path)
    dialog = document.get("dialog")
    if not isinstance(dialog, dict):
        raise BundleError(f"{path} does not describe a dialog")
    _refuse_other_engines(path, dialog)
    with file_errors_as(BundleError, path):
        config = parse(_Dialog, _with_underscores(dialog), "dialog")
    _check_model(path, config)
    return _config(path, config)


def _with_underscores(value: Any) -> Any:
    """The same object, with `-` in names replaced by `_`."""
    if isinstance(value, dict):
        return {key.replace("-", "_"): _with_underscores(item) for key, item in value.items()}
    return value


def _refuse_other_engines(path: Path, dialog: dict[str, Any]) -> None:
    """Refuse dialogs of more than one model, and engines for other hardware.

    Raises:
        BundleError: It is such a dialog.
    """
    kind = dialog.get("type", "basic")
    if kind not in _DIALOGS:
        raise BundleError(
            f"{path}: a dialog of type {kind!r:.60} has more than one model, or heads of its own; "
            f"only {', '.join(_DIALOGS)} can be opened"
        )
    engine = dialog.get("engine")
    if isinstance(engine, list):
        raise BundleError(f"{path} has {len(engine)} engines; only one model can be opened")


def _check_model(path: Path, dialog: _Dialog) -> None:
    """Refuse models that are not context binaries for HTP, or have adapters.

    Raises:
        BundleError: It is such a model.
    """
    backend, model = dialog.engine.backend, dialog.engine.model
    if backend.type != "QnnHtp":
        raise BundleError(f"{path} is for the backend {backend.type!r:.60}; only QnnHtp can run")
    if model.type != "binary" or model.binary is None:
        raise BundleError(
            f"{path}: the model is of type {model.type!r:.60}; only context binaries can be opened"
        )
    if model.binary.lora is not None:
        raise BundleError(f"{path} has LoRA adapters, which cannot be applied here")
    names = [dialog.tokenizer.path, *model.binary.ctx_bins, dialog.engine.backend.extensions or "-"]
    names += [dialog.embedding.lut_path] if dialog.embedding else []
    for name in names:
        if not is_plain_name(name):
            raise BundleError(f"{path} names {name!r:.60}, which is not a file beside it")
    for name in model.binary.ctx_bins:
        if name.endswith(".dlc"):
            raise BundleError(
                f"{path}: {name} is a DLC, which the QNN provider cannot load; only context "
                "binaries can be opened"
            )
    if not model.binary.ctx_bins:
        raise BundleError(f"{path}: ctx-bins is empty")


def _config(path: Path, dialog: _Dialog) -> GenieConfig:
    model = dialog.engine.model
    positions, htp = model.positional_encoding, dialog.engine.backend.QnnHtp
    theta = None if positions is None else positions.rope_theta
    if theta is None:
        theta = None if htp is None else htp.rope_theta
    scaling = (positions.rope_scaling if positions else None) or RopeScaling()
    bos = dialog.context.bos_token
    return GenieConfig(
        context=dialog.context.size,
        vocab_size=dialog.context.n_vocab,
        bos_token_id=None if bos is None or bos < 0 else bos,
        end_token_ids=token_ids(f"{path}: eos-token", dialog.context.eos_token),
        tokenizer=dialog.tokenizer.path,
        binaries=[] if model.binary is None else model.binary.ctx_bins,
        extensions=dialog.engine.backend.extensions,
        embedding=dialog.embedding,
        rope_theta=_checked_theta(path, positions, theta, scaling),
        rope_scaling=scaling,
    )


def _checked_theta(
    path: Path, positions: _Positions | None, theta: float | None, scaling: RopeScaling
) -> float:
    """The base of the rotation.

    Raises:
        BundleError: The rotation is not known, or a figure is missing or impossible.
    """
    kind = "rope" if positions is None else positions.type or "rope"
    if kind != "rope":
        raise BundleError(f"{path}: positions are encoded as {kind!r:.60}; only rope is known")
    if theta is None or not 1 <= theta < 1e12:
        raise BundleError(f"{path}: rope-theta is {theta}, expected 1 to 1e12")
    kind = scaling.rope_type or "default"
    if kind not in ("default", "llama3"):
        raise BundleError(f"{path}: rope-type {kind!r:.60} is not known, only default and llama3")
    if kind == "llama3":
        low, high = scaling.low_freq_factor or 0, scaling.high_freq_factor or 0
        factor, original = scaling.factor or 0, scaling.original_max_position_embeddings or 0
        if not (1 <= factor < 1e6 and 1e-3 < low < high < 1e6 and 0 < original < 1e12):
            raise BundleError(f"{path}: rope-scaling llama3 lacks a figure, or one is impossible")
    return theta
