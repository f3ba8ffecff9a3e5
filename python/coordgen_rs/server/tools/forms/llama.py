"""Llama 3.1 to 3.3: an answer that is nothing but JSON, now and then behind `<|python_tag|>`.

The code that these models may write behind that mark for tools of their own stays content.
"""

from coordgen_rs.server.tools.forms.frame import Frame

FORM = Frame(
    name="llama",
    is_of=lambda template: "<|start_header_id|>" in template and "parameters" in template,
    opening="<|python_tag|>",
    before='{"name": "',
    after='", "parameters": ',
    end="}",
    between="; ",
    closing="",
    is_bare=True,
    prefers_bare=True,
)
