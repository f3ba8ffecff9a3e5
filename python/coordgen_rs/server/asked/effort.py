"""How much the model is to think, as the variables of its chat template.

In: `reasoning_effort` of a body, or `reasoning` of a response's, and `chat_template_kwargs`. Out:
variables for a template, or a refusal where the two contradict each other. A template that reads
none of the variables gets none: a model that cannot think answers as it does in any case.
"""

from typing import Any

from coordgen_rs.errors import arguments
from coordgen_rs.model.prompts import TemplateFacts
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.text.thinking import CHANNELS

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What may be asked for, least first."""

_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch thinking on and off."""


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


def reasoning_of(fields: Fields) -> str | None:
    """The effort in `reasoning` of the Responses API; None if it says nothing.

    Raises:
        RefusalError: It is malformed.
    """
    reasoning = fields.nested("reasoning")
    effort = effort_of(reasoning, "effort")
    why = "thinking is given as it is, without a summary"
    for name in ("summary", "generate_summary"):  # "auto" is the best that there is
        reasoning.only(name, "auto", why=why)
    reasoning.end()
    return effort


def variables_of(
    effort: str | None,
    given: dict[str, Any] | None,
    facts: TemplateFacts,
    thinks: bool | None = None,
) -> dict[str, Any] | None:
    """What the template reads; None where nothing says anything.

    Args:
        effort: The effort that was asked for.
        given: The client's own variables.
        facts: What the template knows of.
        thinks: Whether the model is to think at all; None leaves it to the effort.

    Raises:
        RefusalError: They contradict each other.
    """
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
