"""Random drafters of Gemma 4, in the form that Hugging Face directories have, beside their targets.

They need neither PyTorch nor transformers, but for `transformers_logits`, what transformers' own
drafters say.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from answers import token_by_token
from checkpoints import random_weights, save_weights
from coordgen_rs import open_session
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.runtime.heads.assistant import AssistantSession
from gemma4 import CONFIGS as TARGETS
from gemma4 import shapes as target_shapes
from gemma4 import write_gemma4
from hybrids import Shapes, write_random

_LAYERS = ("sliding_attention", "sliding_attention", "full_attention")
_ARCHITECTURES = {
    "gemma4": "Gemma4AssistantForCausalLM",
    "gemma4_unified": "Gemma4UnifiedAssistantForCausalLM",
}
_SIZE = 32
_OF_TEXT = (
    *("vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "global_head_dim"),
    *("num_global_key_value_heads", "attention_k_eq_v", "sliding_window", "rope_parameters"),
    *("max_position_embeddings", "rms_norm_eps", "hidden_activation"),
)


def config_of(family: str, **options: Any) -> dict[str, Any]:
    """The config.json of a drafter; `options` are fields of the whole."""
    target = TARGETS[family]
    text = {name: target[name] for name in _OF_TEXT if name in target}
    text |= {
        "model_type": target["model_type"],
        "hidden_size": _SIZE,
        "intermediate_size": 48,
        "num_hidden_layers": len(_LAYERS),
        "num_kv_shared_layers": len(_LAYERS),
        "layer_types": list(_LAYERS),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    }
    return {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": f"{family}_assistant",
        "backbone_hidden_size": target["hidden_size"],
        "use_ordered_embeddings": family == "gemma4",
        "num_centroids": 48,
        "centroid_intermediate_top_k": 6,
        "tie_word_embeddings": True,
        "text_config": text,
        **options,
    }


def write_assistant(path: Path, family: str, *, seed: int = 1, **options: Any) -> Path:
    """Write a drafter for `write_gemma4`'s target into a new directory `path` and return it."""
    config = config_of(family, **options)
    order = None
    if config["use_ordered_embeddings"]:
        order = "masked_embedding.token_ordering", config["text_config"]["vocab_size"]
    return write_random(path, config, shapes(config), seed=seed, order=order)


