"""Messages about tools as a chat template reads them, also a template that knows no tools.

In: messages with calls and results in OpenAI's form. Out: for a template that knows tools, the
same with arguments as objects; for others, plain messages: a description of the tools in the system
message, calls and results between marks, as Hermes models were trained on. Some templates refuse
ids of calls that are not as long as their own.
"""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from coordgen_rs.server.tools.formats import HERMES
from coordgen_rs.server.tools.functions import Tools

_ABOUT = """\
You may call functions to answer. They are listed here as JSON schemas:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as JSON between these marks:
<tool_call>
{{"name": "NAME", "arguments": {{}}}}
</tool_call>"""


def described(messages: list[dict[str, Any]], tools: Tools | None) -> list[dict[str, Any]]:
    """Messages for a template that knows no tools."""
    plain = [_plain(message) for message in messages]
    if tools is None:
        return plain
    about = _ABOUT.format(tools="\n".join(_json(tool) for tool in tools.listed))
    if plain[0]["role"] == "system":
        first = plain[0] | {"content": f"{plain[0]['content']}\n\n{about}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": about}, *plain]


def with_short_ids(messages: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """Messages whose calls have ids of a length, for a template that refuses others.

    Args:
        messages: The messages; they are not changed.
        length: How many letters and digits an id is to have.
    """
    found = _with_calls(messages, lambda call: call | {"id": _short(call.get("id", ""), length)})
    return [
        message | {"tool_call_id": _short(identity, length)}
        if isinstance(identity := message.get("tool_call_id"), str)
        else message
        for message in found
    ]


def with_mapped_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose calls have objects for arguments, for a template that reads no text there.

    Args:
        messages: The messages; they are not changed.
    """
    return _with_calls(messages, _mapped)


def _with_calls(
    messages: list[dict[str, Any]], changed: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        message | {"tool_calls": [changed(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _mapped(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, dict):
        return call
    return call | {"function": call["function"] | {"arguments": {"arguments": arguments}}}


def _short(identity: str, length: int) -> str:
    """The same id for the same id."""
    if len(identity) == length and identity.isalnum():
        return identity
    return sha256(identity.encode(errors="replace")).hexdigest()[:length]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    if "tool_calls" not in message:
        return message
    begin, end = HERMES.opening, HERMES.closing
    calls = [f"{begin}\n{_json(call['function'])}\n{end}" for call in message["tool_calls"]]
    parts = [message["content"]] if message.get("content") else []
    return {"role": message["role"], "content": "\n".join([*parts, *calls])}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
