"""What the model reads: messages of a dialogue, their text by its chat template, and its tokens.

In: fields of a body, tools, and how much the model is to think. Out: messages, a text, or tokens
that fit, or an error that names the field, the message or the part at fault. Where the template
knows no tools, see `tools/formats.py`. A template that reads none of the variables of
thinking gets none: its model answers as it does in any case. A text is filled in between a prompt
and a suffix by models that were trained on that, with the marks of their family around both.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import ChatTemplateError, arguments
from coordgen_rs.errors.json_text import JsonTextError, parse_json
from coordgen_rs.model import Model
from coordgen_rs.model.prompts import TemplateFacts
from coordgen_rs.server.api_error import APIError, TooLongError, names_path
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.tools.formats import (
    described,
    format_for,
    with_mapped_arguments,
    with_short_ids,
)
from coordgen_rs.server.tools.functions import NAMELESS, Tools
from coordgen_rs.text.thinking import CHANNELS
from coordgen_rs.text.tokenizer import Tokenizer

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

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How much thinking may be asked for, least first."""

_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch thinking on and off."""
_VERB = re.compile(r" (has no chat template|cannot be applied|cannot be compiled|is malformed) *")


class Dialogue(NamedTuple):
    """What is asked of a model that has a chat template.

    Attributes:
        messages: At least one, oldest first.
        tools: What the model may call.
        effort: How much it is to think; None leaves it to the template.
        thinks: Whether it is to think at all; None leaves it to the effort.
        variables: What else the template reads.
    """

    messages: list[dict[str, Any]]
    tools: Tools | None = None
    effort: str | None = None
    thinks: bool | None = None
    variables: dict[str, Any] | None = None


def messages_of(fields: Fields) -> list[dict[str, Any]]:
    """The dialogue, oldest message first.

    Raises:
        APIError: It is malformed.
    """
    messages = fields.take("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "must be a list of one message or more")
    return [_message(fields, message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(body: Fields, message: object, where: str) -> dict[str, Any]:
    """A message with its text parts joined: most templates know text only.

    Raises:
        APIError: It is malformed, or holds something else than text.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise body.wrong(where, "must be an object with a role")
    fields, plain = Fields(message, where), {n: v for n, v in message.items() if v is not None}
    if fields.has("content"):
        plain["content"] = text_of(fields, "content")
    elif not plain.get("tool_calls") or plain["role"] == "tool":
        raise APIError(f"{where} has no content", param=f"{where}.content", code="invalid_value")
    if fields.has("tool_calls"):
        calls = fields.objects("tool_calls", "must be a list of calls")
        plain["tool_calls"] = [_call(call) for call in calls]
        if not calls:  # as clients write that none was made
            del plain["tool_calls"]
    return plain


def _call(call: Fields) -> dict[str, Any]:
    """A call that the model has made.

    Raises:
        APIError: It is malformed.
    """
    call.only("type", "function", why='its type must be "function"')
    identity, function = call.text("id"), call.nested("function")
    name = function.needed("name", NAMELESS)
    function.end("index", "description", but="arguments")  # of Ollama's
    call.end("index")
    return call_of(identity, name, function, "arguments")


def call_of(identity: str | None, name: str, fields: Fields, field: str) -> dict[str, Any]:
    """A call of a function, as templates read it.

    Its arguments, which clients write as text, are an object then. A call that was cut short, or
    that is wrong, comes back with its result all the same: its text stays text.

    Args:
        identity: The call's id; None for none.
        name: The function's name.
        fields: Those that have the arguments.
        field: Which of them has.

    Raises:
        APIError: The arguments are neither an object nor text.
    """
    given = fields.take(field)
    if isinstance(given, str):
        with suppress(JsonTextError):
            parsed = parse_json(given or "{}", fields.name(field))
            given = parsed if isinstance(parsed, dict) else given
    elif not isinstance(given, dict):
        raise fields.wrong(field, "must be a JSON object, or text")
    call = {"type": "function", "function": {"name": name, "arguments": given}}
    return call if identity is None else {"id": identity} | call


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
        APIError: It is something else.
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
        APIError: One is known neither here nor to the template.
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


def chat_ids(model: Model, dialogue: Dialogue, field: str = "messages") -> NDArray[np.uint32]:
    """The tokens `(tokens,) u32` that a model reads for a dialogue.

    Args:
        model: The model.
        dialogue: The dialogue.
        field: Where it comes from, for messages.

    Raises:
        APIError: There is no text for it, or it does not fit into the context.
    """
    return encode(model, chat_text(model, dialogue), field)


def chat_text(model: Model, dialogue: Dialogue) -> str:
    """The text that a model reads for a dialogue, special tokens included.

    Raises:
        APIError: There is no chat template, it refuses the messages, one is malformed, or the
            effort contradicts a variable.
    """
    messages, tools = dialogue.messages, dialogue.tools
    try:
        facts, listed = model.template_facts, None if tools is None else tools.listed
        check_messages(messages, model.tools_template)
        if not facts.knows_developer:  # whom OpenAI's newer clients send
            system = {"role": "system"}
            messages = [one | system if one["role"] == "developer" else one for one in messages]
        about_tools = listed is not None or any(
            message["role"] == "tool" or "tool_calls" in message for message in messages
        )
        if about_tools and not model.reads_tools:
            messages, listed = described(messages, tools), None
        elif about_tools and (length := format_for(model).id_len) is not None:
            messages = with_short_ids(messages, length)
        render = partial(
            model.chat_prompt, tools=listed, template_variables=_variables(dialogue, facts)
        )
        if (mapped := with_mapped_arguments(messages)) != messages:
            with suppress(ChatTemplateError):
                return render(messages)
        return render(mapped)
    except ChatTemplateError as error:
        raise APIError(_without_path(str(error))) from error


