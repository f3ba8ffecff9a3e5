"""The functions that a request offers to the model, and whether it has to call one.

In: `tools`, `tool_choice` and `parallel_tool_calls` of a body. Out: `Tools`, or a refusal that
names the field; and where a call is asked for, the grammar that it is held to. What a model says is
read in `calls.py`.
"""

import re
from dataclasses import dataclass
from typing import Any

from coordgen_rs.errors import OptionError
from coordgen_rs.grammar.kinds import JsonSchema
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.refusal import RefusalError

MOST_TOOLS = 128
"""The same limit as OpenAI's."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_ELSEWHERE = {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
"""Where a schema may have properties that its `additionalProperties` does not know of."""


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call.

    Attributes:
        listed: The functions as the request lists them.
        parameters: The JSON schema of each function's arguments, by its name.
        forced: The one to call; None leaves the choice to the model.
        is_required: Whether one has to be called.
        is_parallel: Whether more than one may be called.
    """

    listed: list[dict[str, Any]]
    parameters: dict[str, dict[str, Any]]
    forced: str | None = None
    is_required: bool = False
    is_parallel: bool = True

    def grammar(self) -> JsonSchema | None:
        """What the answer is held to; None where the model may also say something else.

        The arguments of the forced function, or else a list of `{"name", "arguments"}`.

        Raises:
            RefusalError: The schema of a function cannot be used.
        """
        if not self.is_required:
            return None
        schema = self._list_of_calls()
        if self.forced is not None:
            schema = self.parameters[self.forced]
        try:
            return JsonSchema(schema)
        except OptionError as error:
            raise RefusalError(
                f"tools: the parameters of a function cannot be used: {error}",
                param="tools",
                code="invalid_value",
            ) from error

    def _list_of_calls(self) -> dict[str, Any]:
        calls, definitions = [], dict[str, Any]()
        for number, (name, parameters) in enumerate(self.parameters.items()):
            place = f"#/$defs/t{number}"
            definitions[f"t{number}"] = _moved(parameters, place)
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, "arguments": {"$ref": place}},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions}
        return schema if self.is_parallel else schema | {"maxItems": 1}


def tools_of(fields: Fields) -> Tools | None:
    """The tools of a request; None if there are none, or none may be called.

    Raises:
        RefusalError: They are malformed, or the choice is none of them.
    """
    given, choice = fields.take("tools"), fields.take("tool_choice")
    is_parallel = fields.flag("parallel_tool_calls", default=True)
    if given is not None and not isinstance(given, list):
        raise fields.wrong("tools", "must be a list of objects")
    if len(given or ()) > MOST_TOOLS:
        raise fields.wrong("tools", f"may hold {MOST_TOOLS} functions")
    parameters: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(given or ()):
        name, schema = _function(Fields(tool, f"tools[{index}]"))
        if name in parameters:
            raise fields.wrong("tools", f"has two functions of the name {name}")
        parameters[name] = schema
    if choice in (None, "auto", "none", "required"):
        forced = None
    else:
        forced = _chosen(Fields(choice, "tool_choice"))
        if forced not in parameters:
            raise fields.wrong("tool_choice", f"asks for {forced!r:.80}, which is not among tools")
    if choice == "required" and not parameters:
        raise fields.wrong("tool_choice", "is required, but there are no tools")
    if not parameters or choice == "none":
        return None
    is_required = choice not in (None, "auto")
    return Tools(list(given or ()), parameters, forced, is_required, is_parallel)


def _function(tool: Fields) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a tool.

    Raises:
        RefusalError: It is malformed, or no function.
    """
    tool.only("type", "function", why='its type must be "function"')
    function = tool.nested("function")
    name = function.text("name")
    if name is None or not _NAME.fullmatch(name):
        raise function.wrong("name", "must be 1 to 64 ASCII letters, digits, _ and -")
    function.text("description")
    function.flag("strict")  # held to where the call is asked for, whatever this says
    parameters = function.take("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise function.wrong("parameters", "must be a JSON schema, an object")
    function.end()
    tool.end()
    if not parameters:
        return name, _NO_PARAMETERS
    if _ELSEWHERE & parameters.keys():
        return name, parameters
    # Arguments that the function does not name are of no use to anybody.
    return name, {"additionalProperties": False} | parameters


def _chosen(choice: Fields) -> str:
    """The name of the function that a `tool_choice` asks for.

    Raises:
        RefusalError: It is malformed.
    """
    why = 'it must be "none", "auto", "required", or name a function'
    choice.only("type", "function", why=why)
    function = choice.nested("function")
    name = function.text("name")
    if name is None:
        raise RefusalError(f"tool_choice is not supported: {why}", param="tool_choice")
    function.end()
    choice.end()
    return name


def _moved(schema: Any, place: str) -> Any:
    """A schema that stands at `place` of another one: what it refers to in itself is there, too."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _moved(value, place) for name, value in schema.items()}
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found["$ref"] = place + reference[1:]
    return found
