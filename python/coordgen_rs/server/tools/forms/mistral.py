"""Mistral: `[TOOL_CALLS]` and a list in JSON, or in newer models the name, `[ARGS]` and JSON."""

from coordgen_rs.server.tools.forms.frame import Frame

NAMED = Frame(
    name="mistral-named",
    is_of=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" in template,
    opening="[TOOL_CALLS]",
    begin="",
    before="",
    after="[ARGS]",
    between="[TOOL_CALLS]",
    closing="",
    hidden=("[ARGS]",),
    id_len=9,
)

LISTED = Frame(
    name="mistral-listed",
    is_of=lambda template: "[TOOL_CALLS]" in template,
    opening="[TOOL_CALLS]",
    begin="[",
    first="[",
    before='{"name": "',
    after='", "arguments": ',
    end="}",
    between=", ",
    last="]",
    closing="",
    id_len=9,
)
