"""Recorded requests: prompts with what a model, or a person, answered, as text and as token ids.

In: a file with a JSON object a line, and the tokenizer and chat template of the model that
answered. Out: `Record`s, and `TokenizedRecord`s as that model saw them.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CoordgenError, OptionError, arguments
from coordgen_rs.errors.json_text import JsonTextError, read_json_lines
from coordgen_rs.lab.replay.cells import Row, sha256_of
from coordgen_rs.lab.replay.rows import RecordedRows
from coordgen_rs.text.tokenizer import Tokenizer

_PASSAGE = "<PASSAGE>"
_MOST_LINE_BYTES = 64 << 20
_MOST_IDS = (1 << 24) - 1  # of a vocabulary: a replay has one more


class RecordsError(CoordgenError):
    """A file of records cannot be used; the message names the file and the line."""


class TokenizedRecord(NamedTuple):
    """A record as its model saw it.

    Attributes:
        task: The record's task.
        prompt: `(tokens,) u32`.
        answer: `(tokens,) u32`, the end token included.
        end_token_ids: What ends an answer of the model, and stands nowhere else in this one.
        rows: What the model held likely; None where the record does not tell it.
    """

    task: str
    prompt: NDArray[np.uint32]
    answer: NDArray[np.uint32]
    end_token_ids: tuple[int, ...] = ()
    rows: RecordedRows | None = None


@dataclass(frozen=True)
class Record:
    """One request and its answer.

    Attributes:
        id: Name within the file.
        task: What kind of request it is: summary, rag, ui, ..
        prompt: All that the model was asked, its context included.
        answer: What it said.
        turns: Earlier turns of the conversation, (user, assistant).
        tokens: The record in the tokens of the model, where they stand there.
        vocab_size: Of these tokens; 0 where there are none.
    """

    id: str
    task: str
    prompt: str
    answer: str
    turns: list[tuple[str, str]] = field(default_factory=list)
    tokens: TokenizedRecord | None = field(default=None, compare=False)
    vocab_size: int = 0


def read_records(
    path: Path,
    *,
    output_of: str | None = None,
    limit: int | None = None,
    half: int | None = None,
    tokenizer_sha256: str | None = None,
) -> list[Record]:
    """The records of a file, in its order.

    Args:
        path: Lines with `id, task, prompt, output` and, where given, `context` (put where the
            prompt says `<PASSAGE>`, else before it unless one holds the other), `outputs` (model
            name to text) and `history` (earlier turns with `user` and `assistant`). Those of
            `coordgen bench --records` also have `prompt_ids, answer_ids, end_token_ids, vocab_size,
            tokenizer_sha256`, tokens that are taken as they stand, and `top8`, see `RecordedRows`.
        output_of: A model named in `outputs`, or as `model`; None takes `output`.
        limit: Read only so many lines.
        half: Of these, only every other one: 0 from the first on, 1 from the second; None for all.
        tokenizer_sha256: That of the tokenizer whose tokens they must be; None for any.

    Raises:
        RecordsError: No line, or one that is no such object, or a model without an answer in it, or
            tokens of another tokenizer.
        OSError: The file cannot be read.
    """
    records: list[Record] = []
    try:
        for number, fields in read_json_lines(path, most_line_bytes=_MOST_LINE_BYTES):
            if limit is not None and len(records) == limit:
                break
            try:
                records.append(_record(fields, output_of, tokenizer_sha256))
            except (CoordgenError, ValueError, TypeError, KeyError) as error:
                raise RecordsError(f"{path}, line {number}: {_cause(error)}") from error
    except JsonTextError as error:
        raise RecordsError(str(error)) from error
    if not records:
        raise RecordsError(f"{path}: no records")
    chosen = records if half is None else records[half::2]
    if not chosen:
        raise RecordsError(f"{path}: no record in half {half} of {len(records)}")
    return chosen


def _record(fields: Any, output_of: str | None, tokenizer_sha256: str | None) -> Record:
    if not isinstance(fields, dict):
        raise TypeError("not an object")
    prompt = _text(fields, "prompt")
    context = _text(fields, "context") if fields.get("context") else ""
    if _PASSAGE in prompt:
        prompt = prompt.replace(_PASSAGE, context)
    elif prompt in context:
        prompt = context
    elif context not in prompt:
        prompt = f"{context}\n{prompt}"
    turns = fields.get("history")
    has_tokens = "prompt_ids" in fields and output_of in (None, fields.get("model"))
    if has_tokens and tokenizer_sha256 not in (None, fields["tokenizer_sha256"]):
        raise ValueError("its tokens are of another tokenizer")
    return Record(
        id=_text(fields, "id"),
        task=_text(fields, "task"),
        prompt=prompt,
        answer=_answer(fields, output_of),
        turns=[(_text(turn, "user"), _text(turn, "assistant")) for turn in turns]
        if isinstance(turns, list)
        else [],
        tokens=_tokens(fields) if has_tokens else None,
        vocab_size=fields["vocab_size"] if has_tokens else 0,
    )


def _tokens(fields: dict[str, Any]) -> TokenizedRecord:
    vocab_size = arguments.count("'vocab_size'", fields["vocab_size"], most=_MOST_IDS)
    prompt, answer, ends = (
        arguments.token_ids(f"'{name}'", fields[name], vocab_size)
        for name in ("prompt_ids", "answer_ids", "end_token_ids")
    )
    if not len(prompt) or not len(answer):
        raise ValueError("no tokens in 'prompt_ids' or 'answer_ids'")
    if np.isin(answer[:-1], ends).any():
        raise ValueError("'answer_ids' go on behind an end token")
    rows = None
    if "top8" in fields:
        rows = RecordedRows.parse(fields["top8"], np.concatenate([prompt, answer]), vocab_size)
    return TokenizedRecord(_text(fields, "task"), prompt, answer, tuple(ends.tolist()), rows)


def _answer(fields: dict[str, Any], output_of: str | None) -> str:
    if output_of is None or output_of == fields.get("model"):
        return _text(fields, "output")
    outputs = fields.get("outputs") or {}
    if output_of not in outputs:
        known = ", ".join([str(fields.get("model")), *outputs])
        raise ValueError(f"no output of {output_of!r}; there are: {known}")
    return _text(outputs, output_of)


def _text(fields: dict[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise TypeError(f"{name!r} is not text")
    return str(fields[name])


def _cause(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)


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


def tokenize(record: Record, template: Template, tokenizer: Tokenizer) -> TokenizedRecord:
    """The token ids of a record's prompt and answer."""
    if record.tokens is not None:
        return record.tokens
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


