"""Each field and argument of transformers' `generate` is done, without meaning, or refused.

The lists are checked against what the installed version has: a new field or argument is refused by
name until somebody has looked at it.
"""

import inspect

import pytest

from coordgen_rs.adapters.transformers import Drafted
from coordgen_rs.adapters.transformers.arguments import ARGUMENTS, DONE, IDLE
from coordgen_rs.errors import OptionError
from tiny_transformers import (
    CACHE,
    alike,
    gpt2,
    model_of,
    prompt_of,
    refuse,
    tokenizer,
    torch,
    transformers,
)

PROMPT = prompt_of(14)
REFUSED_VALUES = {
    "assistant_early_exit": 1,
    "cache_config": {"nbits": 4},
    "cache_implementation": "static",
    "constraints": [object()],
    "dola_layers": "low",
    "force_words_ids": [[3]],
    "is_assistant": True,
    "num_beam_groups": 2,
    "num_beams": 2,
    "num_return_sequences": 2,
    "penalty_alpha": 0.5,
    "prefill_chunk_size": 4,
    "prompt_lookup_num_tokens": 3,
    "return_dict_in_generate": True,
    "speculation_type": "dflash",
    "use_cache": False,
    "use_mtp": True,
}
IDLE_VALUES = {
    "assistant_confidence_threshold": 0.1,
    "assistant_lookbehind": 3,
    "disable_compile": True,
    "early_stopping": True,
    "length_penalty": 2.0,
    "low_memory": True,
    "num_assistant_tokens": 3,
    "output_attentions": False,
    "output_hidden_states": False,
    "target_lookbehind": 3,
}


@pytest.fixture(scope="module")
def llama():
    return model_of("Llama")


@pytest.fixture
def config():
    return transformers.GenerationConfig(max_length=22)


class TestFields:
    def test_each_field_is_in_one_list(self):
        known = [*DONE, *IDLE, *REFUSED_VALUES]
        assert len(known) == len(set(known))
        assert set(vars(transformers.GenerationConfig())) <= set(known)

    @pytest.mark.parametrize("name", sorted(REFUSED_VALUES))
    def test_a_field_that_only_other_loops_do_is_refused_by_name(self, llama, config, name):
        setattr(config, name, REFUSED_VALUES[name])
        with pytest.raises(OptionError, match=f"`{name}="):
            Drafted(costs=None)(llama, PROMPT, generation_config=config)

    @pytest.mark.parametrize("name", sorted(IDLE_VALUES))
    def test_a_field_without_meaning_changes_nothing(self, llama, name):
        asked = {name: IDLE_VALUES[name]}
        alike(llama, Drafted(costs=None), PROMPT, max_new_tokens=8, **asked)

    def test_a_field_of_a_later_version_is_refused_and_one_that_is_none_is_not(self, llama):
        class Later(transformers.GenerationConfig):
            def __init__(self, **given):
                super().__init__(**given)
                self.looks_ahead = None

        asked = Later(max_length=22, do_sample=False)
        asked.template_of_the_file = "chatml"
        said = Drafted(costs=None)(llama, PROMPT, generation_config=asked)
        assert said.shape == (1, 22)
        asked.looks_ahead = 4
        with pytest.raises(OptionError, match="`looks_ahead=4`"):
            Drafted(costs=None)(llama, PROMPT, generation_config=asked)

    def test_defaults_of_every_field_are_taken(self, llama, config):
        for name, value in config._get_default_generation_params().items():
            if name != "max_length":
                setattr(config, name, value)
        assert Drafted(costs=None)(llama, PROMPT, generation_config=config).shape == (1, 22)


class TestArguments:
    def test_each_argument_of_the_model_is_given_by_the_loop_or_refused_by_name(
        self, llama, config
    ):
        names = {
            *inspect.signature(llama.forward).parameters,
            *inspect.signature(gpt2().forward).parameters,
            *inspect.signature(llama.prepare_inputs_for_generation).parameters,
            *transformers.utils.TransformersKwargs.__optional_keys__,
            *("encoder_outputs", "pixel_values", "input_features", "assistant_model"),
            *("assistant_tokenizer", "of_a_later_version"),
        }
        names -= {"input_ids", "kwargs", "use_cache", "is_first_iteration", *ARGUMENTS}
        assert len(names) > 15
        for name in sorted(names):
            with pytest.raises(OptionError, match=f"`{name}` is given"):
                Drafted(costs=None)(llama, PROMPT, generation_config=config, **{name: PROMPT})

    @pytest.mark.parametrize(
        ("asked", "named"),
        [
            ({"position_ids": 3 * torch.arange(14)[None]}, "position_ids"),
            ({"position_ids": 1 + torch.arange(14)[None]}, "position_ids"),
            ({"attention_mask": torch.tensor([[0] * 3 + [1] * 11])}, "padded"),
            ({"attention_mask": torch.tensor([[1] * 13 + [0]])}, "padded"),
            ({"num_return_sequences": 2, "do_sample": True}, "2 sequences"),
            ({"num_beams": 2}, "2 sequences"),
            ({"synced_gpus": True}, "`synced_gpus`"),
            ({"output_attentions": True, "return_dict_in_generate": True}, "return_dict"),
            ({"use_cache": False}, "`use_cache=False`"),
        ],
        ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
    )
    def test_what_would_change_the_answer_is_refused_through_generate(self, llama, asked, named):
        refuse(llama, named, PROMPT, **asked)

    def test_embeddings_instead_of_tokens_are_refused_by_name(self, llama):
        embedded = llama.get_input_embeddings()(PROMPT)
        for prompt in ({}, {"input_ids": PROMPT}):
            refuse(llama, "`inputs_embeds`", inputs_embeds=embedded, **prompt)

    def test_the_usual_is_taken_through_generate(self, llama):
        asked = {
            "attention_mask": torch.ones_like(PROMPT),
            "position_ids": torch.arange(14)[None],
            "logits_to_keep": 1,
            "use_cache": True,
            "tokenizer": tokenizer(),
        }
        alike(llama, Drafted(costs=None), PROMPT, **asked)


class TestPreparedInputs:
    """PEFT puts soft prompts into a model by replacing this method of it."""

    def prepared(self, llama, **others):
        def prepare(input_ids, **given):
            usual = type(llama).prepare_inputs_for_generation(llama, input_ids, **given)
            return {**usual, **others}

        model = model_of("Llama")
        model.prepare_inputs_for_generation = prepare
        return model

    @pytest.mark.parametrize(
        "others",
        [
            {"inputs_embeds": torch.zeros(1, 16, 32)},
            {"input_ids": PROMPT[:, 1:]},
            {"position_ids": 2 * torch.arange(14)[None]},
            {CACHE: transformers.DynamicCache()},
            {"visual": [1]},
        ],
        ids=lambda others: next(iter(others)),
    )
    def test_a_model_that_is_told_more_than_its_tokens_is_refused(self, llama, others):
        name = next(iter(others))
        refuse(self.prepared(llama, **others), f"prepares its own {name}", PROMPT)

    def test_a_method_that_changes_nothing_is_taken(self, llama):
        alike(self.prepared(llama), Drafted(costs=None), PROMPT)
