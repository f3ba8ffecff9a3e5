"""Prompts as token ids, the same for every engine: a chat template, rendered once.

In: a folder of prompts, or one of recorded requests, a GGUF file's template and a bundle's
tokenizer. Out: prompts by task. Nothing is cut: a prompt that is too long is an error.
"""

import hashlib
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordgen_rs.convert.containers.gguf.file import read_header
from coordgen_rs.convert.containers.gguf.tokenizer import chat_templates
from coordgen_rs.errors.json_text import FieldError, JsonTextError, parse, read_json_lines
from coordgen_rs.lab.bench.prompts import Message, PromptsError
from coordgen_rs.lab.replay.records import read_records

TASKS = ("summary", "rag", "ui", "reply")
RECORDED = {
    "summary": "vectara_summ_qwen25_llama32.jsonl",
    "rag": "specbench_vicuna7b_v13.jsonl",
    "ui": "ui_droidtask_gold.jsonl",
    "reply": "reply_taubench_gpt4o.jsonl",
}
"""Files of recorded requests, by the task that is taken from them."""
_MOST_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class _Line:
    """What a line must hold; it may hold more."""

    id: str
    task: str
    messages: list[Message]


class Conversation(NamedTuple):
    """What a model is to answer: messages, the last one a user's."""

    id: str
    task: str
    messages: list[dict[str, str]]


class Prompt(NamedTuple):
    """A conversation as a model reads it; `token_ids` is `(tokens,) u32`."""

    id: str
    task: str
    token_ids: np.ndarray


def read_conversations(folder, limit=None):
    """Those of `summary.jsonl`, `rag.jsonl`, `ui.jsonl` and `reply.jsonl`: lines with `messages`.

    Args:
        folder: A task without a file is left out; there must be one.
        limit: Only so many of each task, evenly from the whole file.

    Raises:
        PromptsError: There is no file, or a line that is no conversation.
        OSError: A file cannot be read.
    """
    conversations = []
    for path in _present(folder, {task: f"{task}.jsonl" for task in TASKS}):
        try:
            lines = [
                parse(_Line, fields, f"{path}, line {number}")
                for number, fields in read_json_lines(path, most_line_bytes=_MOST_LINE_BYTES)
            ]
        except (JsonTextError, FieldError) as error:
            raise PromptsError(str(error)) from error
        conversations += [
            Conversation(line.id, line.task, [vars(message) for message in line.messages])
            for line in spread(lines, limit)
        ]
    return conversations


def read_recorded(folder, limit=None):
    """Those of recorded requests (`coordgen replay` reads them), without their answers.

    Arguments and errors are those of `read_conversations`, and RecordsError.
    """
    conversations = []
    for path in _present(folder, RECORDED):
        task = next(task for task, name in RECORDED.items() if name == path.name)
        records = [record for record in read_records(path) if record.task == task]
        conversations += [
            Conversation(record.id, task, _messages(record)) for record in spread(records, limit)
        ]
    return conversations


def spread(items, limit):
    """At most `limit` items, evenly from the first to the last, in their order."""
    if limit is None or limit >= len(items):
        return items
    last = len(items) - 1
    return [items[round(index * last / max(1, limit - 1))] for index in range(limit)]


def shorter(prompts, most):
    """The prompts of at most so many tokens, by task; how many were left out is said on stderr."""
    kept = {
        task: [prompt for prompt in of_task if most is None or len(prompt.token_ids) <= most]
        for task, of_task in prompts.items()
    }
    if num_left_out := sum(map(len, prompts.values())) - sum(map(len, kept.values())):
        print(f"{num_left_out} longer prompts are left out", file=sys.stderr)
    return {task: of_task for task, of_task in kept.items() if of_task}


def encode(conversations, render, tokenizer):
    """`Prompt`s by task.

    Args:
        conversations: At least one.
        render: Messages to text, as a model's chat template has it.
        tokenizer: The model's.
    """
    prompts = {}
    for id_, task, messages in conversations:
        token_ids = tokenizer.encode(render(messages), special_tokens=False)
        prompts.setdefault(task, []).append(Prompt(id_, task, token_ids))
    return prompts


def of_lengths(prompts, lengths, option="--read"):
    """Token ids of exactly such lengths, by length: pieces of all prompts' text, one after another.

    Args:
        prompts: By task.
        lengths: Of the pieces.
        option: What asked for them.

    Raises:
        PromptsError: The text is too short.
    """
    text = np.concatenate([prompt.token_ids for of_task in prompts.values() for prompt in of_task])
    if len(text) < sum(lengths):
        raise PromptsError(
            f"prompts of {len(text)} tokens hold no pieces of {sum(lengths)}: give shorter {option}"
        )
    ends = np.cumsum(lengths)
    return {
        f"{length:,} tokens": [Prompt(str(length), "read", text[end - length : end])]
        for length, end in zip(lengths, ends, strict=True)
    }


def check_room(prompts, most, remedy):
    """See that every prompt fits.

    Args:
        prompts: By task.
        most: Tokens that a prompt may have.
        remedy: What to do if one has more.

    Raises:
        PromptsError: A prompt is longer, or there is none.
    """
    if not prompts:
        raise PromptsError("no prompt is left")
    for of_task in prompts.values():
        for prompt in of_task:
            if len(prompt.token_ids) > most:
                raise PromptsError(
                    f"prompt {prompt.id} has {len(prompt.token_ids)} tokens, room is for {most}: "
                    f"{remedy}"
                )


def chat_template(gguf):
    """A function from messages to text, by the template in a GGUF file.

    Raises:
        CheckpointError: It is damaged.
        ChatTemplateError: It holds no template.
    """
    return chat_templates(read_header(gguf)).template().render


def facts_of(prompts):
    """What a document says of prompts: their lengths, and a hash of all token ids.

    That is of the token ids in order, each prompt behind its length.
    """
    sha256 = hashlib.sha256()
    for of_task in prompts.values():
        for prompt in of_task:
            sha256.update(np.uint32(len(prompt.token_ids)).tobytes())
            sha256.update(np.ascontiguousarray(prompt.token_ids, "<u4").tobytes())
    lengths = {task: [len(prompt.token_ids) for prompt in of] for task, of in prompts.items()}
    return {"sha256": sha256.hexdigest(), "lengths": lengths}


def _present(folder, names):
    paths = [folder / name for name in names.values() if (folder / name).is_file()]
    if not paths:
        raise PromptsError(f"{folder} holds none of {', '.join(names.values())}")
    return paths


def _messages(record):
    messages = [
        {"role": role, "content": text}
        for turn in record.turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    return [*messages, {"role": "user", "content": record.prompt}]
