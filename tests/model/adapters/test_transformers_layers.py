"""Models of transformers by their layers: windows are followed past their end, others refused."""

import pytest

from coordgen_rs.adapters.transformers import Drafted, TransformersHost
from coordgen_rs.adapters.transformers.host import cache_name
from tiny_transformers import (
    CACHE,
    GREEDY,
    alike,
    both,
    gpt2,
    model_of,
    prompt_of,
    refuse,
    torch,
    transformers,
)

PROMPT = prompt_of(14)
HALF = {"layer_types": ["sliding_attention", "full_attention"]}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, **HALF}


class TestWindows:
    @pytest.mark.parametrize("trees", [True, False])
    @pytest.mark.parametrize(
        ("family", "sizes"),
        [
            ("Mistral", {}),
            ("Phi3", {}),
            ("Gemma2", GEMMA),
            ("Gemma3", GEMMA),
            ("Qwen2", {"use_sliding_window": True, **HALF}),
        ],
        ids=lambda given: given if isinstance(given, str) else "",
    )
    def test_answers_go_past_the_window_as_they_do_alone(self, family, sizes, trees):
        model = model_of(family, sliding_window=64, **sizes)
        drafted = Drafted(costs=None, trees=trees)
        for num_tokens in (40, 100):
            alike(model, drafted, prompt_of(num_tokens), max_new_tokens=60)
            assert drafted.num_steps < 60

    def test_a_prompt_of_a_window_and_its_neighbours(self):
        model = model_of("Mistral", sliding_window=16)
        for num_tokens in (15, 16, 17):
            alike(model, Drafted(costs=None), prompt_of(num_tokens))

    def test_a_given_cache_that_keeps_everything_is_gone_on_with_past_the_window(self):
        model = model_of("Mistral", sliding_window=16)

        def ask(**asked):
            cache = transformers.DynamicCache()
            given = {CACHE: cache, **GREEDY, **asked}
            first = model.generate(prompt_of(21), **given)
            second = model.generate(torch.cat([first, prompt_of(21)], dim=1), **given)
            return second.tolist(), cache.get_seq_length()

        both(Drafted(costs=None), ask)


class TestNames:
    def test_a_cache_is_given_by_the_name_that_a_model_takes(self):
        def older(input_ids, past_key_values=None):
            """Code that came with a checkpoint, in any version."""

        def newer(input_ids, cache=None):
            """As in transformers 5.24."""

        assert cache_name(older) == "past_key_values"
        assert cache_name(newer) == "cache"
        assert cache_name(model_of("Llama").forward) == CACHE


class TestRefusals:
    @pytest.mark.parametrize(
        ("family", "sizes", "kind"),
        [
            (
                "Qwen3Next",
                {"layer_types": ["linear_attention", "full_attention"], "num_experts": 2},
                "linear_attention",
            ),
            ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "conv"),
        ],
        ids=lambda given: given if isinstance(given, str) else "",
    )
    def test_layers_whose_state_cannot_be_cut_are_refused_by_kind(self, family, sizes, kind):
        model = model_of(family, **sizes)
        refuse(model, f"'{kind}', whose cache cannot be cut", PROMPT)

    def test_windows_of_several_lengths_are_refused(self):
        model = model_of("Mistral", sliding_window=16)
        model.config.layer_types = ["sliding_attention", "chunked_attention"]
        model.config.attention_chunk_size = 8
        refuse(model, "'chunked_attention'", PROMPT)

    def test_a_model_with_an_encoder_is_refused(self):
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
        config = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
        model = transformers.T5ForConditionalGeneration(config).eval()
        refuse(model, r"encoder", PROMPT)

    def test_attention_without_positions_verifies_chains_and_refuses_trees(self):
        torch.manual_seed(3)
        config = transformers.BloomConfig(
            vocab_size=64, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.5
        )
        config.eos_token_id = None
        model = transformers.BloomForCausalLM(config).eval()
        alike(model, Drafted(costs=None, trees=False), prompt_of(21))
        refuse(model, r"takes no positions.*trees=False", PROMPT)

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    @pytest.mark.parametrize("weights", ["bfloat16", "float16"])
    def test_half_the_width_takes_trees(self, weights, attention):
        model = model_of("Llama", initializer_range=0.02).to(getattr(torch, weights))
        model.set_attn_implementation(attention)
        TransformersHost(model, takes_trees=True)

    @pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
    def test_a_model_that_ignores_masks_or_positions_of_trees_is_refused(self, ignored):
        model = gpt2()
        inner = model.transformer.forward

        def ignores(*given, **named):
            named[ignored] = None
            return inner(*given, **named)

        model.transformer.forward = ignores
        alike(model, Drafted(costs=None, trees=False), prompt_of(21))
        refuse(model, r"does not follow a 4-D mask.*trees=False", PROMPT)
