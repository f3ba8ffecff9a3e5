"""What `generate` was given: what it does by itself, what the loop does, what is refused by name.

A field of the generation configuration or an argument of the model that is in no list here is
refused as well, so what a later version of transformers adds is never ignored.
"""

from functools import wraps
from typing import Any

from coordgen_rs.errors import OptionError

DONE = frozenset(
    {
        *("bad_words_ids", "begin_suppress_tokens", "bos_token_id", "do_sample", "eos_token_id"),
        *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff"),
        *("eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id"),
        *("forced_eos_token_id", "guidance_scale", "max_length", "max_new_tokens", "max_time"),
        *("min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "pad_token_id"),
        *("remove_invalid_values", "renormalize_logits", "repetition_penalty", "sequence_bias"),
        *("stop_strings", "suppress_tokens", "temperature", "token_healing", "top_h", "top_k"),
        *("top_p", "typical_p", "watermarking_config"),
    }
)
"""Fields that work as usual: in logits processors, stopping criteria, the prompt, the loop."""

IDLE = frozenset(
    {
        *("_from_model_config", "transformers_version", "assistant_confidence_threshold"),
        *("assistant_ensemble_weight", "assistant_lookbehind", "compile_config"),
        *("continuous_batching_config", "decoder_start_token_id", "disable_compile"),
        *("diversity_penalty", "early_stopping", "length_penalty", "low_memory", "max_cache_len"),
        *("max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("output_attentions", "output_hidden_states", "output_logits", "output_scores"),
        "target_lookbehind",
    }
)
"""Fields that change nothing in a loop with one sequence, a dynamic cache and no second model."""

CACHE_NAMES = ("past_key_values", "cache")
"""What the cache is called up to transformers 5.23, and since."""

ARGUMENTS = frozenset({"attention_mask", "logits_to_keep", "position_ids", *CACHE_NAMES})
"""Arguments of the model that the loop gives itself; others are refused."""

_SET_BY_GENERATE = {
    "use_cache": True,
    "synced_gpus": False,
    "output_attentions": False,
    "output_hidden_states": False,
}
_OTHERWISE = "leave it out, or use transformers' own loop"


def refuse_what_is_not_done(
    model: Any, input_ids: Any, config: Any, model_kwargs: dict[str, Any]
) -> None:
    """Refuse a request that drafts cannot answer as transformers' own loop does.

    Args:
        model: A causal language model.
        input_ids: The prompt, `(1, tokens) i64`.
        config: The `GenerationConfig` of the request.
        model_kwargs: What else `generate` was given.

    Raises:
        OptionError: There is more than one sequence, or something is asked for that is not done.
    """
    if input_ids.shape[0] != 1:
        raise OptionError(f"{input_ids.shape[0]} sequences in a call, but drafts need 1")
    for name, value in sorted(_not_done(config).items()):
        raise OptionError(f"`{name}={value!r}` is not for drafts: {_OTHERWISE}")
    for name, value in sorted(model_kwargs.items()):
        is_usual = value is None or value is _SET_BY_GENERATE.get(name)
        if name not in ARGUMENTS and not is_usual:
            raise OptionError(f"`{name}` is given, which drafts do not take: {_OTHERWISE}")
    _refuse_other_text(input_ids, config, model_kwargs)
    _refuse_other_inputs(model, input_ids, model_kwargs)


def _not_done(config: Any) -> dict[str, Any]:
    """Fields of a configuration, with their values, that ask for what the loop does not do."""
    unset = type(config)()
    usual = unset._get_default_generation_params() | {"cache_implementation": "dynamic"}
    names = set(vars(unset)).difference(DONE, IDLE)
    asked = {name: getattr(config, name, None) for name in names if not name.startswith("_")}
    return {
        name: value
        for name, value in asked.items()
        if value is not None
        and value != usual.get(name)
        and (value is not False or usual.get(name) is True)
    }


def given_cache(model_kwargs: dict[str, Any]) -> Any:
    """The cache that `generate` hands on, by whichever name; None for none."""
    given = (model_kwargs.get(name) for name in CACHE_NAMES)
    return next((cache for cache in given if cache is not None), None)


def _refuse_other_text(input_ids: Any, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Refuse padding, positions other than 0, 1, 2, .., and a cache of more than the prompt.

    Raises:
        OptionError: There is one of these.
    """
    num_tokens = input_ids.shape[1]
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise OptionError("the prompt is padded: drafts need all of its tokens")
    positions = model_kwargs.get("position_ids")
    if positions is not None and positions.flatten().tolist() != list(range(num_tokens)):
        raise OptionError(
            f"`position_ids` are not 0 to {num_tokens - 1}: {_OTHERWISE}; a prompt behind a cache "
            "holds the cache's tokens, too"
        )
    cache = given_cache(model_kwargs)
    num_cached = 0 if cache is None else cache.get_seq_length()
    mask_len = num_tokens if mask is None else mask.shape[1]
    if num_cached and (num_cached >= num_tokens or mask_len != num_tokens):
        raise OptionError(
            f"the given cache holds {num_cached} tokens and the prompt has {num_tokens}: it must "
            "hold the cache's tokens, and at least one more"
        )


def _refuse_other_inputs(model: Any, input_ids: Any, model_kwargs: dict[str, Any]) -> None:
    """Refuse a model that is told more than its tokens: soft prompts, say.

    Raises:
        OptionError: It prepares other inputs than these.
    """
    caches = {name: model_kwargs[name] for name in CACHE_NAMES if name in model_kwargs}
    positions = model_kwargs.get("position_ids")
    prepared = model.prepare_inputs_for_generation(
        input_ids, position_ids=positions, use_cache=True, is_first_iteration=True, **caches
    )
    tokens = prepared.pop("input_ids", None)
    others = [
        name
        for name, value in prepared.items()
        if name not in ARGUMENTS and not isinstance(value, bool | int | str | None)
    ]
    if tokens is None or tokens.tolist() != input_ids.tolist():
        others.append("input_ids")
    others += [name for name in CACHE_NAMES if prepared.get(name) is not caches.get(name)]
    if not _are_same(prepared.get("position_ids"), positions):
        others.append("position_ids")
    if others:
        raise OptionError(
            f"{type(model).__name__} prepares its own {', '.join(sorted(others))} (a soft prompt, "
            "say), which drafts do not take: use transformers' own loop"
        )


def _are_same(prepared: Any, given: Any) -> bool:
    if prepared is None or given is None:
        return prepared is given
    return bool(prepared.flatten().tolist() == given.flatten().tolist())


def hand_on_what_was_given(loop: type) -> None:
    """Let `generate` give loops of this class what it gives its own: streamers and tokenizers.

    Of what it takes out of its arguments, transformers 5.23 hands a custom loop only what its own
    `_sample` does not take, so a streamer is never called and stop strings find no tokenizer.
    Other loops are handed what they ever were.
    """
    from transformers import GenerationMixin

    mixin: Any = GenerationMixin
    extract = getattr(mixin, "_extract_generation_mode_kwargs", None)
    if extract is None or hasattr(extract, "handed_on_to"):
        return

    @wraps(extract)
    def extract_for(self: Any, custom_generate: Any, *given: Any, **named: Any) -> Any:
        known = None if isinstance(custom_generate, loop) else custom_generate
        return extract(self, known, *given, **named)

    extract_for.handed_on_to = loop  # type: ignore[attr-defined]
    mixin._extract_generation_mode_kwargs = extract_for
