"""LFM2 and LFM2.5: calls as a list in Python between two marks."""

from coordgen_rs.server.tools.forms.frame import Frame
from coordgen_rs.server.tools.spelling.pythonic import PYTHONIC

FORM = Frame(
    name="lfm2",
    is_of=lambda template: "<|tool_call_start|>" in template or "<|tool_list_start|>" in template,
    opening="<|tool_call_start|>",
    begin="[",
    first="[",
    before="",
    after="(",
    end=")",
    between=", ",
    last="]",
    closing="<|tool_call_end|>",
    spelling=PYTHONIC,
)
