"""Requests to transformers with its usual extras: drafts change nothing of what it says."""

import threading
from types import SimpleNamespace

import pytest

from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters.host import measured_costs
from coordgen_rs.adapters.transformers import Drafted, TransformersHost
from coordgen_rs.errors import OptionError
from tiny_transformers import (
    CACHE,
    GREEDY,
    VOCAB_SIZE,
    Recorded,
    alike,
    both,
    gpt2,
    model_of,
    prompt_of,
    refuse,
    tokenizer,
    torch,
    transformers,
)

PROMPT = prompt_of(21)


@pytest.fixture(scope="module")
def llama():
    return model_of("Llama")


@pytest.fixture
def drafted():
    return Drafted(costs=None)


class TestStreamers:
    def test_a_streamer_is_told_the_same_tokens_and_the_end(self, llama, drafted):
        def told(**asked):
            streamer = Recorded()
            llama.generate(PROMPT, streamer=streamer, **GREEDY, **asked)
            assert streamer.num_ends == 1
            return streamer.told

        both(drafted, told)
        assert drafted.num_steps < 24

    def test_a_reader_in_another_thread_gets_the_text_and_ends(self, llama, drafted):
        def read(**asked):
            streamer = transformers.TextIteratorStreamer(tokenizer(), timeout=600)
            given = {"streamer": streamer, **GREEDY, **asked}
            worker = threading.Thread(target=llama.generate, args=(PROMPT,), kwargs=given)
            worker.start()
            text = "".join(streamer)
            worker.join()
            return text

        assert len(both(drafted, read)) >= 24

    def test_a_streamer_that_fails_ends_the_answer_and_the_next_is_right(self, llama, drafted):
        class Failing(Recorded):
            def put(self, tokens):
                super().put(tokens)
                if len(self.told) == 6:
                    raise BrokenPipeError

        cache = transformers.DynamicCache()
        given = {"custom_generate": drafted, "streamer": Failing(), CACHE: cache}
        with pytest.raises(BrokenPipeError):
            llama.generate(PROMPT, **given, **GREEDY)
        assert cache.get_seq_length() == PROMPT.shape[1] + 4
        alike(llama, drafted, PROMPT)

    def test_other_loops_are_handed_what_they_ever_were(self, llama, drafted):
        handed = {}

        def loop(model, input_ids, own=None, **given):
            handed.update(given, own=own)
            return input_ids

        llama.generate(PROMPT, custom_generate=loop, streamer=Recorded(), own=3, max_new_tokens=4)
        assert handed["own"] == 3
        assert "streamer" not in handed


class TestEnds:
    def test_a_stop_string_ends_the_answer_where_it_does_alone(self, llama, drafted):
        words = tokenizer()
        plain = alike(llama, drafted, PROMPT)
        stop = words.decode(plain[0][PROMPT.shape[1] + 6 :][:3])
        asked = {"stop_strings": [stop], "tokenizer": words}
        said = alike(llama, drafted, PROMPT, **asked)
        assert PROMPT.shape[1] < len(said[0]) < PROMPT.shape[1] + 24

    def test_end_tokens_are_those_of_the_request(self, llama, drafted):
        said = alike(llama, drafted, PROMPT)[0][PROMPT.shape[1] :]
        for end in dict.fromkeys(said):
            ours = alike(llama, drafted, PROMPT, eos_token_id=end)
            assert len(ours[0]) == PROMPT.shape[1] + said.index(end) + 1
        alike(llama, drafted, PROMPT)


