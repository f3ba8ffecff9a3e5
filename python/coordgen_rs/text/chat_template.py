"""Chat templates: where they come from, and the text that they make of messages.

In: a directory, whose templates in Jinja and special tokens are read by name; then messages. Out:
text to be encoded without further special tokens. Templates come from strangers, so the crate runs
them within bounds of time and memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from coordgen_rs._core import chat_template_variables, render_chat_template
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import ChatTemplateError, OptionError, arguments
from coordgen_rs.errors.json_text import JsonTextError, file_errors_as, read_bytes, read_object

DEFAULT, TOOL_USE = "default", "tool_use"
"""The names that Hugging Face gives to templates: the one to take, and the one for tools."""

_MOST_TEMPLATE_BYTES = 4 << 20
_MOST_CONFIG_BYTES = 64 << 20

Message = Mapping[str, Any]
"""`{"role": "user", "content": "..."}`; or content as parts, `[{"type": "text", "text": ".."}]`."""

_PROBE = "2718281828"
"""A text that no template changes."""

_MOST_SOURCE_CHARS = 1 << 18
"""Longest source of a template: the longest that is known has a tenth of it."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One model's chat template.

    Args:
        source: The template, in Jinja.
        tokens: The texts of special tokens by the names that templates use, such as `bos_token`.
        name: What it is called in messages.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        *,
        name: str = "the chat template",
    ) -> None:
        self.source, self.tokens, self.name = source, dict(tokens or {}), name

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model reads; it holds all special tokens, the begin token too.

        Args:
            messages: The dialogue so far, oldest first.
            tools: Functions that the model may call, as JSON schemas.
            add_generation_prompt: Whether the text ends where the assistant's answer begins.
            variables: What else the template reads, such as `enable_thinking` or `documents`.

        Raises:
            OptionError: Messages are malformed; the message says how.
            ChatTemplateError: The template is malformed, refuses the messages, or does not end.
        """
        given = {
            "messages": checked_messages(messages),
            "tools": None if tools is None else _plain(_list("tools", tools), "tools"),
            "add_generation_prompt": add_generation_prompt,
        }
        return self._render(
            self.tokens | {"documents": None} | _variables(variables, given) | given
        )

    def readable(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages, with parts of text as lines of one text where it reads no parts.

        Args:
            messages: Same as in `render`, which gives a template what it is given.

        Raises:
            OptionError: Messages are malformed, or a part is of another kind.
            ChatTemplateError: The template is malformed.
        """
        checked = checked_messages(messages)
        parts = [part for each in checked if _has_parts(each) for part in each["content"]]
        for part in parts:
            if part.get("type", "text") != "text":
                raise OptionError(f"a part of a message is not text: {arguments.shown(part)}")
        if not parts or self._reads_parts:
            return messages
        return [_joined(each) if _has_parts(each) else each for each in checked]

    @cached_property
    def _reads_parts(self) -> bool:
        """Whether it reads a part of text as it reads the text, or takes nothing but parts.

        Raises:
            ChatTemplateError: The template is malformed.
        """
        self.check()
        known = self.tokens | {"documents": None, "tools": None, "add_generation_prompt": True}
        told: list[str | None] = []
        for content in (_PROBE, [{"type": "text", "text": _PROBE}]):
            try:
                messages = [{"role": "user", "content": content}]
                told.append(self._render(known | {"messages": messages}))
            except ChatTemplateError:
                told.append(None)
        of_text, of_parts = told
        return of_text is None or _PROBE not in of_text or of_text == of_parts

    @property
    def reads_tools(self) -> bool:
        """Whether what it renders can depend on `tools`.

        Raises:
            ChatTemplateError: The template is malformed.
        """
        return "tools" in self.variables

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that what it renders can depend on.

        Raises:
            ChatTemplateError: The template is malformed.
        """
        if len(self.source) > _MOST_SOURCE_CHARS:
            raise ChatTemplateError(f"{self.name} is longer than {_MOST_SOURCE_CHARS:,} characters")
        if "{{" not in self.source and "{%" not in self.source:
            raise ChatTemplateError(
                f"{self.name} holds {self.source!r:.60}, which is no template: messages would be "
                "lost; give one (--chat-template FILE, or chat_template of Model.open)"
            )
        with self._failing():
            return frozenset(chat_template_variables(self.source))

    def names(self, text: str) -> bool:
        """Whether the template has a text in quotes, such as a role that it knows."""
        return f"'{text}'" in self.source or f'"{text}"' in self.source

    def check(self) -> None:
        """Parse the template.

        Raises:
            ChatTemplateError: The template is malformed.
        """
        _ = self.variables

    def _render(self, known: dict[str, Any]) -> str:
        self.check()
        with self._failing():
            return render_chat_template(self.source, known, _strftime_now)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Give what the crate raises this template's name.

        Raises:
            ChatTemplateError: The template is malformed, or refuses.
        """
        try:
            yield
        except (SyntaxError, ValueError) as error:
            raise ChatTemplateError(f"{self.name} {error!s:.300}") from error


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as templates read them: copies, of JSON's types alone.

    Raises:
        OptionError: They are not a list of objects with a role, or hold something else than text.
    """
    listed = _list("messages", messages)
    if not listed:
        raise OptionError("messages is empty: there is nothing to answer")
    return [_message(index, message) for index, message in enumerate(listed)]


def _list(what: str, value: object) -> list[Any]:
    """The items of a list or tuple.

    Raises:
        OptionError: It is something else.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise OptionError(f"{what} must be a list, but is {arguments.shown(value)}")
    return list(value)


