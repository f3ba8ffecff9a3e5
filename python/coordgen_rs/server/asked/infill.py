"""Text to be filled in between a prompt and a suffix, by models that were trained on that.

In: a tokenizer, and the two texts as tokens. Out: the prompt with the marks of the model's family
around them, and the texts that end an answer; or a refusal where the tokenizer has no such marks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class InfillMarks:
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
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "▁<EOT>",
    "<|endoftext|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<file_sep>",
    "<|repo_name|>",
    "<repo_name>",
)
"""What models of all families say when the middle is complete, besides their end tokens."""


def infill_marks(tokenizer: Tokenizer) -> InfillMarks:
    """The marks that a tokenizer has.

    Raises:
        RefusalError: It has none.
    """
    for marks in _FAMILIES:
        needed = (marks.prefix, marks.suffix, marks.middle)
        if all(mark is None or tokenizer.token_id(mark) is not None for mark in needed):
            return marks
    raise RefusalError(
        "suffix is not supported: the model's tokenizer has no tokens to fill in the middle of a "
        "text, such as <|fim_prefix|>: leave it out, or take a model for code that has them",
        param="suffix",
        code="unsupported_value",
    )


def infill_ends(tokenizer: Tokenizer) -> list[str]:
    """The tokens at which an answer ends; raises RefusalError as `infill_marks` does."""
    marks = infill_marks(tokenizer)
    found = (*_ENDS, marks.prefix, marks.suffix, marks.middle)
    return [end for end in found if end is not None and tokenizer.token_id(end) is not None]


def infill_prompt(
    tokenizer: Tokenizer, before: Sequence[int], behind: Sequence[int]
) -> NDArray[np.uint32]:
    """The prompt `(tokens,) u32` of a text whose middle is wanted.

    Args:
        tokenizer: The model's.
        before: The text that comes first, without tokens around it.
        behind: The text that comes last.

    Raises:
        RefusalError: The tokenizer has no marks.
    """
    marks = infill_marks(tokenizer)
    begin = tokenizer.encode("")

    def marked(mark: str | None, tokens: Sequence[int] = ()) -> list[int]:
        token = None if mark is None else tokenizer.token_id(mark)
        return [*([] if token is None else [token]), *tokens]

    parts = [marked(marks.prefix, before), marked(marks.suffix, behind)]
    ordered = [*parts, marked(marks.middle)] if marks.middle else parts[::-1]
    return np.concatenate([begin, *(np.asarray(part, np.uint32) for part in ordered)])