@dataclass(frozen=True)
class Source:
    """Records, and how they are read.

    Attributes:
        data: The file.
        tokenizer: The directory with the `tokenizer.json`.
        template: The name of the chat format; None where the records have tokens.
        output_of: The model whose answers are used; None for the field `output`.
        limit: Only so many records; None for all.
        half: Of these, only every other one, from the first (0) or the second (1) on; None for all.
    """

    data: Path
    tokenizer: Path
    template: str | None
    output_of: str | None = None
    limit: int | None = None
    half: int | None = None

    def settings(self) -> Row:
        """All that the records depend on."""
        return {
            "data": self.data.name,
            "data_sha256": sha256_of(self.data),
            "tokenizer_sha256": sha256_of(self.tokenizer / "tokenizer.json"),
            "template": self.template,
            "output_of": self.output_of,
            "limit": self.limit,
            "half": self.half,
        }


@lru_cache(maxsize=1)
def tokenized(source: Source) -> tuple[list[TokenizedRecord], int]:
    """The records, and the size of their vocabulary.

    Cells of one file that follow each other in a process read it once.

    Raises:
        OptionError: There is no template, and a record without tokens.
        RecordsError, BundleError: Same as in `read_records`, `open_tokenizer`.
    """
    template = TEMPLATES[source.template or "none"]
    tokenizer = open_tokenizer(source.tokenizer, template)
    records = read_records(
        source.data,
        output_of=source.output_of,
        limit=source.limit,
        half=source.half,
        tokenizer_sha256=sha256_of(source.tokenizer / "tokenizer.json"),
    )
    if source.template is None and any(record.tokens is None for record in records):
        raise OptionError(f"{source.data} has records without tokens: --template is missing")
    vocab_size = max(tokenizer.vocab_size, *(record.vocab_size for record in records))
    return [tokenize(record, template, tokenizer) for record in records], vocab_size
