"""What `/v1/responses` is asked: OpenAI's Responses API, as far as it is text and functions.

In: a body as `Fields`. Out: an `Asked`, or a refusal that names the field. Nothing is stored, so no
response can be gone on with by its id: a dialogue is sent whole, as items of `input`.
"""

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.model import Model
from coordgen_rs.server.asked.completion import Asked, asked_rest, encoded
from coordgen_rs.server.asked.content import format_of_text
from coordgen_rs.server.asked.dialogue import AskedDialogue
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.asked.items import messages_of_items
from coordgen_rs.server.tools.functions import tools_of

_ENCRYPTED = ["reasoning.encrypted_content"]
"""What clients ask for to send it back; of thoughts that nobody encrypts there is none."""
_NOT_STORED = "the server stores no responses: send the whole dialogue as input"


def asked_response(fields: Fields) -> Asked:
    """The body of `/v1/responses`, `model` excepted.

    Raises:
        RefusalError: It cannot be answered.
    """
    messages = messages_of_items(fields)
    limit = fields.count("max_output_tokens", least=1)
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, why=_NOT_STORED)
    fields.only("store", False, why=_NOT_STORED)
    fields.only("background", False, why=_NOT_STORED)
    fields.only("truncation", "disabled", why="a dialogue that is too long is refused")
    fields.only("include", [], _ENCRYPTED, why="there is nothing more to include")
    tools = tools_of(fields, is_flat=True)
    fields.only("reasoning", {}, why="the model has no such setting")
    fields.ignore("max_tool_calls")
    schema = format_of_text(fields.nested("text"))

    def prompt(model: Model) -> NDArray[np.uint32]:
        text = AskedDialogue(messages, tools, None).text(model)
        return encoded(model, text, "input", special_tokens=False)

    return asked_rest(fields, prompt, "input", limit, tools, schema)
