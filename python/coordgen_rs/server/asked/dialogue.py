"""A dialogue as a request gives it, and the text that the model reads for it.

In: `messages`, `tools` and `chat_template_kwargs` of a body. Out: an `AskedDialogue`, or a refusal
that names the field. The text is the chat template's; where that knows no tools, see
`server/tools/prompts.py`.
"""

from dataclasses import dataclass
from typing import Any

from coordgen_rs.model import Model
from coordgen_rs.server.asked.content import messages_of
from coordgen_rs.server.asked.effort import effort_of, variables_of
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.tools.functions import Tools, tools_of
from coordgen_rs.server.tools.holding import form_for
from coordgen_rs.server.tools.prompts import described, with_short_ids


@dataclass(frozen=True)
class AskedDialogue:
    """Messages, oldest first, and what the model may call.

    Attributes:
        messages: At least one.
        tools: Functions; None for none.
        variables: What else the template reads.
        effort: How much the model is to think; None leaves it to the template.
    """

    messages: list[dict[str, Any]]
    tools: Tools | None
    variables: dict[str, Any] | None
    effort: str | None = None

    def text(self, model: Model) -> str:
        """What the model reads, special tokens included.

        Raises:
            ChatTemplateError: There is no chat template, or it refuses the messages.
            OptionError: A message is malformed, or jinja2 is missing.
            RefusalError: The effort contradicts a variable.
        """
        facts = model.template_facts
        messages, listed = self.messages, None if self.tools is None else self.tools.listed
        if not facts.knows_developer:
            messages = [_by_system(message) for message in messages]
        about_tools = listed is not None or any(
            message["role"] == "tool" or "tool_calls" in message for message in messages
        )
        if about_tools and not model.reads_tools:
            messages, listed = described(messages, self.tools), None
        elif about_tools and (length := form_for(model).id_len) is not None:
            messages = with_short_ids(messages, length)
        variables = variables_of(self.effort, self.variables, facts)
        return model.chat_prompt(messages, tools=listed, template_variables=variables)


def dialogue_of(fields: Fields) -> AskedDialogue:
    """The dialogue of a body.

    Raises:
        RefusalError: It is malformed.
    """
    messages, tools = messages_of(fields), tools_of(fields)
    variables = fields.take("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        raise fields.wrong("chat_template_kwargs", "must be an object")
    return AskedDialogue(messages, tools, variables, effort_of(fields, "reasoning_effort"))


def _by_system(message: dict[str, Any]) -> dict[str, Any]:
    """A message for a template that has no developers, which OpenAI's newer clients send."""
    return message | {"role": "system"} if message["role"] == "developer" else message
