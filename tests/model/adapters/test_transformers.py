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
    VOCAB_SIZE,
    Recorded,
    answers,
    gpt2,
    model_of,
    prompt_of,
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
        told = []
        for asked in ({}, {"custom_generate": drafted}):
            streamer = Recorded()
            llama.generate(PROMPT, streamer=streamer, do_sample=False, max_new_tokens=24, **asked)
            assert streamer.num_ends == 1
            told.append(streamer.told)
        assert told[0] == told[1]
        assert drafted.num_steps < 24

    def test_a_reader_in_another_thread_gets_the_text_and_ends(self, llama, drafted):
        texts = []
        for asked in ({}, {"custom_generate": drafted}):
            streamer = transformers.TextIteratorStreamer(tokenizer(), timeout=600)
            given = {"streamer": streamer, "do_sample": False, "max_new_tokens": 24, **asked}
            worker = threading.Thread(target=llama.generate, args=(PROMPT,), kwargs=given)
            worker.start()
            texts.append("".join(streamer))
            worker.join()
        assert texts[0] == texts[1]
        assert len(texts[0]) >= 24

    def test_a_streamer_that_fails_ends_the_answer_and_the_next_is_right(self, llama, drafted):
        class Failing(Recorded):
            def put(self, tokens):
                super().put(tokens)
                if len(self.told) == 6:
                    raise BrokenPipeError

        cache = transformers.DynamicCache()
        with pytest.raises(BrokenPipeError):
            llama.generate(
                PROMPT,
                custom_generate=drafted,
                streamer=Failing(),
                **{CACHE: cache},
                do_sample=False,
                max_new_tokens=24,
            )
        assert cache.get_seq_length() == PROMPT.shape[1] + 4
        plain, ours = answers(llama, drafted, PROMPT)
        assert plain == ours

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
        plain, _ = answers(llama, drafted, PROMPT)
        stop = words.decode(plain[0][PROMPT.shape[1] + 6 :][:3])
        asked = {"stop_strings": [stop], "tokenizer": words}
        plain, ours = answers(llama, drafted, PROMPT, **asked)
        assert plain == ours
        assert PROMPT.shape[1] < len(ours[0]) < PROMPT.shape[1] + 24

    def test_end_tokens_are_those_of_the_request(self, llama, drafted):
        plain, _ = answers(llama, drafted, PROMPT)
        said = plain[0][PROMPT.shape[1] :]
        for end in dict.fromkeys(said):
            plain, ours = answers(llama, drafted, PROMPT, eos_token_id=end)
            assert plain == ours
            assert len(ours[0]) == PROMPT.shape[1] + said.index(end) + 1
        plain, ours = answers(llama, drafted, PROMPT)
        assert plain == ours


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
        plain, ours = answers(llama, drafted, PROMPT, **asked)
        assert plain == ours

    def test_a_processor_of_the_users_own_sees_each_token_once_and_in_order(self, llama, drafted):
        seen = []

        def record(said, scores):
            seen[-1].append(said.shape[1])
            return scores.roll(3, dims=-1) if said.shape[1] % 5 == 0 else scores

        texts = []
        for asked in ({}, {"custom_generate": drafted}):
            seen.append([])
            given = {"logits_processor": [record], "do_sample": False, "max_new_tokens": 24}
            texts.append(llama.generate(PROMPT, **given, **asked).tolist())
        assert texts[0] == texts[1]
        assert seen[0] == seen[1]

    def test_a_seed_draws_the_same_tokens(self, llama):
        drafted = Drafted(rows=(1, 2, 4))  # costs are measured first, which draws nothing
        for seed in range(4):
            said = []
            for asked in ({}, {"custom_generate": drafted}):
                torch.manual_seed(seed)
                given = {"do_sample": True, "temperature": 0.7, "top_k": 8, "max_new_tokens": 24}
                said.append(llama.generate(PROMPT, **given, **asked).tolist())
            assert said[0] == said[1]


class TestGivenCaches:
    @pytest.mark.parametrize("trees", [True, False])
    @pytest.mark.parametrize("num_cached", [0, 8])
    def test_a_cache_is_gone_on_with_and_ends_up_as_it_does_alone(self, llama, trees, num_cached):
        found = []
        for asked in ({}, {"custom_generate": Drafted(costs=None, trees=trees)}):
            cache = transformers.DynamicCache(config=llama.config)
            if num_cached:
                llama(PROMPT[:, :num_cached], **{CACHE: cache}, use_cache=True)
            given = {CACHE: cache, "do_sample": False, **asked}
            first = llama.generate(PROMPT, max_new_tokens=24, **given)
            lens = [cache.get_seq_length()]
            again = torch.cat([first, PROMPT], dim=1)
            second = llama.generate(again, max_new_tokens=24, **given)
            found.append((second.tolist(), [*lens, cache.get_seq_length()]))
        assert found[0] == found[1]

    def test_a_cache_of_the_whole_prompt_is_refused(self, llama, drafted):
        cache = transformers.DynamicCache()
        llama(PROMPT, **{CACHE: cache}, use_cache=True)
        with pytest.raises(OptionError, match="the given cache holds 21 tokens"):
            llama.generate(PROMPT, custom_generate=drafted, **{CACHE: cache}, max_new_tokens=4)

    def test_a_cache_that_cannot_be_cut_is_refused(self, llama, drafted):
        model = model_of("Mistral", sliding_window=16)
        cache = transformers.DynamicCache(config=model.config)
        fixed = transformers.StaticCache(config=llama.config, max_cache_len=64)
        for each, given in ((model, cache), (llama, fixed)):
            with pytest.raises(OptionError, match="cannot be cut"):
                each.generate(PROMPT, custom_generate=drafted, **{CACHE: given}, max_new_tokens=4)


