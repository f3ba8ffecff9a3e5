"""Chat templates of the models whose answers are replayed: from a record to token ids."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import OptionError
from coordgen_rs.lab.replay.records import Record
from coordgen_rs.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Template:
    """How a conversation is written down.

    Attributes:
        start: What comes before the first turn.
        user: A question, as a format with `text`; the answer follows it.
        end: The token that ends an answer, written after each; "" where none does.
        gap: What stands before the answer of an earlier turn. Before the last one the tokenizer
            puts it by itself.
        after: What stands behind the end of an earlier answer.
    """

    start: str
    user: str
    end: str
    gap: str = ""
    after: str = ""


TEMPLATES = {
    "vicuna": Template(
        start="<s>A chat between a curious user and an artificial intelligence assistant. The "
        "assistant gives helpful, detailed, and polite answers to the user's questions. ",
        user="USER: {text} ASSISTANT:",
        end="</s>",
        gap=" ",
    ),
    "qwen2.5": Template(
        start="<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
        "assistant.<|im_end|>\n",
        user="<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
        end="<|im_end|>",
        after="\n",
    ),
    "llama3": Template(
        start="<|begin_of_text|>",
        user="<|start_header_id|>user<|end_header_id|>\n\n{text}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        end="<|eot_id|>",
    ),
    "none": Template(start="", user="{text}\n", end=""),
}


class TokenizedRecord(NamedTuple):
    """A record as its model saw it.

    Attributes:
        task: The record's task.
        prompt: `(tokens,) u32`.
        answer: `(tokens,) u32`, the end token included.
        end_token_ids: What ends an answer of the model, and stands nowhere else in this one.
    """

    task: str
    prompt: NDArray[np.uint32]
    answer: NDArray[np.uint32]
    end_token_ids: tuple[int, ...] = ()


def tokenize(record: Record, template: Template, tokenizer: Tokenizer) -> TokenizedRecord:
    """The token ids of a record's prompt and answer."""
    text = template.start
    for user, assistant in record.turns:
        text += template.user.format(text=user)
        text += template.gap + assistant + template.end + template.after
    text += template.user.format(text=record.prompt)
    prompt = tokenizer.encode(text, special_tokens=False)
    answer = tokenizer.encode(record.answer + template.end, special_tokens=False)
    ends = tokenizer.encode(template.end, special_tokens=False)
    places = np.flatnonzero(np.isin(answer, ends))
    return TokenizedRecord(
        record.task,
        prompt,
        answer[: places[0] + 1] if len(places) else answer,
        tuple(ends.tolist()),
    )


def open_tokenizer(directory: Path, template: Template) -> Tokenizer:
    """The `tokenizer.json` of a directory.

    Raises:
        BundleError: It is absent, or not a tokenizer.
        OptionError: It does not know the template's end token.
    """
    tokenizer = Tokenizer(directory / "tokenizer.json")
    if template.end and len(tokenizer.encode(template.end, special_tokens=False)) != 1:
        raise OptionError(f"{directory}: not this template's tokenizer: no {template.end}")
    return tokenizer
