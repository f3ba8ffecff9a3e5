"""A dialogue as a request gives it, and the text that the model reads for it.

In: `messages`, `tools` and `chat_template_kwargs` of a body. Out: an `AskedDialogue`, or a refusal
that names the field. The text is the chat template's; where that knows no tools, see
`server/tools/prompts.py`.
"""

import re
from dataclasses import dataclass
from typing import Any

from coordgen_rs.errors import ChatTemplateError
from coordgen_rs.model import Model
from coordgen_rs.server.asked.content import messages_of
from coordgen_rs.server.asked.effort import effort_of, variables_of
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.known import check_known
from coordgen_rs.server.refusal import RefusalError, names_path
from coordgen_rs.server.tools.constraint import format_for
from coordgen_rs.server.tools.functions import Tools, tools_of
from coordgen_rs.server.tools.prompts import described, with_mapped_arguments, with_short_ids

_GIVEN_OTHERWISE = ("messages", "tools", "add_generation_prompt")
"""What is no variable of the client's."""
_VERB = re.compile(r" (has no chat template|cannot be applied|cannot be compiled|is malformed) *")


@dataclass(frozen=True)
class AskedDialogue:
    """Messages, oldest first, and what the model may call.

    Attributes:
        messages: At least one.
        tools: Functions; None for none.
        variables: What else the template reads.
        effort: How much the model is to think; None leaves it to the template.
        thinks: Whether it is to think at all; None leaves it to the effort.
    """

    messages: list[dict[str, Any]]
    tools: Tools | None
    variables: dict[str, Any] | None
    effort: str | None = None
    thinks: bool | None = None

    def text(self, model: Model) -> str:
        """What the model reads, special tokens included.

        Raises:
            RefusalError: There is no chat template, it refuses the messages, one is malformed, or
                the effort contradicts a variable.
        """
        try:
            return self._text(model)
        except ChatTemplateError as error:
            raise RefusalError(_without_place(str(error))) from error

    def _text(self, model: Model) -> str:
        """The same.

        Raises:
            ChatTemplateError: There is no chat template, or it refuses the messages.
            OptionError: A message is malformed, or jinja2 is missing.
            RefusalError: The effort contradicts a variable, or a message has an unknown field.
        """
        facts = model.template_facts
        check_known(self.messages, model.tools_template)
        messages, listed = self.messages, None if self.tools is None else self.tools.listed
        if not facts.knows_developer:
            messages = [_by_system(message) for message in messages]
        about_tools = listed is not None or any(
            message["role"] == "tool" or "tool_calls" in message for message in messages
        )
        if about_tools and not model.reads_tools:
            messages, listed = described(messages, self.tools), None
        elif about_tools and (length := format_for(model).id_len) is not None:
            messages = with_short_ids(messages, length)
        variables = variables_of(self.effort, self.variables, facts, self.thinks)
        try:
            return model.chat_prompt(messages, tools=listed, template_variables=variables)
        except ChatTemplateError:
            if (mapped := with_mapped_arguments(messages)) == messages:
                raise
            return model.chat_prompt(mapped, tools=listed, template_variables=variables)


def dialogue_of(fields: Fields) -> AskedDialogue:
    """The dialogue of a body.

    Raises:
        RefusalError: It is malformed.
    """
    messages, tools = messages_of(fields), tools_of(fields)
    variables = fields.take("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        raise fields.wrong("chat_template_kwargs", "must be an object")
    for name in _GIVEN_OTHERWISE:
        if variables is not None and name in variables:
            raise fields.wrong("chat_template_kwargs", f"cannot hold {name}, which is given apart")
    return AskedDialogue(messages, tools, variables, effort_of(fields, "reasoning_effort"))


def _without_place(said: str) -> str:
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


def _by_system(message: dict[str, Any]) -> dict[str, Any]:
    """A message for a template that has no developers, which OpenAI's newer clients send."""
    return message | {"role": "system"} if message["role"] == "developer" else message
