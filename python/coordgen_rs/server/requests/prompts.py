"""What the model reads: the text of a dialogue, as its chat template has it, and tokens that fit.

In: messages, tools, and how much the model is to think. Out: a text, or tokens, or a refusal that
names the field. Where the template knows no tools, see `server/tools/prompts.py`. A template that
reads none of the variables of thinking gets none: its model answers as it does in any case.
"""

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import ChatTemplateError, arguments
from coordgen_rs.model import Model
from coordgen_rs.model.prompts import TemplateFacts
from coordgen_rs.server.refusal import RefusalError, TooLongError, names_path
from coordgen_rs.server.requests.fields import Fields
from coordgen_rs.server.requests.messages import check_messages
from coordgen_rs.server.tools.formats import format_for
from coordgen_rs.server.tools.functions import Tools
from coordgen_rs.server.tools.prompts import described, with_mapped_arguments, with_short_ids
from coordgen_rs.text.thinking import CHANNELS

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


def chat_ids(model: Model, dialogue: Dialogue, field: str = "messages") -> NDArray[np.uint32]:
    """The tokens `(tokens,) u32` that a model reads for a dialogue.

    Args:
        model: The model.
        dialogue: The dialogue.
        field: Where it comes from, for messages.

    Raises:
        RefusalError: There is no text for it, or it does not fit into the context.
    """
    return encode(model, chat_text(model, dialogue), field)


def chat_text(model: Model, dialogue: Dialogue) -> str:
    """The text that a model reads for a dialogue, special tokens included.

    Raises:
        RefusalError: There is no chat template, it refuses the messages, one is malformed, or
            the effort contradicts a variable.
    """
    try:
        return _rendered(model, dialogue)
    except ChatTemplateError as error:
        raise RefusalError(_without_path(str(error))) from error


def _rendered(model: Model, dialogue: Dialogue) -> str:
    """The same.

    Raises:
        ChatTemplateError: There is no chat template, or it refuses the messages.
        RefusalError: Same as in `chat_text`.
    """
    facts, messages, tools = model.template_facts, dialogue.messages, dialogue.tools
    listed = None if tools is None else tools.listed
    check_messages(messages, model.tools_template)
    if not facts.knows_developer:
        messages = [_by_system(message) for message in messages]
    about_tools = listed is not None or any(
        message["role"] == "tool" or "tool_calls" in message for message in messages
    )
    if about_tools and not model.reads_tools:
        messages, listed = described(messages, tools), None
    elif about_tools and (length := format_for(model).id_len) is not None:
        messages = with_short_ids(messages, length)
    variables = _variables(dialogue, facts)
    try:
        return model.chat_prompt(messages, tools=listed, template_variables=variables)
    except ChatTemplateError:
        if (mapped := with_mapped_arguments(messages)) == messages:
            raise
        return model.chat_prompt(mapped, tools=listed, template_variables=variables)


def _by_system(message: dict[str, Any]) -> dict[str, Any]:
    """A message for a template that has no developers, which OpenAI's newer clients send."""
    return message | {"role": "system"} if message["role"] == "developer" else message


def effort_of(fields: Fields, name: str) -> str | None:
    """The effort that a field asks for; None if it is absent.

    Raises:
        RefusalError: It is none.
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
        RefusalError: The client's own contradict the effort.
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
            raise RefusalError(
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
        TooLongError: It does not fit into the context.
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
