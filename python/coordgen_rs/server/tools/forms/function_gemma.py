"""FunctionGemma, a Gemma 3: as Gemma 4, with marks of its own."""

from coordgen_rs.server.tools.forms.frame import Frame
from coordgen_rs.server.tools.spelling.gemma import spelt_by_gemma

_QUOTE = "<escape>"

FORM = Frame(
    name="function-gemma",
    is_of=lambda template: "<start_function_call>" in template,
    opening="<start_function_call>",
    begin="call:",
    before="call:",
    after="{",
    end="}",
    closing="<end_function_call>",
    spelling=spelt_by_gemma(_QUOTE),
    hidden=(_QUOTE,),
)
