"""The body of OpenAI's Responses API, as far as it is text and functions.

In: a body as `Fields`, `model` excepted, and the model. Out: a `Request`, or a refusal that names
the field. Nothing is stored, so no response can be gone on with by its id: a dialogue is sent
whole, as items of `input`. What the model said in one turn, text and calls, is one message of it;
so templates expect it.
"""

from typing import Any

from coordgen_rs.model import Model
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.requests.body import Fields
from coordgen_rs.server.requests.openai import settings_of
from coordgen_rs.server.requests.options import format_of, limit_of, num_alternatives_of
from coordgen_rs.server.requests.prompts import (
    NAMELESS,
    ROLES,
    Dialogue,
    call_of,
    chat_ids,
    effort_of,
    text_of,
)
from coordgen_rs.server.requests.record import Request, complete
from coordgen_rs.server.tools.functions import tools_of

_NOT_STORED = "the server stores no responses: send the whole dialogue as input"
_LOGPROBS = "message.output_text.logprobs"
_OF_OTHER_ITEMS = (
    *("reasoning.encrypted_content", "message.input_image.image_url"),
    *("web_search_call.action.sources", "web_search_call.results", "file_search_call.results"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url"),
)
"""What may be included of items of which there are none here, such as encrypted thinking."""
_KINDS = "its type must be message, function_call, function_call_output or reasoning"


def parse_response(fields: Fields, model: Model) -> Request:
    """The body of `/v1/responses`.

    Raises:
        RefusalError: It cannot be answered.
    """
    messages = messages_of_items(fields)
    limit = limit_of(fields, "max_output_tokens")
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, why=_NOT_STORED)
    fields.only("store", False, why=_NOT_STORED)
    fields.only("background", False, why=_NOT_STORED)
    fields.only("truncation", "disabled", why="a dialogue that is too long is refused")
    fields.ignore("max_tool_calls")
    num_alternatives = _num_alternatives(fields)
    tools = tools_of(fields, is_flat=True)
    effort = _effort(fields)
    text = fields.nested("text")
    constraint = format_of(text, "format", is_flat=True)
    text.only("verbosity", "medium", why="the model has no such setting")
    text.end()
    for name in ("n", "best_of"):
        fields.only(name, 1, why="a response is one answer")
    settings = settings_of(
        fields, model, limit, num_alternatives, constraint=constraint, tools=tools
    )
    prompt_ids = chat_ids(model, Dialogue(messages, tools, effort), "input")
    return complete(model, "response", prompt_ids, settings)


def _num_alternatives(fields: Fields) -> int | None:
    """How many alternatives are told of each token; None where nothing is told.

    Raises:
        RefusalError: `include` is malformed, or asks for what cannot be included.
    """
    given = fields.take("include")
    included = [] if given is None else given
    known = (_LOGPROBS, *_OF_OTHER_ITEMS)
    if not isinstance(included, list) or any(name not in known for name in included):
        raise fields.wrong("include", f'must be a list, in which only "{_LOGPROBS}" may be')
    return num_alternatives_of(fields, _LOGPROBS in included, f'include: ["{_LOGPROBS}"]')


def _effort(fields: Fields) -> str | None:
    """The effort in `reasoning`; None if it says nothing.

    Raises:
        RefusalError: It is malformed.
    """
    reasoning = fields.nested("reasoning")
    effort = effort_of(reasoning, "effort")
    for name in ("summary", "generate_summary"):  # "auto" is the best that there is
        reasoning.only(name, "auto", why="thinking is given as it is, without a summary")
    reasoning.end()
    return effort


def messages_of_items(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue of `input`, `instructions` first.

    Raises:
        RefusalError: It is malformed, or holds something else than text and calls.
    """
    instructions = fields.text("instructions")
    if isinstance(text := fields.peek("input"), str):
        fields.ignore("input")
        dialogue = [{"role": "user", "content": text}]
    else:
        how = "must be a text, or a list of one item or more"
        dialogue = _messages(fields.objects("input", how, least=1))
    if not dialogue:
        raise fields.wrong("input", "must hold a message")
    said = [] if instructions is None else [{"role": "system", "content": instructions}]
    return [*said, *dialogue]


def _messages(items: list[Fields]) -> list[dict[str, Any]]:
    """Items, oldest first, as messages.

    All kinds in one loop: what an item is depends on whose turn those before it belong to.

    Raises:
        RefusalError: One is malformed, or of another kind.
    """
    messages, names = list[dict[str, Any]](), dict[str, str]()  # functions by the ids of calls
    turn: dict[str, Any] | None = None  # the model's, to which its next items belong
    thought = dict[str, str]()  # right before a turn that is still to come; of no later one
    for item in items:
        kind = item.text("type") or "message"
        if kind == "message":
            item.ignore("phase")
            message = {"role": item.one_of("role", ROLES), "content": _text(item, "content")}
            turn = message | thought if message["role"] == "assistant" else None
            messages.append(turn or message)
            thought = {}
        elif kind == "function_call":
            name, identity = item.needed("name", NAMELESS), item.text("call_id")
            item.only("namespace", why="functions have no namespaces")
            item.ignore("caller")
            call = call_of(identity, name, item, "arguments")
            names |= {} if identity is None else {identity: name}
            if turn is None:
                turn, thought = {"role": "assistant", "content": "", **thought}, {}
                messages.append(turn)
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            identity = item.needed("call_id", "must be the id of a call")
            item.ignore("caller")
            name_of = {"name": names[identity]} if identity in names else {}
            said = {"content": _text(item, "output")}
            messages.append({"role": "tool", "tool_call_id": identity} | name_of | said)
            turn, thought = None, {}
        elif kind == "reasoning":  # templates write thoughts, not what is encrypted or summed up
            item.ignore("summary", "encrypted_content")
            if item.peek("content"):
                text = thought.get("reasoning_content", "") + _text(item, "content")
                turn, thought = None, {"reasoning_content": text} if text else {}
            item.ignore("content")
        else:
            raise item.unsupported("type", f"is not supported: {_KINDS}")
        item.end("id", "status")
    return messages


def _text(item: Fields, name: str) -> str:
    return text_of(item, name, _part, "text")


def _part(item: Fields, name: str, part: object) -> str:
    """The text of a part.

    Raises:
        RefusalError: It has none.
    """
    if isinstance(part, str):
        return part
    fields = Fields(part, item.name(name))
    kinds = ("input_text", "output_text", "reasoning_text", "text")
    fields.only("type", *kinds, why="the model reads text only")
    text = fields.text("text")
    fields.end("annotations", "logprobs")
    if text is None:
        raise RefusalError(f"{fields.name('text')} must be text", param=fields.name("text"))
    return text
