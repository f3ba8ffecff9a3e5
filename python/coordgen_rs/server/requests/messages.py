"""The messages of a dialogue: their texts, the calls in them, and what may stand in them.

In: fields of a body. Out: messages as chat templates read them, or a refusal that names the message
or the part at fault. The text is not looked at.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from coordgen_rs.errors import arguments
from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.fields import Fields

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that all templates get."""

_FIELDS = frozenset(
    (
        *("role", "content", "name", "tool_calls", "tool_call_id"),
        *("reasoning_content", "reasoning", "thinking"),
        # What clients keep beside an answer, and send back with it, says nothing to the model:
        *("id", "type", "status", "annotations", "refusal", "parsed", "metadata", "timestamp"),
        *("cache_control", "extra"),
        *("provider_specific_fields", "thinking_blocks", "reasoning_details", "reasoning_items"),
    )
)


def messages_of(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, oldest message first.

    Raises:
        RefusalError: It is malformed.
    """
    messages = fields.take("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "must be a list of one message or more")
    return [_message(fields, message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(body: Fields, message: object, where: str) -> dict[str, Any]:
    """A message with its text parts joined: most templates know text only.

    Raises:
        RefusalError: It is malformed, or holds something else than text.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise body.wrong(where, "must be an object with a role")
    fields, plain = Fields(message, where), {n: v for n, v in message.items() if v is not None}
    if fields.has("content"):
        plain["content"] = text_of(fields, "content")
    elif not plain.get("tool_calls") or plain["role"] == "tool":
        raise RefusalError(
            f"{where} has no content", param=f"{where}.content", code="invalid_value"
        )
    if fields.has("tool_calls"):
        calls = fields.objects("tool_calls", "must be a list of calls")
        plain["tool_calls"] = [_call(call) for call in calls]
        if not calls:  # as clients write that none was made
            del plain["tool_calls"]
    return plain


def _call(call: Fields) -> dict[str, Any]:
    """A call that the model has made.

    Raises:
        RefusalError: It is malformed.
    """
    call.only("type", "function", why='its type must be "function"')
    identity, function = call.text("id"), call.nested("function")
    name, given = function.text("name"), function.take("arguments")
    if name is None:
        raise function.wrong("name", "must be the function's name")
    function.ignore("index", "description")  # of Ollama's
    function.end()
    call.ignore("index")
    call.end()
    return call_of(identity, name, arguments_of(function, "arguments", given))


def call_of(identity: str | None, name: str | None, given: object) -> dict[str, Any]:
    """A call of a function with its arguments, as templates read it."""
    call = {"type": "function", "function": {"name": name, "arguments": given}}
    return call if identity is None else {"id": identity} | call


def arguments_of(function: Fields, name: str, given: object) -> dict[str, Any] | str:
    """The arguments of a call, which clients write as text, as an object: so templates expect them.

    A call that was cut short, or that is wrong, comes back with its result all the same: its text
    stays text.

    Args:
        function: Who is called.
        name: The field that has the arguments.
        given: Its value.

    Raises:
        RefusalError: They are neither an object nor text.
    """
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        raise function.wrong(name, "must be a JSON object, or text")
    try:
        parsed = parse_json(given or "{}", function.name(name))
    except JsonTextError:
        return given
    return parsed if isinstance(parsed, dict) else given


def text_of(
    fields: Fields,
    name: str,
    part_of: Callable[[Fields, str, object], str] | None = None,
    expected: str = "a string or a list of parts",
) -> str:
    """A text, or its parts, which are lines.

    Args:
        fields: Whose text it is.
        name: The field.
        part_of: The text of a part that has a name; None where parts are those of a chat.
        expected: What messages say that it must be.

    Raises:
        RefusalError: It is something else.
    """
    content = fields.take(name)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise fields.wrong(name, f"must be {expected}, but is {arguments.shown(content)}")
    of = part_of or _part
    return "\n".join(of(fields, f"{name}[{index}]", part) for index, part in enumerate(content))


def _part(fields: Fields, name: str, part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    how = 'must be {"type": "text", "text": ".."}: the model reads text only'
    raise fields.unsupported(name, how)


def check_messages(messages: Sequence[dict[str, Any]], template: str) -> None:
    """Check the roles and the fields of messages, so that what is misspelt is refused.

    A field that is empty or false says nothing; what the template itself names is its own to read.

    Args:
        messages: The messages of the body, in its order.
        template: The chat template, in Jinja.

    Raises:
        RefusalError: One is known neither here nor to the template.
    """
    for index, message in enumerate(messages):
        role, where = message["role"], f"messages[{index}]"
        if role not in ROLES and not _is_named(role, template):
            how = f"but must be one of {', '.join(ROLES)}, or a role that the model's chat template"
            shown = arguments.shown(role)
            raise Fields(message, where).wrong("role", f"is {shown}, {how} names")
        for name, value in message.items():
            if value and name not in _FIELDS and not _is_named(name, template):
                Fields({name: value}, where).end()


def _is_named(word: str, template: str) -> bool:
    """Whether a template has a word in quotes, or as an attribute."""
    quoted = (f"'{word}'", f'"{word}"')
    attribute = rf"\.{re.escape(word)}\b"
    return any(one in template for one in quoted) or re.search(attribute, template) is not None
