"""What messages may hold: roles and fields that somebody reads.

In: messages of a body, and the source of a chat template. Out: nothing, or a refusal that names the
message's role or field. A field that is misspelt, or asks for what is not done, is refused as one
of the body is; what the template itself names is its own to read.
"""

import re
from collections.abc import Sequence
from typing import Any

from coordgen_rs.errors import arguments
from coordgen_rs.server.refusal import RefusalError

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that all templates get."""

_FIELDS = frozenset(
    (
        *("role", "content", "name", "tool_calls", "tool_call_id"),
        *("reasoning_content", "reasoning", "thinking"),
    )
)
_OF_CLIENTS = frozenset(
    (
        *("id", "type", "status", "annotations", "refusal", "parsed", "metadata", "timestamp"),
        *("cache_control", "extra"),
        *("provider_specific_fields", "thinking_blocks", "reasoning_details", "reasoning_items"),
    )
)
"""What clients keep beside an answer, and send back with it; it says nothing to the model."""


def check_known(messages: Sequence[dict[str, Any]], template: str) -> None:
    """Check the roles and the fields of messages. A field that is empty or false says nothing.

    Args:
        messages: The messages of the body, in its order.
        template: The chat template, in Jinja.

    Raises:
        RefusalError: One is known neither here nor to the template.
    """
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message["role"]
        if role not in ROLES and not _is_named(role, template):
            raise RefusalError(
                f"{where}.role is {arguments.shown(role)}, but must be one of {', '.join(ROLES)}, "
                "or a role that the model's chat template names",
                param=f"{where}.role",
                code="invalid_value",
            )
        for name, value in message.items():
            is_known = name in _FIELDS or name in _OF_CLIENTS or not value
            if not is_known and not _is_named(name, template):
                shown = arguments.shown(name).strip("'")
                raise RefusalError(
                    f"unknown field: {where}.{shown}",
                    param=f"{where}.{shown}",
                    code="unknown_parameter",
                )


def _is_named(word: str, template: str) -> bool:
    """Whether a template has a word in quotes, or as an attribute."""
    quoted = (f"'{word}'", f'"{word}"')
    attribute = rf"\.{re.escape(word)}\b"
    return any(one in template for one in quoted) or re.search(attribute, template) is not None
