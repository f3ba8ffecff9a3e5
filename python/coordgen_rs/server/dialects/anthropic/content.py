"""The blocks of Anthropic's messages as the messages that templates read.

In: `system`, `messages` and `tools` of a body. Out: messages and tools in the form of OpenAI, or a
refusal that names the block at fault. `cache_control` says nothing here: prefixes are always kept.
"""

from collections.abc import Callable
from typing import Any

from coordgen_rs.errors import arguments
from coordgen_rs.server.asked.content import arguments_of_call
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.refusal import RefusalError

_ROLES = ("user", "assistant", "system")
_NO_TEXT = "the model reads text only"
_OF_TOOLS = (
    "allowed_callers",
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
)
"""What of a tool says nothing about its calls."""


def messages_of(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, oldest message first, what the system says in front.

    Raises:
        RefusalError: It is malformed, holds something else than text, or ends with the assistant.
    """
    system, given = fields.take("system"), fields.take("messages")
    if not isinstance(given, list) or not given:
        raise fields.wrong("messages", "must be a list of one message or more")
    found = list[dict[str, Any]]()
    if system is not None:
        found.append({"role": "system", "content": _texts(system, "system")})
    for index, message in enumerate(given):
        found += _message(Fields(message, f"messages[{index}]"))
    if found[-1]["role"] == "assistant":
        raise fields.wrong("messages", "must not end with the assistant: no text is gone on with")
    return found


def _message(message: Fields) -> list[dict[str, Any]]:
    """The messages that a message is: results of tools are messages of their own.

    Raises:
        RefusalError: It is malformed.
    """
    role, content = message.text("role"), message.take("content")
    message.end()
    if role not in _ROLES:
        raise message.wrong("role", f"must be one of {', '.join(_ROLES)}")
    where = message.name("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_said(content, where)]
    found, texts = list[dict[str, Any]](), list[str]()
    for block in _blocks(content, where):
        if block.kind == "tool_result" and role == "user":
            found.append(_result(block.fields))
        else:
            texts.append(_text(block))
    if texts or not found:
        found.append({"role": role, "content": "\n".join(texts)})
    return found


def _said(content: object, where: str) -> dict[str, Any]:
    """What the model said before: text, thoughts and calls.

    Raises:
        RefusalError: It is malformed.
    """
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in _blocks(content, where):
        fields = block.fields
        if block.kind == "thinking":
            thoughts.append(fields.text("thinking") or "")
            fields.ignore("signature")
            fields.end()
        elif block.kind == "redacted_thinking":
            fields.ignore("data")
            fields.end()
        elif block.kind == "tool_use":
            calls.append(_call(fields))
        else:
            texts.append(_text(block))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    return message | {"tool_calls": calls} if calls else message


def _call(block: Fields) -> dict[str, Any]:
    identity, name = block.text("id"), block.text("name")
    given = arguments_of_call(block, "input")
    block.ignore("caller")
    block.end()
    if identity is None or name is None:
        raise block.wrong("name", "must name the function, and id the call")
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": given},
    }


def _result(block: Fields) -> dict[str, Any]:
    identity, content = block.text("tool_use_id"), block.take("content")
    is_error = block.flag("is_error")
    block.end()
    if identity is None:
        raise block.wrong("tool_use_id", "must name the call")
    text = "" if content is None else _texts(content, block.name("content"))
    told = f"Error: {text}" if is_error else text
    return {"role": "tool", "tool_call_id": identity, "content": told}


class _Block:
    """A block of content: its kind, and what else it holds."""

    def __init__(self, fields: Fields) -> None:
        self.kind, self.fields = fields.text("type"), fields
        fields.ignore("cache_control", "citations")


def _blocks(content: object, where: str) -> list[_Block]:
    if not isinstance(content, list):
        shown = arguments.shown(content)
        raise RefusalError(
            f"{where} must be a string or a list of blocks, but is {shown}",
            param=where,
            code="invalid_value",
        )
    return [_Block(Fields(block, f"{where}[{index}]")) for index, block in enumerate(content)]


def _texts(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text(block) for block in _blocks(content, where))


def _text(block: _Block) -> str:
    """The text of a block.

    Raises:
        RefusalError: It is of another kind.
    """
    if block.kind != "text":
        name = block.fields.name("type")
        raise RefusalError(
            f"{name} is {arguments.shown(block.kind)}, which is not supported here: {_NO_TEXT}",
            param=name,
            code="unsupported_value",
        )
    text = block.fields.text("text")
    block.fields.end()
    if text is None:
        raise block.fields.wrong("text", "must be text")
    return text


def tools_of(fields: Fields) -> dict[str, Any]:
    """`tools` and `tool_choice` as OpenAI's requests have them.

    Raises:
        RefusalError: They are malformed, or tools that the service itself would run.
    """
    given = fields.take("tools")
    if given is not None and not isinstance(given, list):
        raise fields.wrong("tools", "must be a list of objects")
    found = dict[str, Any]()
    if given:
        found["tools"] = [_tool(Fields(one, f"tools[{i}]")) for i, one in enumerate(given)]
    if fields.has("tool_choice"):
        choice = fields.nested("tool_choice")
        kind, name = choice.text("type"), choice.text("name")
        found["parallel_tool_calls"] = not choice.flag("disable_parallel_tool_use")
        choice.end()
        if kind == "tool" and name is None:
            raise choice.wrong("name", "must name the tool")
        kinds: dict[str | None, Callable[[], Any]] = {
            "auto": lambda: "auto",
            "any": lambda: "required",
            "none": lambda: "none",
            "tool": lambda: {"type": "function", "function": {"name": name}},
        }
        if kind not in kinds:
            raise choice.wrong("type", f"must be one of {', '.join(map(str, kinds))}")
        found["tool_choice"] = kinds[kind]()
    return found


def _tool(tool: Fields) -> dict[str, Any]:
    why = "only tools that the client runs can be had, with a name and an input_schema"
    tool.only("type", "custom", why=why)
    function = {
        "name": tool.text("name"),
        "description": tool.text("description"),
        "parameters": tool.take("input_schema"),
        "strict": tool.take("strict"),
    }
    tool.ignore(*_OF_TOOLS)
    tool.end()
    present = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": present}
