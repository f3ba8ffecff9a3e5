"""What a request says in words: messages, an expected answer, and where to stop.

In: fields of a body. Out: texts, lists and objects as `Model` takes them, or a refusal that names
the field or the part at fault. The text is not looked at.
"""

from typing import Any

from coordgen_rs.errors import arguments
from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.refusal import RefusalError

MOST_STOPS, MOST_STOP_LEN = 16, 256
"""Stop strings, and characters of each: every token is compared with all of them."""


def stop_strings_of(fields: Fields) -> list[str]:
    """The strings at which the answer is to end.

    Raises:
        RefusalError: It is malformed.
    """
    given = fields.take("stop")
    strings = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise fields.wrong("stop", "must be a string or a list of strings, none of them empty")
    if len(strings) > MOST_STOPS or any(len(string) > MOST_STOP_LEN for string in strings):
        raise fields.wrong(
            "stop", f"may hold {MOST_STOPS} strings of {MOST_STOP_LEN} characters each"
        )
    return strings


def prediction_of(fields: Fields) -> str | None:
    """The answer as the client expects it; None if it does not say.

    Raises:
        RefusalError: It is malformed.
    """
    if not fields.has("prediction"):
        return None
    prediction = fields.nested("prediction")
    prediction.only("type", "content", why='its type must be "content"')
    content = prediction.take("content")
    prediction.end()
    return _text(content, "prediction.content")


def messages_of(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, oldest message first.

    Raises:
        RefusalError: It is malformed.
    """
    messages = fields.take("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "must be a list of one message or more")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, Any]:
    """A message with its text parts joined: most templates know text only.

    Raises:
        RefusalError: It is malformed, or holds something else than text.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RefusalError(
            f"{where} must be an object with a role", param=where, code="invalid_value"
        )
    plain = {name: value for name, value in message.items() if value is not None}
    if "content" in plain:
        plain["content"] = _text(plain["content"], f"{where}.content")
    elif not plain.get("tool_calls") or plain["role"] == "tool":
        raise RefusalError(
            f"{where} has no content", param=f"{where}.content", code="invalid_value"
        )
    if "tool_calls" in plain:
        calls = plain["tool_calls"]
        if not isinstance(calls, list):
            raise RefusalError(
                f"{where}.tool_calls must be a list of calls",
                param=f"{where}.tool_calls",
                code="invalid_value",
            )
        plain["tool_calls"] = [
            _call(Fields(call, f"{where}.tool_calls[{i}]")) for i, call in enumerate(calls)
        ]
        if not calls:  # as clients write that none was made
            del plain["tool_calls"]
    return plain


def _call(call: Fields) -> dict[str, Any]:
    """A call that the model has made, its arguments as an object: so templates expect them.

    Raises:
        RefusalError: It is malformed.
    """
    call.only("type", "function", why='its type must be "function"')
    identity, function = call.text("id"), call.nested("function")
    name, given = function.text("name"), arguments_of_call(function)
    if name is None:
        raise function.wrong("name", "must be the function's name")
    function.end()
    call.ignore("index")
    call.end()
    told = {"type": "function", "function": {"name": name, "arguments": given}}
    return told if identity is None else {"id": identity} | told


def arguments_of_call(function: Fields, name: str = "arguments") -> dict[str, Any] | str:
    """The arguments of a call, which clients write as text, as an object.

    A call that was cut short, or that is wrong, comes back with its result all the same: its text
    stays text.

    Args:
        function: Who is called.
        name: The field that has the arguments.

    Raises:
        RefusalError: They are neither an object nor text.
    """
    given = function.take(name)
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        raise function.wrong(name, "must be a JSON object, or text")
    try:
        parsed = parse_json(given or "{}", function.name(name))
    except JsonTextError:
        return given
    return parsed if isinstance(parsed, dict) else given


def _text(content: object, where: str) -> str:
    """Text, or parts of text, which are lines.

    Raises:
        RefusalError: It is something else.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusalError(
            f"{where} must be a string or a list of parts, but is {arguments.shown(content)}",
            param=where,
            code="invalid_value",
        )
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise RefusalError(
        f'{where} must be {{"type": "text", "text": ".."}}: the model reads text only',
        param=where,
        code="unsupported_value",
    )
