"""genai_config.json: what ONNX Runtime GenAI is told of a model.

In: the path of such a file. Out: a `GenaiConfig`, checked for types and for what can run here: one
decoder on CPU. What its graph is made of stands in the graph (`folder.py`, `device.py`).
Fields that only tune GenAI's own session or its sampling are not read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordgen_rs.errors import BundleError
from coordgen_rs.errors.file_names import is_plain_name
from coordgen_rs.errors.json_text import file_errors_as, parse
from coordgen_rs.formats import read_object, token_ids

_CPU = ("cpu", "cpuexecutionprovider")
_OTHER_MODELS = ("encoder", "embedding", "vision", "speech", "joiner", "vad")
"""Parts of a config that say that the decoder alone does not make the model."""


@dataclass(frozen=True)
class Inputs:
    """Names of the decoder's inputs; `%d` stands for the number of a layer."""

    past_key_names: str
    past_value_names: str
    input_ids: str | None = None
    attention_mask: str | None = None
    position_ids: str | None = None


@dataclass(frozen=True)
class Outputs:
    """Names of the decoder's outputs."""

    logits: str
    present_key_names: str
    present_value_names: str


@dataclass(frozen=True)
class Decoder:
    """The decoder's file, sizes, inputs and outputs."""

    filename: str
    hidden_size: int
    head_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    inputs: Inputs
    outputs: Outputs
    session_options: dict[str, object] | None = None


@dataclass(frozen=True)
class GenaiConfig:
    """What a config says of its model."""

    type: str
    """The family, such as `llama`."""
    context_length: int
    vocab_size: int
    eos_token_id: object
    decoder: Decoder
    bos_token_id: int | None = None

    @property
    def end_token_ids(self) -> list[int]:
        """Tokens that end an answer; raises BundleError if they are none."""
        return token_ids("eos_token_id", self.eos_token_id)


def read_config(path: Path) -> GenaiConfig:
    """Read a genai_config.json.

    Raises:
        BundleError: It is missing or malformed, or is for a model that cannot run here; the
            message names the file, and the field or the reason.
    """
    model = read_object(path).get("model")
    if not isinstance(model, dict):
        raise BundleError(f"{path} does not describe a model")
    _refuse_other_models(path, model)
    with file_errors_as(BundleError, path):
        config = parse(GenaiConfig, model, "model")
    _check(path, config)
    return config


def _refuse_other_models(path: Path, model: dict[str, Any]) -> None:
    """Refuse models with other parts than a decoder, and those for other hardware.

    Raises:
        BundleError: It is such a model.
    """
    decoder = model.get("decoder")
    if not isinstance(decoder, dict):
        raise BundleError(f"{path}: model.decoder is missing")
    for part in _OTHER_MODELS:
        if part in model:
            raise BundleError(
                f"{path}: the model has the part {part!r}, but only text is supported"
            )
    options = decoder.get("session_options")
    providers = options.get("provider_options") if isinstance(options, dict) else None
    for entry in providers if isinstance(providers, list) else []:
        for name in entry if isinstance(entry, dict) else [entry]:
            if str(name).lower() not in _CPU:
                raise BundleError(
                    f"{path} is for the provider {name!r:.60}; only folders made for CPU can be "
                    "opened (`-e cpu` of GenAI's model builder)"
                )


def _check(path: Path, config: GenaiConfig) -> None:
    """Check what the types leave open.

    Raises:
        BundleError: A value cannot be.
    """
    name = config.decoder.filename
    if not is_plain_name(name):
        raise BundleError(
            f"{path}: decoder.filename is {name!r:.60}, which is not a plain file name"
        )
    token_ids(f"{path}: eos_token_id", config.eos_token_id)
    names = (config.decoder.inputs, config.decoder.outputs)
    for pattern in (
        names[0].past_key_names,
        names[0].past_value_names,
        names[1].present_key_names,
        names[1].present_value_names,
    ):
        if pattern.count("%d") != 1 or pattern.count("%") != 1:
            raise BundleError(
                f"{path}: {pattern!r:.60} must hold %d once, for the number of a layer"
            )
