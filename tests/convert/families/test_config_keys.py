"""Every key of a config.json that transformers reads: read, refused by name, or of no effect.

`config_keys.json` has the fields of transformers' configurations; where transformers is installed,
a test holds that none is missing. Keys that transformers does not know of a family change nothing
there, nor here.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from coordgen_rs.convert.families.checkpoint import text_config
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.table import FAMILIES, parse_config
from coordgen_rs.errors import CheckpointError
from families import needs_transformers
from miniatures import MINIATURES, write_miniature

CHANGE_NOTHING = {
    *("attention_dropout", "embd_pdrop", "resid_pdrop", "initializer_range"),  # of training
    *("output_router_logits", "router_aux_loss_coef"),
    *("pad_token_id", "pretraining_tp", "use_cache", "mamba_chunk_size"),  # the same sums
    "_sliding_window_pattern",  # `layer_types` is always beside it
}
NONE_WITHOUT = {
    "gemma4": {"moe_intermediate_size", "num_experts", "top_k_experts"},  # experts, refused
    "lfm2": {"rms_norm_eps"},  # `norm_eps`
    "lfm2_moe": {"rms_norm_eps"},
    "qwen3_5_moe": {"intermediate_size"},  # layers without experts
}
"""What has no effect in a family, for want of something else."""
_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "layer_types": None}
BESIDE: dict[str, dict[str, Any]] = {
    "qwen2": {**_WINDOW, "max_window_layers": 2},
    "qwen3": {**_WINDOW, "max_window_layers": 2},
    "qwen3_moe": {**_WINDOW, "num_experts": None, "num_local_experts": 8},
    "smollm3": {**_WINDOW, "no_rope_layers": None},
    "lfm2": {"block_auto_adjust_ff_dim": True, "block_multiple_of": 8, "layer_types": None},
}
"""With what some keys have an effect; None for a key that is not there."""
SAID = json.loads(Path(__file__).with_name("config_keys.json").read_text("utf-8"))
KEYS: dict[str, list[str]] = SAID["keys"]
"""By family, beside those of all."""
ROTATIONS: dict[str, dict[str, Any]] = SAID["rotations"]
"""By `rope_type`, a family that has it, and all that transformers reads of it."""


def keys_of(family: str) -> set[str]:
    """The keys of a family that transformers knows."""
    return {*KEYS[""], *KEYS[family]}


def config_of(family: str, folder: Any) -> dict[str, Any]:
    """The config.json of a family's miniature, of its language model."""
    write_miniature(folder / family, family)
    return text_config(json.loads((folder / family / "config.json").read_text()))


def others(value: Any) -> list[Any]:
    """Values that are not the same."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2, value + 1]
    if isinstance(value, list):
        return [value[::-1] + value[:1], ["another"] * len(value)]
    return [7, True, "another", {"another": 1}]


def changes(config: dict[str, Any], key: str) -> bool:
    """Whether another value of a key is read, or refused."""
    usual = parse_config(config, {})
    for value in others(config.get(key)):
        try:
            if parse_config({**config, key: value}, {}) != usual:
                return True
        except CheckpointError:
            return True
    return False


@pytest.mark.parametrize("family", MINIATURES)
def test_every_key_is_read_or_refused_or_changes_nothing(tmp_path, family):
    config = config_of(family, tmp_path)
    silent = {key for key in keys_of(family) - CHANGE_NOTHING if not changes(config, key)}
    changed = {**config, **BESIDE.get(family, {})}
    changed = {key: value for key, value in changed.items() if value is not None}
    silent = {key for key in silent if not changes(changed, key)}
    assert silent == NONE_WITHOUT.get(family, set())


@pytest.mark.parametrize("kind", ROTATIONS)
def test_every_key_of_a_rotation_is_read(tmp_path, kind):
    family, given = ROTATIONS[kind]["family"], ROTATIONS[kind]["parameters"]
    config, rotation = config_of(family, tmp_path), {"rope_type": kind, "rope_theta": 1e4, **given}

    def turned(parameters: dict[str, Any]) -> ModelConfig:
        both = {"full_attention": parameters, "sliding_attention": {"rope_theta": 1e4}}
        return parse_config(
            {**config, "rope_parameters": both if family == "gemma4" else parameters}, {}
        )

    usual, silent = turned(rotation), []
    for key, value in rotation.items():
        try:
            if all(turned({**rotation, key: it}) == usual for it in others(value)[:1]):
                silent.append(key)
        except CheckpointError:
            pass
    assert silent == []


@needs_transformers
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_key_of_transformers_is_missing(family):
    import transformers

    usual = transformers.PretrainedConfig().to_dict()
    model = getattr(transformers, family.architecture)
    assert set(model.config_class().to_dict()) - set(usual) <= keys_of(family.name)
