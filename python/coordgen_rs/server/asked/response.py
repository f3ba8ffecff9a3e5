"""What `/v1/responses` is asked: OpenAI's Responses API, as far as it is text in and text out.

In: a body as `Fields`. Out: an `Asked`, or a refusal that names the field. Nothing is stored, so no
response can be gone on with by its id: a dialogue is sent whole, as items of `input`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import arguments
from coordgen_rs.model import Model
from coordgen_rs.server.asked import logprobs
from coordgen_rs.server.asked.completion import Asked, asked_rest, encoded
from coordgen_rs.server.asked.dialogue import AskedDialogue
from coordgen_rs.server.asked.effort import reasoning_of
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.formats import format_of_text
from coordgen_rs.server.asked.limits import limit_of
from coordgen_rs.server.refusal import RefusalError

_NOT_STORED = "the server stores no responses: send the whole dialogue as input"
_NO_TOOLS = "take /v1/chat/completions for tools"


def asked_response(fields: Fields) -> Asked:
    """The body of `/v1/responses`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    messages = _messages(fields)
    limit = limit_of(fields, "max_output_tokens")
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, why=_NOT_STORED)
    fields.only("store", False, why=_NOT_STORED)
    fields.only("background", False, why=_NOT_STORED)
    fields.only("truncation", "disabled", why="a dialogue that is too long is refused")
    num_alternatives = logprobs.of_response(fields)
    fields.only("tools", [], why=_NO_TOOLS)
    fields.only("tool_choice", "auto", "none", why=_NO_TOOLS)
    fields.only("parallel_tool_calls", True, False, why="it must be true or false")
    effort = reasoning_of(fields)
    fields.ignore("max_tool_calls")
    schema = format_of_text(fields.nested("text"))

    def prompt(model: Model) -> NDArray[np.uint32]:
        text = AskedDialogue(messages, None, None, effort).text(model)
        return encoded(model, text, "input", special_tokens=False)

    asked = asked_rest(
        fields, prompt, "input", limit, None, schema, num_alternatives=num_alternatives
    )
    return replace(asked, splits_thinking=True)


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, `instructions` first.

    Raises:
        RefusalError: It is malformed, or holds something else than text.
    """
    given, instructions = fields.take("input"), fields.text("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise fields.wrong("input", "must be a text, or a list of one message or more")
    found = list[dict[str, Any]]()
    thought = ""
    for index, item in enumerate(items):
        asked = Fields(item, f"input[{index}]")
        if isinstance(item, dict) and item.get("type") == "reasoning":
            thought += _thought(asked)
            continue
        message = _message(asked)
        if thought and message["role"] == "assistant":
            message["reasoning_content"] = thought
        found.append(message)
        thought = ""
    if not found:
        raise fields.wrong("input", "must hold a message beside thinking")
    if instructions is None:
        return found
    return [{"role": "system", "content": instructions}, *found]


def _thought(item: Fields) -> str:
    """What an earlier answer thought, for the message behind it; summaries are left out."""
    item.only("type", "reasoning", why="its type must be reasoning")
    content = item.take("content")
    item.ignore("id", "status", "summary", "encrypted_content")
    item.end()
    parts = [] if content is None else content
    if not isinstance(parts, list):
        raise item.wrong("content", f"must be a list of texts, but is {arguments.shown(content)}")
    return "".join(
        _text(Fields(part, f"{item.name('content')}[{index}]"), "reasoning_text")
        for index, part in enumerate(parts)
    )


def _message(item: Fields) -> dict[str, Any]:
    item.only("type", "message", why=f"its type must be message; {_NO_TOOLS}")
    role, content = item.text("role"), item.take("content")
    item.ignore("id", "status")
    item.end()
    if role is None:
        raise item.wrong("role", "must be a role such as user")
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise item.wrong("content", f"must be text, but is {arguments.shown(content)}")
    texts = [
        part if isinstance(part, str) else _text(Fields(part, f"{item.name('content')}[{index}]"))
        for index, part in enumerate(parts)
    ]
    return {"role": role, "content": "\n".join(texts)}


def _text(part: Fields, *kinds: str) -> str:
    kinds = kinds or ("input_text", "output_text", "text")
    part.only("type", *kinds, why="the model reads text only")
    text = part.text("text")
    part.ignore("annotations", "logprobs")
    part.end()
    if text is None:
        raise RefusalError(f"{part.name('text')} must be text", param=part.name("text"))
    return text
