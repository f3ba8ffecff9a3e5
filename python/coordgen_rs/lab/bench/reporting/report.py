"""Which sections are measured, and the document of all of them, which `schema.json` describes.

In: names and settings; measured sections. Out: names that can be measured; JSON types. It prints
nothing (`lab/commands/bench.py`), and measures nothing (`../sections/`).
"""

from collections.abc import Sequence
from importlib import resources
from typing import Any

from coordgen_rs.bundle.json_text import parse_json
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.measuring.settings import Settings
from coordgen_rs.lab.bench.reporting.condition import Condition
from coordgen_rs.lab.bench.reporting.section import Section
from coordgen_rs.lab.bench.sections import SECTIONS

SCHEMA_VERSION = 1


def chosen_sections(names: Sequence[str] | None, settings: Settings) -> list[str]:
    """The sections to measure, in their order.

    Args:
        names: What was asked for; None for all that the settings allow.
        settings: With or without data and a memory budget.

    Raises:
        OptionError: No such section, one that needs prompts where there are none, or one that
            cannot be measured on a target that is streamed.
    """
    if names is None:
        streams = settings.memory_budget is not None
        wanted = [name for name in SECTIONS if SECTIONS[name].may_stream or not streams]
    else:
        for name in names:
            if name not in SECTIONS:
                known = ", ".join(SECTIONS)
                raise OptionError(f"section is {name!r}, but must be one of {known}")
        wanted = [name for name in SECTIONS if name in names]
    for name in wanted:
        if SECTIONS[name].needs_data and settings.data is None:
            raise OptionError(f"section {name!r} needs DATA, a file of prompts")
        if settings.memory_budget is not None and not SECTIONS[name].may_stream:
            raise OptionError(f"section {name!r} cannot be measured with a memory budget")
    return wanted


def document(
    condition: Condition, sections: Sequence[Section], *, is_complete: bool
) -> dict[str, Any]:
    """All figures as JSON types.

    Args:
        condition: The condition of all sections.
        sections: Those that were measured.
        is_complete: Whether these are all that were asked for.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "is_complete": is_complete,
        "condition": condition.to_json(),
        "sections": {section.name: section.to_json() for section in sections},
    }


def schema() -> dict[str, Any]:
    """The JSON schema of `document`."""
    text = resources.files(__package__).joinpath("schema.json").read_bytes()
    parsed: dict[str, Any] = parse_json(text, "schema.json")
    return parsed
