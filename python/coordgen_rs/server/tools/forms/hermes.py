"""Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 4: JSON between `<tool_call>` marks.

Models whose template knows no tools are told of this form in words (`prompts.py`).
"""

from coordgen_rs.server.tools.forms.frame import Frame

FORM = Frame(
    name="hermes",
    is_of=lambda template: "<tool_call>" in template,
    opening="<tool_call>",
    gap="\n",
    before='{"name": "',
    after='", "arguments": ',
    end="}",
    closing="</tool_call>",
    is_bare=True,
)