class TestChoosing:
    @pytest.mark.parametrize(
        "asked",
        [
            {"repetition_penalty": 1.3},
            {"min_new_tokens": 20, "eos_token_id": [5, 6, 7, 8, 9, 10]},
            {"bad_words_ids": [[31], [10, 51]]},
            {"no_repeat_ngram_size": 2},
            {"suppress_tokens": list(range(30, 60))},
            {"guidance_scale": 1.5},
            {"forced_eos_token_id": 9},
            {"sequence_bias": {(31,): -8.0}},
            {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 9},
            {"max_length": 33, "max_new_tokens": None},
            {"token_healing": False, "renormalize_logits": True},
        ],
        ids=lambda asked: next(iter(asked)),
    )
    def test_processors_are_obeyed(self, llama, drafted, asked):
        alike(llama, drafted, PROMPT, **asked)

    def test_a_processor_of_the_users_own_sees_each_token_once_and_in_order(self, llama, drafted):
        def ask(**asked):
            seen = []

            def record(said, scores):
                seen.append(said.shape[1])
                return scores.roll(3, dims=-1) if said.shape[1] % 5 == 0 else scores

            said = llama.generate(PROMPT, logits_processor=[record], **GREEDY, **asked)
            return said.tolist(), seen

        both(drafted, ask)

    def test_a_seed_draws_the_same_tokens(self, llama):
        drafted = Drafted(rows=(1, 2, 4))  # costs are measured first, which draws nothing
        for seed in range(4):

            def ask(seed=seed, **asked):
                torch.manual_seed(seed)
                given = {"do_sample": True, "temperature": 0.7, "top_k": 8, "max_new_tokens": 24}
                return llama.generate(PROMPT, **given, **asked).tolist()

            both(drafted, ask)


class TestGivenCaches:
    @pytest.mark.parametrize("trees", [True, False])
    @pytest.mark.parametrize("num_cached", [0, 8])
    def test_a_cache_is_gone_on_with_and_ends_up_as_it_does_alone(self, llama, trees, num_cached):
        def ask(**asked):
            cache = transformers.DynamicCache(config=llama.config)
            if num_cached:
                llama(PROMPT[:, :num_cached], **{CACHE: cache}, use_cache=True)
            given = {CACHE: cache, **GREEDY, **asked}
            first = llama.generate(PROMPT, **given)
            length = cache.get_seq_length()
            second = llama.generate(torch.cat([first, PROMPT], dim=1), **given)
            return second.tolist(), length, cache.get_seq_length()

        both(Drafted(costs=None, trees=trees), ask)

    def test_a_cache_of_the_whole_prompt_or_one_that_cannot_be_cut_is_refused(self, llama):
        cache = transformers.DynamicCache()
        llama(PROMPT, **{CACHE: cache}, use_cache=True)
        refuse(llama, "the given cache holds 21 tokens", PROMPT, **{CACHE: cache})
        model = model_of("Mistral", sliding_window=16)
        cache = transformers.DynamicCache(config=model.config)
        refuse(model, "cannot be cut", PROMPT, **{CACHE: cache})
        fixed = transformers.StaticCache(config=llama.config, max_cache_len=64)
        refuse(llama, "cannot be cut", PROMPT, **{CACHE: fixed})


class TestManyModels:
    def test_each_model_has_its_own_drafter_and_costs(self, llama):
        drafted = Drafted(rows=(1, 2, 4))
        other = model_of("Llama", vocab_size=2 * VOCAB_SIZE, num_hidden_layers=1)
        for model, prompt in ((llama, PROMPT), (other, PROMPT + VOCAB_SIZE), (llama, PROMPT)):
            alike(model, drafted, prompt)

    def test_a_history_of_another_vocabulary_is_refused(self, llama):
        drafted = Drafted(costs=None, history=SharedHistory(VOCAB_SIZE))
        other = model_of("Llama", vocab_size=2 * VOCAB_SIZE)
        alike(llama, drafted, PROMPT)
        refuse(other, "vocabulary", PROMPT, custom_generate=drafted)

    def test_an_answer_that_failed_is_not_remembered(self, llama):
        history = SharedHistory(VOCAB_SIZE)
        drafted = Drafted(costs=None, history=history)

        def fails(said, _):
            raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            llama.generate(PROMPT, custom_generate=drafted, stopping_criteria=[fails], **GREEDY)
        drafter = HostDrafter(VOCAB_SIZE, history=history)
        drafter.begin(PROMPT[0, 2:5].numpy().astype("uint32"))
        assert drafter.propose_chain(2).tolist() != PROMPT[0, 5:7].tolist()


