"""The text that a model reads for a dialogue.

In: the chat templates of a bundle, or those given in their place, and messages. Out: prompts.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.text.chat_template import (
    DEFAULT,
    ChatTemplate,
    ChatTemplates,
    Message,
    bundled_templates,
    read_template_file,
)
from coordgen_rs.text.thinking import ThinkingMarks, marks_of
from coordgen_rs.text.tokenizer import Tokenizer


class TemplateFacts(NamedTuple):
    """What a chat template knows of.

    Attributes:
        variables: The names of what it reads.
        knows_developer: Whether it has the role `developer`.
        thinking: The marks of its model's thinking; None where it says nothing of any.
    """

    variables: frozenset[str]
    knows_developer: bool
    thinking: ThinkingMarks | None


class ChatPrompts:
    """A bundle's dialogues as text; its templates are read when the first prompt is asked for.

    Args:
        bundle: The bundle.
        tokenizer: Its tokenizer.
        given: Templates in place of the bundle's; the special tokens stay the bundle's.
    """

    def __init__(
        self, bundle: Bundle, tokenizer: Tokenizer, given: ChatTemplates | None = None
    ) -> None:
        self._bundle, self._tokenizer, self._given = bundle, tokenizer, given

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a dialogue, special tokens included; as `Model.chat_prompt`.

        Raises:
            OptionError: A message is malformed.
            ChatTemplateError: There is no chat template, or it refuses the messages.
        """
        template = self.plain if tools is None else self.for_tools
        return template.render(template.readable(messages), tools=tools, variables=variables)

    @cached_property
    def facts(self) -> TemplateFacts:
        """What the template knows of; raises ChatTemplateError where there is none."""
        template = self.plain
        marks = marks_of(template.source)
        return TemplateFacts(template.variables, template.names("developer"), marks)

    @cached_property
    def plain(self) -> ChatTemplate:
        """The template; raises ChatTemplateError where there is none."""
        return self.templates.template()

    @cached_property
    def for_tools(self) -> ChatTemplate:
        """That for dialogues with tools; raises ChatTemplateError where there is none."""
        return self.templates.template(for_tools=True)

    @cached_property
    def templates(self) -> ChatTemplates:
        """All templates; raises ChatTemplateError where they cannot be read."""
        bundled = bundled_templates(self._bundle, self._tokenizer.token)
        if self._given is None:
            return bundled
        return ChatTemplates(self._given.sources, bundled.tokens, self._given.place)


def given_template(path: Path | str | None) -> ChatTemplates | None:
    """A chat template that a user gives in place of the bundle's.

    Raises:
        ChatTemplateError: The file cannot be read.
    """
    if path is None:
        return None
    return ChatTemplates({DEFAULT: read_template_file(Path(path))}, place=str(path))
