"""The families of models that can be exported: what each one's architecture says.

In: a parsed config.json. Out: its `Family`, and config.json with what that leaves unsaid. All of
them are one decoder with some switches set (`config.py`); no family has an exporter of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordgen_rs.errors import UnsupportedModelError
from coordgen_rs.export.checkpoints.layer_kinds import (
    WindowRule,
    every_layer,
    last_layers,
    no_layer,
)


@dataclass(frozen=True)
class Family:
    """What the models of a family have in common."""

    name: str
    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a config.json means by leaving a field out, where it is not what Llama's means."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normed head by head before they are rotated."""
    window_rule: WindowRule = no_layer
    """Which layers have a sliding window, where there is one; for others than that of Llama,
    `use_sliding_window` says whether."""
    has_layer_types: bool = False
    """Whether `layer_types` may say otherwise than the rule."""


FAMILIES = (
    Family("llama", "LlamaForCausalLM"),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        {"sliding_window": 4096},
        qkv_bias=True,
        window_rule=last_layers,
        has_layer_types=True,
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        {"head_dim": 128, "sliding_window": 4096},
        qk_norm=True,
        window_rule=last_layers,
        has_layer_types=True,
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        {"use_sliding_window": True, "sliding_window": 4096},
        window_rule=every_layer,
    ),
)


def family_of(config: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    """The family of a config.json, and its fields with the family's defaults.

    Raises:
        UnsupportedModelError: Its architecture is none of those in `FAMILIES`.
    """
    architectures = config.get("architectures")
    for family in FAMILIES:
        if architectures == [family.architecture]:
            return family, {**family.defaults, **config}
    known = ", ".join(family.architecture for family in FAMILIES)
    raise UnsupportedModelError(
        f"config.json: architectures {architectures} are not supported, only {known}"
    )
