"""Text to be filled in between a prompt and a suffix, by models that were trained on that.

In: a model, the first text as tokens, and the last. Out: the prompt with the marks of the model's
family around them, and the texts that end an answer; or a refusal where it has no such marks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.model import Model
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.prompts import encode, fitting
from coordgen_rs.text.tokenizer import Tokenizer


class InfillMarks(NamedTuple):
    """The special tokens of one family of models.

    Attributes:
        prefix: Stands before the text that comes first.
        suffix: Stands before the text that comes last.
        middle: Stands before what is to be filled in; None where the suffix is given first, and the
            answer goes on behind the prefix.
    """

    prefix: str
    suffix: str
    middle: str | None


_FAMILIES = (
    InfillMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    InfillMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    InfillMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001
    InfillMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    InfillMarks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    InfillMarks("[PREFIX]", "[SUFFIX]", None),  # Codestral
)

_ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<|endoftext|>"),
    *("<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|repo_name|>", "<repo_name>"),
)
"""What models of all families say when the middle is complete, besides their end tokens."""


def infill_marks(tokenizer: Tokenizer) -> InfillMarks | None:
    """The marks that a tokenizer has; None if it has none."""
    for marks in _FAMILIES:
        if all(mark is None or tokenizer.token_id(mark) is not None for mark in marks):
            return marks
    return None


def infilled(
    model: Model, before: NDArray[np.uint32], suffix: str
) -> tuple[NDArray[np.uint32], list[str]]:
    """The prompt `(tokens,) u32` of a text whose middle is wanted, and the tokens that end it.

    Args:
        model: The model.
        before: The text that comes first, without tokens around it.
        suffix: The text that comes last.

    Raises:
        RefusalError: The model has no tokens for that.
        TooLongError: It does not fit into the context.
    """
    tokenizer = model.tokenizer
    marks = infill_marks(tokenizer)
    if marks is None:
        raise RefusalError(
            "suffix is not supported: the model's tokenizer has no tokens to fill in the middle of "
            "a text, such as <|fim_prefix|>: leave it out, or take a model for code that has them",
            param="suffix",
            code="unsupported_value",
        )

    def mark(text: str) -> NDArray[np.uint32]:
        return np.asarray([tokenizer.token_id(text)], np.uint32)

    parts = [mark(marks.prefix), before, mark(marks.suffix), encode(model, suffix, "suffix")]
    parts = [*parts, mark(marks.middle)] if marks.middle else [*parts[2:], *parts[:2]]
    ids = fitting(model, np.concatenate([tokenizer.encode(""), *parts]), "suffix")
    ends = (*_ENDS, *filter(None, marks))
    return ids, [end for end in ends if tokenizer.token_id(end) is not None]
