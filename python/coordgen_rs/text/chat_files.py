"""Where chat templates come from: the files of a checkpoint, or a bundle's own.

In: a directory. Out: the sources of its templates, by name, and the texts of its special tokens.
Nothing is rendered or checked as Jinja here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import ChatTemplateError
from coordgen_rs.errors.json_text import JsonTextError, read_bytes, read_json
from coordgen_rs.text.chat_template import ChatTemplate

DEFAULT, TOOL_USE = "default", "tool_use"
"""The names that Hugging Face gives to templates: the one to take, and the one for tools."""

_MOST_TEMPLATE_BYTES = 4 << 20
_MOST_CONFIG_BYTES = 64 << 20


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
    try:
        found = read_json(path, most_bytes=_MOST_CONFIG_BYTES, long_integers=True)
    except (JsonTextError, OSError) as error:
        raise ChatTemplateError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ChatTemplateError(f"{path} does not hold an object")
    return found
