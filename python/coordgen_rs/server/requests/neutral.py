"""Fields of other servers that may only say what happens anyway.

In: a body as `Fields`. Out: nothing, or a refusal that names the field that would change the
answer. Clients send such fields at their neutral values, as they have them in their own settings.
"""

from coordgen_rs.server.requests.fields import Fields

_LAST_N = 64
"""How far back llama.cpp and Ollama look for the penalty, where nothing else is said."""

_SAMPLERS = (
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc"),
    "temperature",
)
"""llama.cpp's samplers, in the order in which it applies them where none is given."""
_OURS = {"top_k", "top_p", "min_p", "temperature"}

_NO_SUCH_SAMPLER = "take top_p or min_p"
_NO_FUNCTIONS = "give tools"
_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "add_generation_prompt": ((True,), "an answer is the assistant's"),
    "backend_sampling": ((False,), "tokens are sampled in one way only"),
    "bad_words": (([],), "take logit_bias"),
    "continue_final_message": ((False,), "an answer begins a message of its own"),
    "dry_multiplier": ((0,), _NO_SUCH_SAMPLER),
    "dynatemp_range": ((0,), _NO_SUCH_SAMPLER),
    "function_call": (("auto", "none"), _NO_FUNCTIONS),
    "functions": (([],), _NO_FUNCTIONS),
    "id_slot": ((-1,), "a request takes the first place that is free"),
    "include_stop_str_in_output": ((False,), "an answer ends before a stop string"),
    "length_penalty": ((1,), "no beams are searched"),
    "min_keep": ((0,), "the samplers keep one token, and no more for their own sake"),
    "min_tokens": ((0,), "take ignore_eos"),
    "mirostat": ((0,), _NO_SUCH_SAMPLER),
    "n_probs": ((0,), "take logprobs"),
    "post_sampling_probs": ((False,), "logprobs are those of the model"),
    "priority": ((0,), "requests take turns"),
    "return_progress": ((False,), "a stream has no progress of its prompt"),
    "skip_special_tokens": ((True,), "special tokens are no text"),
    "spaces_between_special_tokens": ((True,), "special tokens are no text"),
    "stop_token_ids": (([],), "take stop"),
    "tfs_z": ((1,), _NO_SUCH_SAMPLER),
    "top_n_sigma": ((-1, 0), _NO_SUCH_SAMPLER),
    "typ_p": ((1,), _NO_SUCH_SAMPLER),
    "typical_p": ((1,), _NO_SUCH_SAMPLER),
    "use_beam_search": ((False,), "no beams are searched"),
    "verbosity": (("medium",), "the model has no such setting"),
    "xtc_probability": ((0,), _NO_SUCH_SAMPLER),
}
"""Values that change nothing, and what is said about others."""

_SETTINGS = (
    *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("dynatemp_exponent", "mirostat_eta", "mirostat_tau", "xtc_threshold"),
    "timings_per_token",
)
"""Settings of samplers that are off; and when figures are told, which is at the end here."""


def check_neutral(fields: Fields, *, has_penalty: bool) -> None:
    """Check that fields which cannot be had change nothing.

    Args:
        fields: The fields of the body, or of Ollama's options.
        has_penalty: Whether repetitions are made less likely.

    Raises:
        RefusalError: One would.
    """
    for name, (values, why) in _NEUTRAL.items():
        fields.only(name, *values, why=why)
    fields.ignore(*_SETTINGS)
    if not has_penalty:
        fields.ignore("repeat_last_n")
    fields.only("repeat_last_n", -1, _LAST_N, why="the penalty looks at the whole text")
    given = fields.take("samplers")
    if given is None:
        return
    named = given if isinstance(given, list) else []
    if [name for name in _SAMPLERS if name in named] != named or not {*named} >= _OURS:
        raise fields.wrong("samplers", f"must be in the usual order: {', '.join(_SAMPLERS)}")
