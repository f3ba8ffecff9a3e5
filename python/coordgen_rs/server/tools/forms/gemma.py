"""Gemma 4: `call:NAME{..}` between two marks."""

from coordgen_rs.server.tools.forms.frame import Frame
from coordgen_rs.server.tools.spelling.gemma import spelt_by_gemma

_QUOTE = '<|"|>'

FORM = Frame(
    name="gemma",
    is_of=lambda template: "<|tool_call>" in template,
    opening="<|tool_call>",
    begin="call:",
    before="call:",
    after="{",
    end="}",
    closing="<tool_call|>",
    spelling=spelt_by_gemma(_QUOTE),
    hidden=(_QUOTE,),
)
