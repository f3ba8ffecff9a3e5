"""The tokenizer of a GGUF file as a tokenizer.json, and what it says of chats and answers.

In: the header's `tokenizer.*`. Out: text for the tokenizers package; what the chat templates and
the generation_config.json of a Hugging Face directory would say: templates, ends, sampling. Nothing
is rendered here.

Three kinds of tokenizers are known, by the names that GGUF has for them: `gpt2`, byte-level BPE
with merges; `llama`, SentencePiece with scores; and `gemma4`, SentencePiece with merges. Every
other is refused by name. How byte-level tokenizers cut a text into words is told by a name: the
names, and which of them mean the same, are those of llama.cpp's `llama-vocab.cpp`; the expressions
are those of the models' tokenizer.json. Tokens may end an answer by their names, whatever the
metadata says; the source is the same, which takes what looks like a control token as one.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
from tokenizers.processors import TemplateProcessing

from coordgen_rs.convert.containers.gguf.file import GgufHeader
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from coordgen_rs.text.chat_template import DEFAULT, ChatTemplates
from coordgen_rs.text.tokenizer import package_errors_as

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Values of `tokenizer.ggml.token_type`; 5 is unused, 6 a byte."""

_SPACE = "▁"
_MOST_PIECE = 1 << 12
"""Characters of a piece; no known one is longer, and the ways to cut it are as many."""

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
class _PreTokenizer:
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


_GPT2 = _PreTokenizer(gpt2_words=True)
_SMOLLM = _PreTokenizer(digits_alone=True, gpt2_words=True)
_LLAMA3_WHOLE = _PreTokenizer((_LLAMA3,), ignore_merges=True, begins=True)
_CODER = _PreTokenizer(_DEEPSEEK_CODER)

