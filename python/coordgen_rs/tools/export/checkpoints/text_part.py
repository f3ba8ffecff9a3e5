"""The language model inside a checkpoint that also sees pictures.

In: the parsed config.json of the whole, and its tensors. Out: what a checkpoint of the language
model alone would hold; other checkpoints pass as they are. Pictures cannot be read.
"""

from typing import Any

from coordgen_rs.errors import CheckpointError
from coordgen_rs.tools.export.checkpoints.tensor import Tensor

_TEXT_PARTS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""The architecture of the language model, by that of the whole."""
_OUTSIDE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
"""Fields that the whole may have instead of its part."""
_PREFIXES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""What names of tensors begin with, before and since transformers 5, and without the rest."""


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the language model inside, or the same if that is all there is.

    Raises:
        CheckpointError: There is none inside.
    """
    architectures = config.get("architectures")
    parts = (part for whole, part in _TEXT_PARTS.items() if architectures == [whole])
    architecture = next(parts, None)
    if architecture is None:
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise CheckpointError(f"config.json: text_config is {text!r:.60}, expected an object")
    outside = {name: config[name] for name in _OUTSIDE if name in config}
    return {**outside, **text, "architectures": [architecture]}


def text_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the language model inside, under the names that they have alone."""
    found = {}
    for name, tensor in tensors.items():
        for prefix, alone in _PREFIXES.items():
            if name.startswith(prefix):
                found[alone + name.removeprefix(prefix)] = tensor
        if name.startswith("lm_head."):
            found[name] = tensor
    return found
