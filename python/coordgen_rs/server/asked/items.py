"""The dialogue of a request to the Responses API: items of `input` as messages for a template.

In: `instructions` and `input` of a body. Out: messages, or a refusal that names the item. What the
model said in one turn, text and calls, is one message; so templates expect it.
"""

from typing import Any

from coordgen_rs.errors import arguments
from coordgen_rs.server.asked.content import arguments_of_call
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.known import ROLES
from coordgen_rs.server.refusal import RefusalError

_KINDS = "its type must be message, function_call, function_call_output or reasoning"


def messages_of_items(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, `instructions` first.

    Raises:
        RefusalError: It is malformed, or holds something else than text and calls.
    """
    given, instructions = fields.take("input"), fields.text("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise fields.wrong("input", "must be a text, or a list of one item or more")
    dialogue = _Dialogue()
    for index, item in enumerate(items):
        dialogue.add(Fields(item, f"input[{index}]"))
    if not dialogue.messages:
        raise fields.wrong("input", "must hold a message")
    if instructions is None:
        return dialogue.messages
    return [{"role": "system", "content": instructions}, *dialogue.messages]


class _Dialogue:
    """Messages, as items are added."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None  # the model's, to which its next items belong
        self._names: dict[str, str] = {}  # functions by the ids of calls
        self._thought = ""  # said before the items of a turn that is still to come

    def add(self, item: Fields) -> None:
        """Add an item.

        Raises:
            RefusalError: It is malformed, or of another kind.
        """
        kind = item.text("type") or "message"
        match kind:
            case "message":
                self._add_message(item)
            case "function_call":
                self._add_call(item)
            case "function_call_output":
                self._add_output(item)
            case "reasoning":
                self._add_thought(item)
            case _:
                raise RefusalError(
                    f"{item.name('type')} is not supported: {_KINDS}",
                    param=item.name("type"),
                    code="unsupported_value",
                )
        item.ignore("id", "status")
        item.end()

    def _add_message(self, item: Fields) -> None:
        role, content = item.text("role"), item.take("content")
        item.ignore("phase")
        if role not in ROLES:
            raise item.wrong("role", f"must be one of {', '.join(ROLES)}")
        message = {"role": role, "content": _text(content, item, "content")}
        thoughts = self._thoughts()
        if role == "assistant":
            message |= thoughts
        self.messages.append(message)
        self._turn = message if role == "assistant" else None

    def _add_call(self, item: Fields) -> None:
        name, identity = item.text("name"), item.text("call_id")
        item.only("namespace", why="functions have no namespaces")
        item.ignore("caller")
        if name is None:
            raise item.wrong("name", "must be the function's name")
        function = {"name": name, "arguments": arguments_of_call(item)}
        call: dict[str, Any] = {"type": "function", "function": function}
        if identity is not None:
            self._names[identity] = name
            call = {"id": identity} | call
        if self._turn is None:
            self._turn = dict[str, Any](role="assistant", content="") | self._thoughts()
            self.messages.append(self._turn)
        self._turn.setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Fields) -> None:
        identity, output = item.text("call_id"), item.take("output")
        item.ignore("caller")
        if identity is None:
            raise item.wrong("call_id", "must be the id of a call")
        message = {"role": "tool", "tool_call_id": identity}
        if identity in self._names:
            message["name"] = self._names[identity]
        self._thoughts()
        self.messages.append(message | {"content": _text(output, item, "output")})
        self._turn = None

    def _add_thought(self, item: Fields) -> None:
        """Thoughts go to templates that write them; what is encrypted or summed up does not."""
        content = item.take("content")
        item.ignore("summary", "encrypted_content")
        if content:
            self._thought += _text(content, item, "content")
            self._turn = None

    def _thoughts(self) -> dict[str, str]:
        """What was thought right before this; it belongs to nothing that comes later."""
        thought, self._thought = self._thought, ""
        return {"reasoning_content": thought} if thought else {}


def _text(content: object, item: Fields, field: str) -> str:
    """Text, or parts of text, which are lines.

    Raises:
        RefusalError: It is something else.
    """
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise item.wrong(field, f"must be text, but is {arguments.shown(content)}")
    return "\n".join(
        part if isinstance(part, str) else _part(Fields(part, f"{item.name(field)}[{index}]"))
        for index, part in enumerate(parts)
    )


def _part(part: Fields) -> str:
    kinds = ("input_text", "output_text", "reasoning_text", "text")
    part.only("type", *kinds, why="the model reads text only")
    text = part.text("text")
    part.ignore("annotations", "logprobs")
    part.end()
    if text is None:
        raise RefusalError(f"{part.name('text')} must be text", param=part.name("text"))
    return text
