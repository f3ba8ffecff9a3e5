"""Phi-4-mini: a list in JSON between `<|tool_call|>` and `<|/tool_call|>`."""

from coordgen_rs.server.tools.forms.frame import Frame

FORM = Frame(
    name="phi",
    is_of=lambda template: "<|/tool_call|>" in template or "<|tool|>" in template,
    opening="<|tool_call|>",
    begin="[",
    first="[",
    before='{"name": "',
    after='", "arguments": ',
    end="}",
    between=", ",
    last="]",
    closing="<|/tool_call|>",
)
