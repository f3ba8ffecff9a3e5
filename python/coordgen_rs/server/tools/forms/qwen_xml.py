"""Qwen3-Coder, Qwen3.5 and Qwen3.6: `<tool_call>`, and a function with its parameters as tags."""

from coordgen_rs.server.tools.forms.frame import Frame
from coordgen_rs.server.tools.spelling.xml import XML

FORM = Frame(
    name="qwen-xml",
    is_of=lambda template: "<function=" in template and "<parameter=" in template,
    opening="<tool_call>",
    begin="<function=",
    gap="\n",
    before="<function=",
    after=">",
    end="</function>",
    closing="</tool_call>",
    spelling=XML,
)