def shapes(config: dict[str, Any]) -> Shapes:
    """Name to shape of all weights but the order of tokens."""
    text, backbone = config["text_config"], config["backbone_hidden_size"]
    hidden, ffn = text["hidden_size"], text["intermediate_size"]
    found: Shapes = {
        "model.embed_tokens.weight": (text["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "pre_projection.weight": (hidden, 2 * backbone),
        "post_projection.weight": (backbone, hidden),
    }
    if config["use_ordered_embeddings"]:
        found["masked_embedding.centroids.weight"] = config["num_centroids"], hidden
    for number, kind in enumerate(text["layer_types"]):
        dim = text["global_head_dim" if kind == "full_attention" else "head_dim"]
        query = text["num_attention_heads"] * dim
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        parts: Shapes = {f"{norm}_layernorm.weight": (hidden,) for norm in norms}
        parts |= {
            "layer_scalar": (1,),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.o_proj.weight": (hidden, query),
        }
        found |= {f"model.layers.{number}.{part}": shape for part, shape in parts.items()}
    return found


def write_pair(path: Path, family: str, kind: str = "random") -> tuple[Path, Path]:
    """Write a target and a drafter for it; return their directories.

    The drafter is "random"; "fitted" to a target whose layers hardly change what a token's
    embedding says of the next one; or "echo", to the same target, which says again what the state
    before a token says.
    """
    target, assistant = path / "target", path / "assistant"
    if kind == "random":
        return write_gemma4(target, family, seed=3), write_assistant(assistant, family)
    options: dict[str, Any] = {"tie_word_embeddings": False, "final_logit_softcapping": None}
    write_gemma4(target, family, seed=3, **options)
    config = TARGETS[family] | options
    weights = random_weights(target_shapes(config), 3, np.float32)
    vocab_size, hidden = config["vocab_size"], config["hidden_size"]
    head = np.random.default_rng(5).standard_normal((vocab_size, hidden), np.float32)
    weights["lm_head.weight"] = head * np.float32(8 / hidden**0.5)  # so that some are likely
    weights["model.norm.weight"][:] = 1  # so that a state that is normed twice stays the same
    for name, values in weights.items():
        if name.endswith(_BACK):
            values *= np.float32(0.004)
        elif name.endswith("layer_scalar"):
            values[:] = 1
    save_weights(target, weights)
    own = config_of(family, centroid_intermediate_top_k=48)
    own["text_config"]["hidden_size"] = hidden
    write_assistant(assistant, family, **own)
    drafter = random_weights(shapes(own), 1, np.float32)
    for name, values in drafter.items():
        if name.endswith(_BACK):
            values[:] = 0
        elif name.endswith("layer_scalar"):
            values[:] = 1
    drafter["pre_projection.weight"][:] = np.eye(hidden, 2 * hidden, hidden * (kind == "echo"))
    drafter["post_projection.weight"][:] = np.eye(hidden)
    drafter["model.norm.weight"][:] = 1
    drafter["model.embed_tokens.weight"][:] = weights["lm_head.weight"]
    if own["use_ordered_embeddings"]:
        order = np.random.default_rng(2).permutation(vocab_size)
        drafter["masked_embedding.token_ordering"] = order
    save_weights(assistant, drafter)
    return target, assistant


_BACK = (
    *("post_attention_layernorm.weight", "post_feedforward_layernorm.weight"),
    "post_per_layer_input_norm.weight",
)
"""What a layer gives back to the stream is multiplied by these."""


def transformers_logits(
    target: Path, assistant: Path, family: str, prompt: NDArray[np.uint32], num_drafted: int
) -> tuple[NDArray[np.float32], list[int]]:
    """What transformers' drafter says behind a prompt, and the tokens that it reads for that.

    Returns:
        Logits `(num_drafted, vocab_size)`; the prompt's last token and those that it drafts.
    """
    import torch
    import transformers

    torch.set_num_threads(1)  # its threads would wait in a loop for work that ours are doing
    name = _ARCHITECTURES[family].removesuffix("AssistantForCausalLM")
    model_class = getattr(transformers, f"{name}ForCausalLM")
    model = model_class.from_pretrained(target, attn_implementation="eager").eval()
    with _all_shared(model.config):
        drafter_class = getattr(transformers, _ARCHITECTURES[family])
        drafter = drafter_class.from_pretrained(assistant, attn_implementation="eager").eval()
    read = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.no_grad():
        of = {"output_hidden_states": True, "return_shared_kv_states": True, "use_cache": False}
        given = model(input_ids=read[:, :-1], **of)
        state, token = given.hidden_states[-1][:, -1:], read[:, -1:]
        logits, tokens = [], [int(prompt[-1])]
        for _ in range(num_drafted):
            said = drafter(
                inputs_embeds=torch.cat([model.get_input_embeddings()(token), state], -1),
                position_ids=torch.tensor([[len(prompt) - 1]]),
                shared_kv_states=given.shared_kv_states,
                attention_mask=torch.ones(1, len(prompt) - 1, dtype=torch.long),
            )
            logits.append(said.logits[0, -1].numpy())
            token, state = said.logits.argmax(-1), said.last_hidden_state
            tokens.append(int(token))
    return np.stack(logits), tokens[:-1]


def compared(
    folder: Path, family: str, prompt: NDArray[np.uint32], *, has_clusters: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Four rows of logits behind a prompt, of transformers' drafter and of an exported one."""
    shared = {} if family == "gemma4" else {"num_kv_shared_layers": 2}  # transformers gives these
    target = write_gemma4(folder / "target", family, seed=3, **shared)
    assistant = write_assistant(folder / "drafter", family, use_ordered_embeddings=has_clusters)
    how: dict[str, Any] = {"weights": "fp32", "context": 512, "prefill_rows": 32}
    export_checkpoint(target, folder / "bundle", assistant=assistant, **how)
    expected, read = transformers_logits(target, assistant, family, prompt, 4)
    session = open_session(folder / "bundle")
    head = AssistantSession(session)
    session.prefill(prompt[:-1])
    head.prefill(prompt[:-1])
    return expected, token_by_token(head, read)


@contextmanager
def _all_shared(config: Any) -> Iterator[None]:
    """Within the block, transformers takes models whose layers all read the keys of others.

    Its version 5.23 refuses them, and with them its own drafters.
    """
    kind = type(config)
    modes = getattr(kind, "kv_sharing_modes", None)
    if modes is None:
        yield
        return

    def found(own: Any) -> list[str | None]:
        is_all = own.num_kv_shared_layers == own.num_hidden_layers
        return ["reuse"] * own.num_hidden_layers if is_all else modes.fget(own)

    with mock.patch.object(kind, "kv_sharing_modes", property(found)):
        yield