_BY_NAME: dict[_PreTokenizer, tuple[str, ...]] = {
    _GPT2: ("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "exaone4", "trillion"),
    _SMOLLM: ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    _LLAMA3_WHOLE: ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"),
    _PreTokenizer((_LLAMA3,)): ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    _PreTokenizer((_QWEN2,), composes=True): ("qwen2",),
    _PreTokenizer((_QWEN2,)): ("deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open"),
    _PreTokenizer((_QWEN35,), composes=True): ("qwen35",),
    _PreTokenizer((_TEKKEN,), ignore_merges=True, begins=True): ("tekken",),
    _PreTokenizer((_GPT4O,)): ("gpt-4o", "llama4", "kanana2"),
    _PreTokenizer(_DEEPSEEK3): ("deepseek-v3", "hunyuan-dense"),
    _CODER: ("deepseek-coder",),
}
_NAMED = {name: kind for kind, names in _BY_NAME.items() for name in names}


def _pre_tokenizer_named(name: str) -> _PreTokenizer:
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


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens of a file."""

    path: Path
    metadata: dict[str, Any]
    tokens: list[str]
    kinds: list[int]

    def values(self, name: str, kind: type | tuple[type, ...]) -> list[Any]:
        """A list of the metadata, all of one type.

        Raises:
            CheckpointError: It is missing or something else.
        """
        found = self.metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(found, list) or not all(isinstance(value, kind) for value in found):
            raise CheckpointError(f"{self.path}: tokenizer.ggml.{name} is missing or no list")
        return found

    def token(self, name: str) -> str | None:
        """The text of the token whose id is `tokenizer.ggml.NAME_token_id`.

        Raises:
            CheckpointError: It is not in the vocabulary.
        """
        number = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(self.tokens):
            raise CheckpointError(f"{self.path}: the {name} token {number!r:.40} is not in it")
        return self.tokens[number]

    @property
    def numbers(self) -> dict[str, int]:
        """The ids of tokens."""
        return {token: number for number, token in enumerate(self.tokens)}

    def flag(self, name: str, default: bool) -> bool:
        """A yes or no of the metadata."""
        return bool(self.metadata.get(f"tokenizer.ggml.{name}", default))


def tokenizer_json(header: GgufHeader) -> str:
    """The text of a tokenizer.json.

    Raises:
        UnsupportedModelError: The tokenizer is of a kind that is not known; the message names it.
        CheckpointError: A part is missing or damaged.
    """
    kind = header.metadata.get("tokenizer.ggml.model")
    build = _BUILDERS.get(str(kind))
    if build is None:
        raise UnsupportedModelError(
            f"{header.path}: tokenizer.ggml.model is {kind!r:.60}, which is not known: "
            "coordgen export takes the model's own tokenizer.json by --tokenizer"
        )
    vocabulary = _read_vocabulary(header)
    tokenizer, begins = build(vocabulary)
    with _errors(vocabulary):
        typed = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        tokenizer.add_tokens(  # those that are found in a text before it is cut
            [
                AddedToken(token, normalized=False, special=kind != USER_DEFINED)
                for token, kind in typed
                if kind in (CONTROL, UNKNOWN, USER_DEFINED)
            ]
        )
        _add_ends(tokenizer, vocabulary, begins)
        return str(tokenizer.to_str())


def _read_vocabulary(header: GgufHeader) -> _Vocabulary:
    """Tokens and their types.

    Raises:
        CheckpointError: One is missing, or occurs twice.
    """
    vocabulary = _Vocabulary(header.path, header.metadata, [], [])
    tokens = vocabulary.values("tokens", str)
    # Padding of a vocabulary may be empty texts.
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
    kinds = [NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in header.metadata:
        kinds = vocabulary.values("token_type", int)
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{header.path}: a token occurs twice, or has no type")
    if max(map(len, tokens), default=0) > _MOST_PIECE:
        raise CheckpointError(f"{header.path}: a token has more than {_MOST_PIECE} characters")
    return _Vocabulary(header.path, header.metadata, tokens, kinds_as_meant(tokens, kinds))


def _errors(vocabulary: _Vocabulary) -> AbstractContextManager[None]:
    return package_errors_as(CheckpointError, f"{vocabulary.path}: the tokenizer cannot be built")


def _byte_level(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """A byte-level tokenizer, and whether the begin token is put before a text by default.

    Raises:
        UnsupportedModelError: It cuts texts in a way that is not known.
        CheckpointError: Its merges are missing or damaged.
    """
    cuts = _pre_tokenizer_named(str(vocabulary.metadata.get("tokenizer.ggml.pre", "default")))
    merges, numbers = _merges(vocabulary), vocabulary.numbers
    with _errors(vocabulary):
        model = BPE(vocab=numbers, merges=merges, ignore_merges=cuts.ignore_merges)
    tokenizer = Tokenizer(model)
    if cuts.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = cuts.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cuts.begins


def _merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges, the first of which come first.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    merges = []
    for merge in vocabulary.values("merges", str):
        left, space, right = merge.partition(" ")
        if not left or not space or not right:
            raise CheckpointError(f"{vocabulary.path}: {merge!r:.60} is no merge of two tokens")
        merges.append((left, right))
    return merges


def _merged_pieces(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """A SentencePiece tokenizer with merges, which puts the begin token before a text by default.

    Raises:
        CheckpointError: Its merges are missing or damaged.
    """
    return _pieces(vocabulary, _merges(vocabulary), add_space=False), True


def _scored_pieces(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """A SentencePiece tokenizer, which puts the begin token before a text by default.

    Of all neighbours whose join is a piece, those with the best score are joined first.

    Raises:
        CheckpointError: Its scores are missing or damaged.
    """
    tokens, scores = vocabulary.tokens, vocabulary.values("scores", (int, float))
    if len(scores) != len(tokens) or not all(map(math.isfinite, scores)):
        raise CheckpointError(f"{vocabulary.path}: tokens and scores do not agree")
    numbers, merges = vocabulary.numbers, []
    for number in sorted(range(len(tokens)), key=lambda number: -scores[number]):
        if vocabulary.kinds[number] in (NORMAL, USER_DEFINED):
            piece = tokens[number]
            cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
            found = [cut for cut in cuts if cut[0] in numbers and cut[1] in numbers]
            merges += sorted(found, key=lambda cut: (numbers[cut[0]], numbers[cut[1]]))
    return _pieces(vocabulary, merges, add_space=vocabulary.flag("add_space_prefix", True)), True


def _pieces(
    vocabulary: _Vocabulary, merges: list[tuple[str, str]], *, add_space: bool
) -> Tokenizer:
    """A tokenizer whose pieces have U+2581 for spaces, and bytes for characters that are none.

    Args:
        vocabulary: The pieces.
        merges: Which of them are joined, the first of them first.
        add_space: Whether a space is put before a text.

    Raises:
        CheckpointError: The vocabulary is damaged.
    """
    kinds, numbers = zip(vocabulary.tokens, vocabulary.kinds, strict=True), vocabulary.numbers
    unknown = next((token for token, kind in kinds if kind == UNKNOWN), None)
    replace = normalizers.Replace(" ", _SPACE)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    with _errors(vocabulary):
        tokenizer = Tokenizer(
            BPE(vocab=numbers, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        tokenizer.normalizer = replace
        if add_space:
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
            decoding.append(decoders.Strip(" ", 1, 0))
        tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _add_ends(tokenizer: Tokenizer, vocabulary: _Vocabulary, begins: bool) -> None:
    """Put the begin and end tokens around a text where the file says so."""
    begin = vocabulary.token("bos") if vocabulary.flag("add_bos_token", begins) else None
    end = vocabulary.token("eos") if vocabulary.flag("add_eos_token", False) else None
    around = [token for token in (begin, end) if token is not None]
    if not around:
        return
    first, last = ([token] if token else [] for token in (begin, end))
    tokenizer.post_processor = TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *first, "$B:1", *last],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in around],
    )


_BUILDERS = {"gpt2": _byte_level, "llama": _scored_pieces, "gemma4": _merged_pieces}


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

_TEMPLATES = {
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
        sources[name] = _TEMPLATES.get(value, value)
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