class TestCosts:
    @pytest.fixture
    def clock(self, monkeypatch):
        """A clock that runs of a model move by what a row costs; tests set that."""
        clock = SimpleNamespace(now=0.0, us_of_row=0.0)
        run = TransformersHost.run

        def clocked(host, token_ids, parents):
            run(host, token_ids, parents)
            clock.now += 1e-6 * (100 + (len(token_ids) - 1) * clock.us_of_row)

        monkeypatch.setattr(TransformersHost, "run", clocked)
        clock.perf_counter = lambda: clock.now
        monkeypatch.setattr("coordgen_rs.adapters.host.time", clock)
        return clock

    def test_a_bad_moment_at_the_first_request_does_not_turn_drafts_off_for_good(
        self, llama, clock
    ):
        drafted = Drafted()
        assert drafted.costs is None
        clock.us_of_row = 100.0  # so that no draft pays
        alike(llama, drafted, PROMPT, max_new_tokens=4)
        assert drafted.costs == pytest.approx({1: 100, 2: 200, 4: 400, 8: 800, 16: 1600})
        clock.us_of_row = 1.0
        num_steps = []
        for _ in range(2):
            alike(llama, drafted, PROMPT, max_new_tokens=60)
            num_steps.append(drafted.num_steps)
        assert drafted.costs == pytest.approx({1: 100, 2: 101, 4: 103, 8: 107, 16: 115})
        assert num_steps[0] == 59
        assert num_steps[1] < 50

    def test_costs_that_are_given_are_shown_and_never_measured(self, llama, clock):
        given = [1.0, 1.5, 2.0]
        drafted = Drafted(rows=(1, 2, 4), costs=given)
        alike(llama, drafted, PROMPT, max_new_tokens=60)
        assert drafted.costs == {1: 1.0, 2: 1.5, 4: 2.0}
        assert Drafted(costs=None).costs is None

    def test_what_is_measured_between_steps_draws_nothing_and_stays_in_no_cache(self, llama):
        def ask(**asked):
            torch.manual_seed(5)
            cache = transformers.DynamicCache()
            given = {"do_sample": True, "max_new_tokens": 80, CACHE: cache, **asked}
            return llama.generate(PROMPT, **given).tolist(), cache.get_seq_length()

        both(Drafted(rows=(1, 2, 4)), ask)


class TestLongTexts:
    @pytest.mark.parametrize("trees", [True, False])
    def test_answers_go_past_the_longest_trained_text_as_they_do_alone(self, trees):
        model = model_of("Llama", max_position_embeddings=46)
        drafted = Drafted(costs=None, trees=trees)
        said = alike(model, drafted, PROMPT, max_new_tokens=54)
        assert len(said[0]) == PROMPT.shape[1] + 54

    def test_frequencies_that_grow_with_the_text_grow_as_they_do_alone(self):
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
        for prompt in (PROMPT, prompt_of(60)):

            def ask(prompt=prompt, **asked):
                model = model_of("Llama", max_position_embeddings=46, rope_parameters=rope)
                given = {**GREEDY, "max_new_tokens": 54, **asked}
                return model.generate(prompt, **given).tolist()  # frequencies stay grown

            both(Drafted(costs=None), ask)

    def test_positions_that_change_all_at_once_are_refused(self):
        factors = [1.0] * 4
        rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors}
        rope |= {"long_factor": [2.0] * 4, "original_max_position_embeddings": 46}
        sizes = {"max_position_embeddings": 256, "original_max_position_embeddings": 46}
        model = model_of("Phi3", rope_parameters=rope, **sizes)
        alike(model, Drafted(costs=None), PROMPT, max_new_tokens=20)
        refuse(model, "longrope", PROMPT, max_new_tokens=54)

    def test_no_draft_reaches_past_learned_positions(self, drafted):
        model = gpt2()
        said = alike(model, drafted, PROMPT, max_new_tokens=64 - PROMPT.shape[1] + 1)
        end = next(token for token in said[0][55:] if token not in said[0][21:55])
        asked = {"max_new_tokens": 200, "eos_token_id": end}
        alike(model, drafted, PROMPT, **asked)
        for custom in ({}, {"custom_generate": drafted}):
            with pytest.raises(IndexError):
                model.generate(PROMPT, max_new_tokens=200, **custom)

    def test_costs_are_measured_where_the_context_is_short(self):
        model = model_of("Llama", max_position_embeddings=46)
        alike(model, Drafted(), prompt_of(5), max_new_tokens=4)
        host = TransformersHost(model_of("Llama", max_position_embeddings=12))
        with pytest.raises(OptionError, match="too few"):
            measured_costs(host)