class TestManyModels:
    def test_each_model_has_its_own_drafter_and_costs(self, llama):
        drafted = Drafted(rows=(1, 2, 4))
        other = model_of("Llama", vocab_size=2 * VOCAB_SIZE, num_hidden_layers=1)
        for model, prompt in ((llama, PROMPT), (other, PROMPT + VOCAB_SIZE), (llama, PROMPT)):
            plain, ours = answers(model, drafted, prompt)
            assert plain == ours

    def test_a_history_of_another_vocabulary_is_refused(self, llama):
        drafted = Drafted(costs=None, history=SharedHistory(VOCAB_SIZE))
        other = model_of("Llama", vocab_size=2 * VOCAB_SIZE)
        answers(llama, drafted, PROMPT)
        with pytest.raises(OptionError, match="vocabulary"):
            other.generate(PROMPT, custom_generate=drafted, max_new_tokens=4)

    def test_an_answer_that_failed_is_not_remembered(self, llama):
        history = SharedHistory(VOCAB_SIZE)
        drafted = Drafted(costs=None, history=history)

        def fails(said, _):
            raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            llama.generate(
                PROMPT, custom_generate=drafted, max_new_tokens=4, stopping_criteria=[fails]
            )
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
        plain, ours = answers(llama, drafted, PROMPT, max_new_tokens=4)
        assert plain == ours
        assert drafted.costs == pytest.approx({1: 100, 2: 200, 4: 400, 8: 800, 16: 1600})
        clock.us_of_row = 1.0
        num_steps = []
        for _ in range(2):
            plain, ours = answers(llama, drafted, PROMPT, max_new_tokens=60)
            assert plain == ours
            num_steps.append(drafted.num_steps)
        assert drafted.costs == pytest.approx({1: 100, 2: 101, 4: 103, 8: 107, 16: 115})
        assert num_steps[0] == 59
        assert num_steps[1] < 50

    def test_costs_that_are_given_are_shown_and_never_measured(self, llama, clock):
        given = [1.0, 1.5, 2.0]
        drafted = Drafted(rows=(1, 2, 4), costs=given)
        answers(llama, drafted, PROMPT, max_new_tokens=60)
        assert drafted.costs == {1: 1.0, 2: 1.5, 4: 2.0}
        assert Drafted(costs=None).costs is None

    def test_what_is_measured_between_steps_draws_nothing_and_stays_in_no_cache(self, llama):
        drafted = Drafted(rows=(1, 2, 4))
        found = []
        for asked in ({}, {"custom_generate": drafted}):
            torch.manual_seed(5)
            cache = transformers.DynamicCache()
            given = {"do_sample": True, "max_new_tokens": 80, CACHE: cache, **asked}
            said = llama.generate(PROMPT, **given)
            found.append((said.tolist(), cache.get_seq_length()))
        assert found[0] == found[1]


class TestLongTexts:
    @pytest.mark.parametrize("trees", [True, False])
    def test_answers_go_past_the_longest_trained_text_as_they_do_alone(self, trees):
        model = model_of("Llama", max_position_embeddings=46)
        drafted = Drafted(costs=None, trees=trees)
        plain, ours = answers(model, drafted, PROMPT, max_new_tokens=54)
        assert plain == ours
        assert len(ours[0]) == PROMPT.shape[1] + 54

    def test_frequencies_that_grow_with_the_text_grow_as_they_do_alone(self):
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
        for num_tokens in (21, 60):
            said = []
            for asked in ({}, {"custom_generate": Drafted(costs=None)}):  # they stay grown
                model = model_of("Llama", max_position_embeddings=46, rope_parameters=rope)
                given = {"do_sample": False, "max_new_tokens": 54, **asked}
                said.append(model.generate(prompt_of(num_tokens), **given).tolist())
            assert said[0] == said[1]

    def test_positions_that_change_all_at_once_are_refused(self):
        factors = [1.0] * 4
        rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors}
        rope |= {"long_factor": [2.0] * 4, "original_max_position_embeddings": 46}
        sizes = {"max_position_embeddings": 256, "original_max_position_embeddings": 46}
        model = model_of("Phi3", rope_parameters=rope, **sizes)
        plain, ours = answers(model, Drafted(costs=None), PROMPT, max_new_tokens=20)
        assert plain == ours
        with pytest.raises(OptionError, match="longrope"):
            model.generate(PROMPT, custom_generate=Drafted(costs=None), max_new_tokens=54)

    def test_no_draft_reaches_past_learned_positions(self, drafted):
        model = gpt2()
        plain, ours = answers(model, drafted, PROMPT, max_new_tokens=64 - PROMPT.shape[1] + 1)
        assert plain == ours
        end = next(token for token in plain[0][55:] if token not in plain[0][21:55])
        asked = {"max_new_tokens": 200, "eos_token_id": end}
        plain, ours = answers(model, drafted, PROMPT, **asked)
        assert plain == ours
        for custom in ({}, {"custom_generate": drafted}):
            with pytest.raises(IndexError):
                model.generate(PROMPT, max_new_tokens=200, **custom)

    def test_costs_are_measured_where_the_context_is_short(self):
        model = model_of("Llama", max_position_embeddings=46)
        plain, ours = answers(model, Drafted(), prompt_of(5), max_new_tokens=4)
        assert plain == ours
        host = TransformersHost(model_of("Llama", max_position_embeddings=12))
        with pytest.raises(OptionError, match="too few"):
            measured_costs(host)
