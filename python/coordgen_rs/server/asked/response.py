"""What `/v1/responses` is asked: OpenAI's Responses API, as far as it is text and functions.

In: a body as `Fields`. Out: an `Asked`, or a refusal that names the field. Nothing is stored, so no
response can be gone on with by its id: a dialogue is sent whole, as items of `input`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.model import Model
from coordgen_rs.server.asked import logprobs
from coordgen_rs.server.asked.completion import Asked, asked_rest, encoded
from coordgen_rs.server.asked.dialogue import AskedDialogue
from coordgen_rs.server.asked.effort import reasoning_of
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.formats import format_of_text
from coordgen_rs.server.asked.items import messages_of_items
from coordgen_rs.server.asked.limits import limit_of
from coordgen_rs.server.tools.functions import tools_of

_NOT_STORED = "the server stores no responses: send the whole dialogue as input"


def asked_response(fields: Fields) -> Asked:
    """The body of `/v1/responses`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    messages = messages_of_items(fields)
    limit = limit_of(fields, "max_output_tokens")
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, why=_NOT_STORED)
    fields.only("store", False, why=_NOT_STORED)
    fields.only("background", False, why=_NOT_STORED)
    fields.only("truncation", "disabled", why="a dialogue that is too long is refused")
    num_alternatives = logprobs.of_response(fields)
    tools = tools_of(fields, is_flat=True)
    effort = reasoning_of(fields)
    fields.ignore("max_tool_calls")
    schema = format_of_text(fields.nested("text"))

    def prompt(model: Model) -> NDArray[np.uint32]:
        text = AskedDialogue(messages, tools, None, effort).text(model)
        return encoded(model, text, "input", special_tokens=False)

    asked = asked_rest(
        fields, prompt, "input", limit, tools, schema, num_alternatives=num_alternatives
    )
    return replace(asked, splits_thinking=True)
