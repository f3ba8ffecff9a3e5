"""The tokens of a GGUF file that end an answer by their names, whatever its metadata says.

In: tokens and their types. Out: ids; and types as they are meant. Source: llama.cpp's
`llama-vocab.cpp`, which takes what looks like a control token as one.
"""

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