def effort_of(fields: Fields, name: str) -> str | None:
    """The effort that a field asks for; None if it is absent.

    Raises:
        APIError: It is none.
    """
    effort = fields.text(name)
    if effort is not None and effort not in EFFORTS:
        raise fields.wrong(
            name, f"must be one of {', '.join(EFFORTS)}, but is {arguments.shown(effort)}"
        )
    return effort


def _variables(dialogue: Dialogue, facts: TemplateFacts) -> dict[str, Any] | None:
    """The variables of the template; None where nothing says anything.

    Raises:
        APIError: The client's own contradict the effort.
    """
    effort, thinks, given = dialogue.effort, dialogue.thinks, dialogue.variables
    if effort is None and thinks is None:
        return given
    wanted: dict[str, Any] = {}
    if effort is not None:
        # The models of this family always think; the least that they know is "low".
        is_least = facts.thinking is CHANNELS and effort in ("none", "minimal")
        wanted["reasoning_effort"] = "low" if is_least else effort
    wanted |= dict.fromkeys(_SWITCHES, effort != "none" if thinks is None else thinks)
    found = {name: value for name, value in wanted.items() if name in facts.variables}
    for name, value in (given or {}).items():
        if name in wanted and value not in (wanted[name], effort):
            raise APIError(
                f"reasoning_effort is {effort}, but chat_template_kwargs.{name} is "
                f"{arguments.shown(value)}: give one of them",
                param="reasoning_effort",
                code="invalid_value",
            )
    return found | (given or {})


def _without_path(said: str) -> str:
    """What is wrong with a chat template, without its path, which is none of the client's."""
    found = _VERB.search(said)
    if found is None:
        return "the chat template cannot be read" if names_path(said) else said
    if found[1] == "has no chat template":
        return (
            "the model has no chat template: ask /v1/completions, or start the server with "
            "--chat-template FILE"
        )
    return f"the chat template {said[found.start(1) :]}"


def encode(
    model: Model, text: str, field: str, *, special_tokens: bool = False
) -> NDArray[np.uint32]:
    """The tokens `(tokens,) u32` of a prompt. A text that cannot fit is not tokenized.

    Args:
        model: The model.
        text: What it reads.
        field: Where the text comes from, for messages.
        special_tokens: Same as in `Tokenizer.encode`.

    Raises:
        APIError: It does not fit into the context.
    """
    check_fits(model, text, field)
    return fitting(model, model.tokenizer.encode(text, special_tokens=special_tokens), field)


def fitting(model: Model, ids: NDArray[np.uint32], field: str) -> NDArray[np.uint32]:
    """The same tokens.

    Raises:
        TooLongError: They do not fit into the context.
    """
    if len(ids) > model.context:
        raise TooLongError("the prompt", str(len(ids)), model.context, field)
    return ids


def check_fits(model: Model, text: str, field: str) -> None:
    """Refuse a text that cannot fit into the context, however it is tokenized.

    Raises:
        TooLongError: It cannot.
    """
    least = model.tokenizer.least_tokens(text)
    if least > model.context:
        what = f"the text of {field}, {len(text):,} characters long,"
        raise TooLongError(what, f"at least {least}", model.context, field)


class InfillMarks(NamedTuple):
    """The special tokens of one family of models.

    Attributes:
        prefix: Stands before the text that comes first.
        suffix: Stands before the text that comes last.
        middle: Stands before what is to be filled in; None where the suffix is given first, and the
            answer goes on behind the prefix.
    """

    prefix: str
    suffix: str
    middle: str | None


_FAMILIES = (
    InfillMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    InfillMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    InfillMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001
    InfillMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    InfillMarks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    InfillMarks("[PREFIX]", "[SUFFIX]", None),  # Codestral
)

_ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<|endoftext|>"),
    *("<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|repo_name|>", "<repo_name>"),
)
"""What models of all families say when the middle is complete, besides their end tokens."""


def infill_marks(tokenizer: Tokenizer) -> InfillMarks | None:
    """The marks that a tokenizer has; None if it has none."""
    for marks in _FAMILIES:
        if all(mark is None or tokenizer.token_id(mark) is not None for mark in marks):
            return marks
    return None


def infilled(
    model: Model, before: NDArray[np.uint32], suffix: str
) -> tuple[NDArray[np.uint32], list[str]]:
    """The prompt `(tokens,) u32` of a text whose middle is wanted, and the tokens that end it.

    Args:
        model: The model.
        before: The text that comes first, without tokens around it.
        suffix: The text that comes last.

    Raises:
        APIError: The model has no tokens for that.
        APIError: It does not fit into the context.
    """
    tokenizer = model.tokenizer
    marks = infill_marks(tokenizer)
    if marks is None:
        raise APIError(
            "suffix is not supported: the model's tokenizer has no tokens to fill in the middle of "
            "a text, such as <|fim_prefix|>: leave it out, or take a model for code that has them",
            param="suffix",
            code="unsupported_value",
        )

    def mark(text: str) -> NDArray[np.uint32]:
        return np.asarray([tokenizer.token_id(text)], np.uint32)

    parts = [mark(marks.prefix), before, mark(marks.suffix), encode(model, suffix, "suffix")]
    parts = [*parts, mark(marks.middle)] if marks.middle else [*parts[2:], *parts[:2]]
    ids = fitting(model, np.concatenate([tokenizer.encode(""), *parts]), "suffix")
    ends = (*_ENDS, *filter(None, marks))
    return ids, [end for end in ends if tokenizer.token_id(end) is not None]