def _variables(variables: object, taken: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's variables.

    Raises:
        OptionError: They are no mapping, or one of them is given in another way.
    """
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise OptionError(f"template_variables must be a dict, but is {arguments.shown(variables)}")
    for name in variables:
        if name in taken:
            raise OptionError(f"template_variables cannot hold {name}, which is given otherwise")
    plain: dict[str, Any] = _plain(variables, "template_variables")
    return plain


def _message(index: int, message: object) -> dict[str, Any]:
    what = f"messages[{index}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise OptionError(f'{what} must be like {{"role": "user", "content": "..."}}')
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else []
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise OptionError(f"{what} holds a part that is not text: {arguments.shown(part)}")
    if content is not None and not parts and not isinstance(content, str):
        raise OptionError(f"{what}.content must be text, but is {arguments.shown(content)}")
    plain: dict[str, Any] = _plain(message, what)
    reasoning = next((plain[name] for name in _REASONING if plain.get(name) is not None), None)
    if reasoning is None:
        return plain
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its parts of text as lines."""
    return {**message, "content": "\n".join(part["text"] for part in message["content"])}


def _has_parts(message: dict[str, Any]) -> bool:
    return isinstance(message.get("content"), list)


def _plain(value: Any, what: str) -> Any:
    """A copy of JSON's types alone, which have no methods that a template could misuse.

    Raises:
        OptionError: There is something else in it.
    """
    if value is None or type(value) in (str, int, float, bool):
        return arguments.text(what, value) if type(value) is str else value
    if isinstance(value, str):
        return arguments.text(what, str.__str__(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{what}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{what}[{index}]") for index, item in enumerate(value)]
    raise OptionError(f"{what} holds {arguments.shown(value)}, which is no JSON")


@dataclass(frozen=True)
class ChatTemplates:
    """All that a checkpoint says about chat."""

    sources: dict[str, str] = field(default_factory=dict)
    """Templates in Jinja, by name; empty for a model that has none."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Special tokens' texts by the names that templates use, such as `bos_token`."""
    place: str = "the chat template"
    """Where they are from, for messages."""

    def template(self, *, for_tools: bool = False) -> ChatTemplate:
        """The template to use.

        Args:
            for_tools: Whether the request has tools, for which some models have another.

        Raises:
            ChatTemplateError: There is none.
        """
        name = TOOL_USE if for_tools and TOOL_USE in self.sources else DEFAULT
        if name not in self.sources:
            others = ", ".join(self.sources)
            which = f" called {DEFAULT}, but {others}" if others else ""
            raise ChatTemplateError(
                f"{self.place} has no chat template{which}: give one (--chat-template FILE, or "
                f"chat_template of Model.open)"
            )
        return ChatTemplate(self.sources[name], self.tokens, name=self.place)


def read_templates(directory: Path) -> ChatTemplates:
    """What the files of a Hugging Face directory say about chat.

    Templates: `chat_template.jinja` and `additional_chat_templates/*.jinja`, else
    `chat_template.json`, else `chat_template` in `tokenizer_config.json`, a text or a list of
    `{"name", "template"}`. Tokens: `special_tokens_map.json` and `tokenizer_config.json`.

    Raises:
        ChatTemplateError: A file is damaged; the message names it.
    """
    config_path = directory / "tokenizer_config.json"
    config = _object(config_path)
    sources = _own_files(directory)
    place = directory / "chat_template.jinja"
    for path in (directory / "chat_template.json", config_path):
        if not sources:
            sources, place = _sources(_object(path).get("chat_template"), path), path
    tokens = _tokens(_object(directory / "special_tokens_map.json")) | _tokens(config)
    return ChatTemplates(sources, tokens, str(place))


def read_template_file(path: Path) -> str:
    """The text of a template.

    Raises:
        ChatTemplateError: It cannot be read, or is not UTF-8.
    """
    try:
        return read_bytes(path, most_bytes=_MOST_TEMPLATE_BYTES).decode("utf-8-sig")
    except (JsonTextError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"{path} is not a chat template: {error}") from error
    except OSError as error:
        raise ChatTemplateError(f"{path} cannot be read: {error.strerror or error}") from error


def bundled_templates(bundle: Bundle, token: Callable[[int], str | None]) -> ChatTemplates:
    """What a bundle says about chat.

    Args:
        bundle: Perhaps one without a template, of before bundles had any. A folder that is read as
            it is has those of a Hugging Face directory.
        token: The vocabulary's text for an id.

    Raises:
        ChatTemplateError: A file of it cannot be read.
    """
    manifest = bundle.manifest
    ids = {
        "bos_token": manifest.bos_token_id,
        "eos_token": next(iter(manifest.end_token_ids), None),
    }
    texts = {name: None if token_id is None else token(token_id) for name, token_id in ids.items()}
    tokens = {name: text for name, text in texts.items() if text is not None}
    if bundle.tokenizer_config is not None:
        found = read_templates(bundle.path)
        return ChatTemplates(found.sources, tokens | found.tokens, found.place)
    chat = manifest.chat
    if chat is None:
        return ChatTemplates({}, tokens, bundle.shown)
    paths = {name: bundle.file(file) for name, file in chat.templates.items()}
    sources = {name: read_template_file(path) for name, path in paths.items()}
    place = f"the chat template of {bundle.shown}" if DEFAULT in sources else bundle.shown
    return ChatTemplates(sources, tokens | chat.tokens, place)


def _own_files(directory: Path) -> dict[str, str]:
    default = directory / "chat_template.jinja"
    if not default.is_file():
        return {}
    others = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    paths = {path.stem: path for path in others} | {DEFAULT: default}
    return {name: read_template_file(path) for name, path in paths.items()}


def _sources(value: object, path: Path) -> dict[str, str]:
    """Templates by name from a text, or from a list of `{"name", "template"}`.

    Raises:
        ChatTemplateError: It is something else.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    items = value if isinstance(value, list) else [value]
    found = {}
    for item in items:
        name, source = (
            item.get(k) if isinstance(item, dict) else None for k in ("name", "template")
        )
        if not isinstance(name, str) or not isinstance(source, str):
            raise ChatTemplateError(f"{path}: chat_template is {item!r:.60}, expected text")
        found[name] = source
    return found


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens: `bos_token` and the like, as text or as an object with `content`."""
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _object(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; empty where there is no such file.

    Raises:
        ChatTemplateError: It is damaged.
    """
    if not path.exists():
        return {}
    with file_errors_as(ChatTemplateError, path):
        return read_object(path, most_bytes=_MOST_CONFIG_BYTES, long_integers=True)
