"""The functions that a request offers to the model, and whether it has to call one.

In: `tools`, `tool_choice` and `parallel_tool_calls` of a body. Out: `Tools`, or a refusal that
names the field. How the answer is constrained to them stands in `dialects/request.py`, how calls
are read in `calls.py`.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordgen_rs.server.api_error import APIError
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.tools.syntax import choices_of, kind_of

MOST_TOOLS = 128
"""The same limit as OpenAI's."""

NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}", re.ASCII)
"""A function's name. OpenAI's own have no dots, colons and slashes, those of MCP servers may."""

_NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_HOSTED = re.compile(
    r"(web_search|computer)(_preview)?(_\d{4}_\d{2}_\d{2})?|computer_use_preview|file_search|mcp|"
    r"code_interpreter|image_generation|local_shell|shell|apply_patch|tool_search|namespace",
    re.ASCII,
)
"""Tools that OpenAI's own models and server bring along: clients offer them to whoever has them."""
NAMELESS = "must be the function's name"
"""What is said of a function without one."""
_CHOICES = 'it must be "none", "auto", "required", allowed_tools, or name a function'


class Function(NamedTuple):
    """A function that is offered.

    Attributes:
        name: Its name.
        parameters: The JSON schema of its arguments.
        is_strict: Whether this schema has to be followed, or the request refused.
        number: Its place among the tools that the client has sent.
        listed: The function as chat templates read it.
    """

    name: str
    parameters: dict[str, Any]
    is_strict: bool
    number: int
    listed: dict[str, Any]


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call.

    Attributes:
        functions: Those that it is told of.
        callable: The JSON schema of the arguments of each that may be called, by its name.
        forced: The one to call; None leaves the choice to the model.
        is_required: Whether one has to be called.
        is_parallel: Whether more than one may be called.
        field: The field of a function's schema, with `{}` for its number.
    """

    functions: list[Function]
    callable: dict[str, dict[str, Any]]
    forced: str | None = None
    is_required: bool = False
    is_parallel: bool = True
    field: str = "tools[{}].function.parameters"

    @property
    def listed(self) -> list[dict[str, Any]]:
        """The functions as chat templates read them."""
        return [one.listed for one in self.functions]

    @property
    def strict(self) -> set[str]:
        """The functions whose schema has to be followed, or the request refused."""
        return {one.name for one in self.functions if one.is_strict and one.name in self.callable}

    def field_of(self, name: str) -> str:
        """The field of a function's schema in the request."""
        return next(self.field.format(one.number) for one in self.functions if one.name == name)


def tools_of(fields: Fields, *, is_flat: bool = False) -> Tools | None:
    """The tools of a request; None if there are none, or none may be called.

    Args:
        fields: The body.
        is_flat: Whether functions stand in the tools themselves, as in the Responses API.

    Raises:
        APIError: They are malformed, or the choice is none of them.
    """
    given, choice = fields.take("tools"), fields.take("tool_choice")
    is_parallel = fields.flag("parallel_tool_calls", default=True)
    if given is not None and not isinstance(given, list):
        raise fields.wrong("tools", "must be a list of objects")
    if len(given or ()) > MOST_TOOLS:
        raise fields.wrong("tools", f"may hold {MOST_TOOLS} functions")
    functions = [
        _function(tool, number, is_flat)
        for number, tool in enumerate(given or ())
        if not (is_flat and _is_hosted(tool))
    ]
    parameters: dict[str, dict[str, Any]] = {}
    for one in functions:
        if one.name in parameters:
            raise fields.wrong("tools", f"has two functions of the name {one.name}")
        parameters[one.name] = one.parameters
    mode, allowed = _choice(fields, choice, is_flat)
    for name in allowed:
        if name not in parameters:
            raise fields.wrong("tool_choice", f"asks for {name!r:.80}, which is not among tools")
    is_required = mode in ("required", "function")
    if is_required and not parameters:
        raise fields.wrong("tool_choice", "is required, but there are no tools")
    if not parameters or mode == "none":
        return None
    callable_ = {name: parameters[name] for name in allowed or parameters}
    forced = allowed[0] if mode == "function" else None
    field = "tools[{}].parameters" if is_flat else Tools.field
    return Tools(functions, callable_, forced, is_required, is_parallel, field)


def _is_hosted(tool: object) -> bool:
    """Whether a tool is one of OpenAI's own, which is left out where there is none of it."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def _function(given: object, number: int, is_flat: bool) -> Function:
    """The function that a tool is.

    Raises:
        APIError: It is malformed, or no function.
    """
    tool = Fields(given, f"tools[{number}]")
    tool.only("type", "function", why="tools are functions")
    if is_flat:
        function = tool
        tool.only("defer_loading", False, why="all tools are loaded")
    else:
        function = tool.nested("function")
    name = function.text("name")
    if name is None or not NAME.fullmatch(name):
        raise function.wrong("name", "must be 1 to 128 ASCII letters, digits, and _-.:/")
    told: dict[str, Any] = {"name": name}
    if (description := function.text("description")) is not None:
        told["description"] = description
    is_strict = function.flag("strict")
    parameters = function.take("parameters")
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise function.wrong("parameters", "must be a JSON schema, an object")
        if not any(kind_of(one) in (None, "object") for one in choices_of(parameters, parameters)):
            raise function.wrong(
                "parameters", "must be the schema of an object, which arguments are"
            )
        told["parameters"] = parameters
    function.end()
    tool.end()
    arguments = parameters | {"type": "object"} if parameters else _NO_PARAMETERS
    listed = {"type": "function", "function": told}
    return Function(name, arguments, is_strict, number, listed)


def _choice(fields: Fields, choice: object, is_flat: bool) -> tuple[str, list[str]]:
    """What a `tool_choice` asks for: a mode, and the functions that it names.

    Raises:
        APIError: It is malformed.
    """
    if choice is None:
        return "auto", []
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise fields.wrong("tool_choice", f"is not supported: {_CHOICES}")
        return choice, []
    chosen = Fields(choice, "tool_choice")
    kind = chosen.text("type")
    if kind == "allowed_tools":
        return _allowed(chosen, is_flat)
    if kind != "function":
        raise chosen.unsupported("type", f"is not supported: {_CHOICES}")
    function = chosen if is_flat else chosen.nested("function")
    name = function.text("name")
    if name is None:
        raise APIError(f"tool_choice is not supported: {_CHOICES}", param="tool_choice")
    function.end()
    chosen.end()
    return "function", [name]


def _allowed(chosen: Fields, is_flat: bool) -> tuple[str, list[str]]:
    """Mode and names of an `allowed_tools`.

    Raises:
        APIError: It is malformed.
    """
    allowed = chosen if is_flat else chosen.nested("allowed_tools")
    mode, listed = allowed.text("mode"), allowed.take("tools")
    if mode not in ("auto", "required"):
        raise allowed.wrong("mode", 'must be "auto" or "required"')
    if not isinstance(listed, list) or not listed:
        raise allowed.wrong("tools", "must be a list of one function or more")
    names = []
    for index, item in enumerate(listed):
        if is_flat and _is_hosted(item):
            continue
        one = Fields(item, f"{allowed.name('tools')}[{index}]")
        one.only("type", "function", why="tools are functions")
        function = one if is_flat or one.has("name") else one.nested("function")
        names.append(function.needed("name", NAMELESS))
        function.end()
        one.end()
    allowed.end()
    chosen.end()
    return mode, [*dict.fromkeys(names)]
