"""What a GGUF file says of chats and answers: templates, ends, sampling.

In: the header. Out: what the chat templates and the generation_config.json of a Hugging Face
directory would say. Tokens may end an answer by their names, whatever the metadata says; the source
is llama.cpp's `llama-vocab.cpp`, which takes what looks like a control token as one. Nothing is
rendered here.
"""

from typing import Any

from coordgen_rs.convert.containers.gguf.header import GgufHeader
from coordgen_rs.errors import CheckpointError
from coordgen_rs.text.chat_template import DEFAULT, ChatTemplates

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Values of `tokenizer.ggml.token_type`; 5 is unused, 6 a byte."""

_ALWAYS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"),
        *("<turn|>", "<|end_of_text|>", "<end_of_utterance>", "<EOT>", "_<EOT>"),
        "<｜end▁of▁sentence｜>",  # noqa: RUF001 (DeepSeek's own bars)
    )
)
"""Names that no text has otherwise."""
_AS_CONTROL = frozenset(("</s>", "<eos>", "[EOS]", "[EOT]", "<|tool_response>"))
"""Names that a vocabulary may have as text, too, as Gemma's has the `</s>` of HTML."""
_OF_GEMMA, _NO_END_OF_GEMMA = "<|tool_response>", "</s>"
_HARMONY_ENDS, _HARMONY_GOES_ON = ("<|return|>", "<|call|>"), "<|end|>"
"""Those of gpt-oss, where both are there: then `<|end|>` ends a message, of which an answer has
several."""

_KEY = "tokenizer.chat_template"
_NAMES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep"}
"""What Hugging Face calls the special tokens, by GGUF's names (the misspelt one is GGUF's own)."""

_BY_NAME = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
}
"""Templates of which a file may hold the name alone."""
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Names of a generation_config.json, and those of `general.sampling.NAME`."""


def chat_templates(header: GgufHeader) -> ChatTemplates:
    """All that the file says about chat.

    Raises:
        CheckpointError: A template is no text.
    """
    sources = {}
    for key, value in header.metadata.items():
        name = DEFAULT if key == _KEY else key.removeprefix(f"{_KEY}.")
        if name == key:
            continue
        if not isinstance(value, str):
            raise CheckpointError(f"{header.path}: {key} is {value!r:.60}, expected a text")
        sources[name] = _BY_NAME.get(value, value)
    tokens = {}
    texts = header.metadata.get("tokenizer.ggml.tokens")
    for name, known_as in _NAMES.items():
        number = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(texts, list) or type(number) is not int or not 0 <= number < len(texts):
            continue
        if isinstance(texts[number], str):
            tokens[f"{known_as}_token"] = texts[number]
    return ChatTemplates(sources, tokens, place=str(header.path))


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """What a generation_config.json would hold: begin, ends, suppressed tokens, sampling."""
    values = header.metadata
    names = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    found = [values[name] for name in names if name in values]
    several = values.get("tokenizer.ggml.eos_token_ids", [])
    found += several if isinstance(several, list) else [several]
    tokens = values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        kinds = values.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
        found += ends(tokens, kinds) if isinstance(kinds, list) else []
    told = {name: values.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    told["suppress_tokens"] = values.get("tokenizer.ggml.suppress_tokens")
    told["bos_token_id"] = values.get("tokenizer.ggml.bos_token_id")
    return {name: value for name, value in told.items() if value is not None} | {
        "eos_token_id": [token for n, token in enumerate(found) if token not in found[:n]]
    }


def ends(tokens: list[str], kinds: list[int]) -> list[int]:
    """The ids of tokens that end an answer by their names."""
    typed = zip(tokens, kinds, strict=False)
    controls = {text for text, kind in typed if kind == CONTROL}
    names = _ALWAYS | (_AS_CONTROL & controls)
    if controls.issuperset(_HARMONY_ENDS):
        names = names.union(_HARMONY_ENDS) - {_HARMONY_GOES_ON}
    if _OF_GEMMA in controls:
        names -= {_NO_END_OF_GEMMA}
    known = enumerate(zip(tokens, kinds, strict=False))
    meant = NORMAL, USER_DEFINED, CONTROL
    return [number for number, (text, kind) in known if text in names and kind in meant]


def kinds_as_meant(tokens: list[str], kinds: list[int]) -> list[int]:
    """The types of tokens, those that end an answer being controls."""
    found = set(ends(tokens, kinds))
    return [CONTROL if number in found else kind for number, kind in enumerate(kinds)]
