"""The chat templates of a GGUF file.

In: the header's `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` of others. Out: what
the files of a Hugging Face directory would say. Nothing is rendered here.
"""

from coordgen_rs.convert.containers.gguf.header import GgufHeader
from coordgen_rs.errors import CheckpointError
from coordgen_rs.text.chat_files import DEFAULT, ChatTemplates

_KEY = "tokenizer.chat_template"
_NAMES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep"}
"""What Hugging Face calls the special tokens, by GGUF's names (the misspelt one is GGUF's own)."""

_BY_NAME = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
}
"""Templates of which a file may hold the name alone."""


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
