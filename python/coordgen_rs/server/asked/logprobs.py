"""Whether a request asks how likely its tokens were: the fields of each endpoint.

In: a body as `Fields`. Out: how many alternatives are told of each token, None where nothing is, or
a refusal that names the field.
"""

from coordgen_rs.generation.logprobs import MAX_ALTERNATIVES
from coordgen_rs.server.asked.fields import Fields

_INCLUDED = "message.output_text.logprobs"
_OF_NONE = (
    *("reasoning.encrypted_content", "message.input_image.image_url"),
    *("web_search_call.action.sources", "web_search_call.results", "file_search_call.results"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url"),
)
"""What belongs to items of which there are none here, such as thinking that is encrypted."""


def of_chat(fields: Fields) -> int | None:
    """`logprobs` and `top_logprobs` of `/v1/chat/completions`.

    Raises:
        RefusalError: One is malformed, or asks for alternatives of nothing.
    """
    return _with_alternatives(fields, fields.flag("logprobs"), "logprobs: true")


def of_completion(fields: Fields) -> int | None:
    """`logprobs` of `/v1/completions`, which is a number there.

    Raises:
        RefusalError: It is malformed.
    """
    fields.only("top_logprobs", 0, why="here logprobs is how many alternatives are told")
    return fields.count("logprobs", most=MAX_ALTERNATIVES)


def of_response(fields: Fields) -> int | None:
    """`include` and `top_logprobs` of `/v1/responses`.

    Raises:
        RefusalError: One is malformed, or asks for what cannot be included.
    """
    given = fields.take("include")
    included = [] if given is None else given
    known = (_INCLUDED, *_OF_NONE)
    if not isinstance(included, list) or any(name not in known for name in included):
        raise fields.wrong("include", f'must be a list, in which only "{_INCLUDED}" may be')
    return _with_alternatives(fields, _INCLUDED in included, f'include: ["{_INCLUDED}"]')


def _with_alternatives(fields: Fields, is_asked: bool, asked_by: str) -> int | None:
    """How many alternatives are told.

    Raises:
        RefusalError: `top_logprobs` is malformed, or asks for some of what is not told.
    """
    num = fields.count("top_logprobs", most=MAX_ALTERNATIVES)
    if num and not is_asked:
        raise fields.wrong("top_logprobs", f"is {num}, but needs {asked_by}")
    return (num or 0) if is_asked else None
