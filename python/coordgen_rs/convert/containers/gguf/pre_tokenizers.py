"""How byte-level tokenizers cut a text into words, by the name that GGUF has for it.

In: `tokenizer.ggml.pre`. Out: a `PreTokenizer`. The names, and which of them mean the same, are
those of llama.cpp's `llama-vocab.cpp`; the expressions are those of the models' tokenizer.json.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

from coordgen_rs.errors import UnsupportedModelError

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = "|".join([_SUFFIX, _WORD, r"\p{N}{1,3}", _ENDS])
_QWEN2 = "|".join([_SUFFIX, _WORD, r"\p{N}", _ENDS])
_QWEN35 = (
    _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LOWER_WORD = r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+"
_UPPER_WORD = r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*"
_CASED_ENDS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = "|".join([_LOWER_WORD, _UPPER_WORD, r"\p{N}", _CASED_ENDS])
_GPT4O = "|".join(
    [f"{_LOWER_WORD}{_SUFFIX}?", f"{_UPPER_WORD}{_SUFFIX}?", r"\p{N}{1,3}", _CASED_ENDS]
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥\u0800-一가-\ud7ff]+", r"\p{N}")


@dataclass(frozen=True)
class PreTokenizer:
    """How one kind of tokenizer cuts, and what it does beside that."""

    splits: tuple[str, ...] = ()
    """Expressions whose matches become words, one after the other."""
    digits_alone: bool = False
    gpt2_words: bool = False
    """Whether what is left is cut by the expression of GPT-2."""
    ignore_merges: bool = False
    """Whether a word that is a token is taken whole, without merges."""
    begins: bool = False
    """Whether the begin token is put before a text where the file does not say."""
    composes: bool = False
    """Whether the text is brought to Unicode's form NFC."""

    def build(self) -> Sequence:
        """Build the pre-tokenizer of the tokenizers package."""
        steps: list[Any] = [Split(Regex(split), "isolated") for split in self.splits]
        if self.digits_alone:
            steps.append(Digits(individual_digits=True))
        return Sequence([*steps, ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words)])


_GPT2 = PreTokenizer(gpt2_words=True)
_SMOLLM = PreTokenizer(digits_alone=True, gpt2_words=True)
_LLAMA3_WHOLE = PreTokenizer((_LLAMA3,), ignore_merges=True, begins=True)
_CODER = PreTokenizer(_DEEPSEEK_CODER)

_BY_NAME: dict[PreTokenizer, tuple[str, ...]] = {
    _GPT2: ("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "exaone4", "trillion"),
    _SMOLLM: ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    _LLAMA3_WHOLE: ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"),
    PreTokenizer((_LLAMA3,)): ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    PreTokenizer((_QWEN2,), composes=True): ("qwen2",),
    PreTokenizer((_QWEN2,)): ("deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open"),
    PreTokenizer((_QWEN35,), composes=True): ("qwen35",),
    PreTokenizer((_TEKKEN,), ignore_merges=True, begins=True): ("tekken",),
    PreTokenizer((_GPT4O,)): ("gpt-4o", "llama4", "kanana2"),
    PreTokenizer(_DEEPSEEK3): ("deepseek-v3", "hunyuan-dense"),
    _CODER: ("deepseek-coder",),
}
_NAMED = {name: kind for kind, names in _BY_NAME.items() for name in names}


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """What is known of a name.

    Raises:
        UnsupportedModelError: Nothing is.
    """
    found = _NAMED.get(name)
    if found is None:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {name!r:.60}, which is not known: coordgen export takes the "
            "model's own tokenizer.json by --tokenizer"
        )
    return found
