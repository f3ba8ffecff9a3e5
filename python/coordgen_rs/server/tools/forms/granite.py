"""Granite 3: a list in JSON behind `<|tool_call|>`, up to the end of the answer."""

from coordgen_rs.server.tools.forms.frame import Frame

FORM = Frame(
    name="granite",
    is_of=lambda template: "<|tool_call|>" in template,
    opening="<|tool_call|>",
    begin="[",
    first="[",
    before='{"name": "',
    after='", "arguments": ',
    end="}",
    between=", ",
    last="]",
    closing="",
)
