"""Families with mixtures of experts: what their config.json says, in the words of Qwen3-MoE.

In: a parsed config.json. Out: the same with fields called as in Qwen3-MoE, and its `Experts`.
`intermediate_size` is that of dense layers or, where there are none, of the feed-forward beside the
experts.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from coordgen_rs.convert.families.config.experts import Experts
from coordgen_rs.convert.families.config.fields import flag, number, positive
from coordgen_rs.convert.families.hybrids import lfm2_fields, qwen35_fields
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_MOST_EXPERTS = 1 << 12
"""No known model has more in a layer; a damaged file may."""
_MOST_SHARE_SCALE = 1e3
_SHARE_EPSILON = 1e-6
"""What LFM2-MoE adds to the sum of shares."""


def qwen3_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Qwen3-MoE, which may call its experts local ones."""
    num = config.get("num_experts", config.get("num_local_experts", 128))
    return {**config, "num_experts": num}


def qwen35_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Qwen3.5-MoE, none of whose layers are dense.

    Raises UnsupportedModelError and CheckpointError as `qwen35_fields` does.
    """
    shared = positive(config, "shared_expert_intermediate_size", 512)
    experts = {"num_experts": config.get("num_experts"), "intermediate_size": shared}
    return qwen35_fields({**config, "num_experts": None}) | experts


def granite_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Granite 3 with experts, perhaps beside a shared one.

    Raises:
        CheckpointError: A field is malformed.
    """
    shared, size = config.get("shared_intermediate_size", 0), positive(config, "intermediate_size")
    return {
        **config,
        "num_experts": positive(config, "num_local_experts", 8),
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": shared,
        "intermediate_size": shared or size,
    }


def lfm2_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of LFM2-MoE, the sizes of whose dense layers are never adjusted.

    Raises UnsupportedModelError and CheckpointError as `lfm2_fields` does.
    """
    return lfm2_fields({**config, "block_auto_adjust_ff_dim": False, "block_ff_dim": None})


def qwen3_experts(config: Mapping[str, Any], num_layers: int) -> Experts:
    """Those of Qwen3-MoE: in every layer but for those that the config.json excepts.

    Raises:
        UnsupportedModelError: No layer has experts.
        CheckpointError: A field is malformed, or out of range.
    """
    step = positive(config, "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(
        isinstance(it, int) and not isinstance(it, bool) and 0 <= it < num_layers for it in dense
    ):
        raise CheckpointError(
            f"config.json: mlp_only_layers is {dense!r:.60}, expected numbers of {num_layers} "
            "layers"
        )
    layers = {layer for layer in range(num_layers) if (layer + 1) % step == 0}.difference(dense)
    if not layers:
        raise UnsupportedModelError(
            f"config.json: decoder_sparse_step = {step} and mlp_only_layers leave experts to none "
            f"of {num_layers} layers, which is not supported in Qwen3-MoE"
        )
    return read_experts(config, layers, is_normed=flag(config, "norm_topk_prob", False))


def qwen35_experts(config: Mapping[str, Any], num_layers: int) -> Experts:
    """Those of Qwen3.5-MoE: in every layer, with a shared expert whose gate is its own.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    shared = positive(config, "shared_expert_intermediate_size", 512)
    return read_experts(config, range(num_layers), shared_size=shared, gates_shared=True)


def granite_experts(config: Mapping[str, Any], num_layers: int) -> Experts | None:
    """Those of Granite: in every layer, perhaps beside a shared expert; None for dense models.

    Shares are the softmax over the chosen alone, which is that over all, normed.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    if not config["num_experts"]:
        return None
    shared = config["shared_expert_intermediate_size"] and positive(config, "intermediate_size")
    return read_experts(config, range(num_layers), shared_size=shared)


def lfm2_experts(config: Mapping[str, Any], num_layers: int) -> Experts:
    """Those of LFM2-MoE: in every layer behind the first, which are dense.

    Raises:
        UnsupportedModelError: No layer has experts.
        CheckpointError: A field is malformed, or out of range.
    """
    dense = config.get("num_dense_layers", 2)
    if not isinstance(dense, int) or isinstance(dense, bool) or dense < 0:
        raise CheckpointError(f"config.json: num_dense_layers is {dense!r:.60}, expected a number")
    if dense >= num_layers:
        raise UnsupportedModelError(
            f"config.json: num_dense_layers = {dense} leaves experts to none of {num_layers} "
            "layers, which is not supported in LFM2-MoE"
        )
    scale = {"routed_scaling_factor": 1.0, **config}
    return read_experts(
        config,
        range(dense, num_layers),
        scoring="sigmoid",
        is_normed=flag(config, "norm_topk_prob", True),
        share_epsilon=_SHARE_EPSILON,
        share_scale=number(scale, "routed_scaling_factor", 0, _MOST_SHARE_SCALE),
        has_choice_bias=flag(config, "use_expert_bias", True),
    )


def read_experts(config: Mapping[str, Any], layers: Iterable[int], **switches: Any) -> Experts:
    """The sizes that all families tell, and what they differ in.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    num, chosen = positive(config, "num_experts"), positive(config, "num_experts_per_tok")
    if num > _MOST_EXPERTS or chosen > num:
        raise CheckpointError(
            f"config.json: num_experts is {num} and num_experts_per_tok {chosen}, expected at most "
            f"{_MOST_EXPERTS}, and no more than there are"
        )
    size = positive(config, "moe_intermediate_size")
    return Experts(frozenset(layers), num, chosen, size, **switches)
