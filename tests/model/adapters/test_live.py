"""Adapters with their engines, where these are installed: the answer is the engine's own.

The models are tiny and have random weights; their scores lie far apart, so that no near tie falls
by rounding.
"""

import json
import shutil
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs import open_session
from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters.host import generate, make_drafter, measured_costs
from coordgen_rs.adapters.llama_cpp import LlamaHost, open_host
from coordgen_rs.adapters.mlx_lm import MlxHost
from coordgen_rs.adapters.onnxruntime_genai import GenaiHost
from coordgen_rs.adapters.transformers import Drafted, TransformersHost
from coordgen_rs.errors import EngineError, OptionError, TokenOutOfRangeError

NUM_NEW = 24
RNG = np.random.default_rng(7)
PROMPTS = [np.tile(RNG.integers(3, 60, length), 3).astype(np.uint32) for length in (5, 14)]


def answer(host, prompt, drafter) -> tuple[list[int], int]:
    steps = list(generate(host, prompt, drafter=drafter, max_new_tokens=NUM_NEW))
    return [token for step in steps for token in step.token_ids], len(steps)


def check(host) -> None:
    """Ours says what the host says alone, in fewer steps, with and without costs."""
    total = 0
    for prompt in PROMPTS:
        expected, num_plain = answer(host, prompt, make_drafter(host, rows=(1,)))
        assert num_plain == NUM_NEW == len(expected)
        for costs in (None, [1.0, 1.1, 1.2, 1.4, 1.8]):
            said, num_steps = answer(host, prompt, make_drafter(host, costs=costs))
            assert said == expected
            total += num_steps
    room = host.capacity - len(PROMPTS[0]) + 1
    filling = {"drafter": make_drafter(host), "max_new_tokens": 10 * host.capacity}
    steps = list(generate(host, PROMPTS[0], **filling))
    assert sum(len(step.token_ids) for step in steps) == room
    assert total < 2 * len(PROMPTS) * NUM_NEW


def take_turns(one, other) -> None:
    """Two hosts that answer step by step in turns say what each says alone."""
    prompts = dict(zip((one, other), PROMPTS, strict=True))
    alone = [answer(host, prompt, make_drafter(host))[0] for host, prompt in prompts.items()]
    asked = {"max_new_tokens": NUM_NEW}
    running = [
        generate(host, prompt, drafter=make_drafter(host), **asked)
        for host, prompt in prompts.items()
    ]
    said: list[list[int]] = [[], []]
    for steps in zip_longest(*running):
        for tokens, step in zip(said, steps, strict=True):
            tokens += step.token_ids if step else []
    assert said == alone


@pytest.fixture(scope="module")
def model():
    """A random Llama of transformers."""
    tiny = pytest.importorskip("tiny_transformers")
    return tiny.model_of("Llama", max_position_embeddings=96)


class TestTransformers:
    @pytest.mark.parametrize("takes_trees", [True, False])
    def test_the_answer_is_the_models(self, model, takes_trees):
        check(TransformersHost(model, takes_trees=takes_trees))

    def test_an_answer_that_a_criterion_ends_is_remembered_up_to_there(self, model):
        import torch

        history = SharedHistory(64)
        prompt = torch.from_numpy(PROMPTS[0].astype(np.int64))[None]
        num_said = prompt.shape[1] + 5

        def has_said_five(said, _):
            return torch.tensor([said.shape[1] >= num_said])

        answer = model.generate(
            prompt,
            custom_generate=Drafted(costs=None, history=history),
            do_sample=False,
            max_new_tokens=NUM_NEW,
            stopping_criteria=[has_said_five],
        )
        assert answer.shape == (1, num_said)
        drafter = HostDrafter(64, history=history)
        drafter.begin(answer[0, -5:-2].numpy().astype(np.uint32))
        assert drafter.propose_chain(2).tolist() == answer[0, -2:].tolist()


class TestMlx:
    @pytest.fixture
    def mx(self):
        mx = pytest.importorskip("mlx.core")
        mx.random.seed(3)
        return mx

    def model(self, **sizes):
        llama = pytest.importorskip("mlx_lm.models.llama")
        args = llama.ModelArgs(
            **sizes,
            model_type="llama",
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=64,
            num_attention_heads=4,
            rms_norm_eps=1e-5,
            vocab_size=64,
            num_key_value_heads=2,
        )
        return llama.Model(args)

    def test_the_answer_is_the_models(self, mx):
        check(MlxHost(self.model(), vocab_size=64, capacity=96))

    def test_scores_of_half_the_width_are_told_as_float32(self, mx):
        model = self.model()
        model.set_dtype(mx.bfloat16)
        host = MlxHost(model, vocab_size=64, capacity=96)
        host.read(PROMPTS[0])
        scores = host.scores(0)
        assert scores.dtype == np.float32
        assert scores.argmax() == host.choose(0)

    def test_a_text_within_the_window_is_answered_and_a_longer_one_refused(self, mx):
        windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 97}
        model = self.model(**windows)
        check(MlxHost(model, vocab_size=64, capacity=96))
        with pytest.raises(OptionError, match=r"window of 97 tokens.*below 97"):
            MlxHost(model, vocab_size=64, capacity=97)

    def test_a_token_that_is_forbidden_must_be_one(self, mx):
        with pytest.raises(TokenOutOfRangeError, match="forbidden_ids"):
            MlxHost(self.model(), vocab_size=64, capacity=96, forbidden_ids=[64])


@pytest.fixture(scope="module")
def folder(bundle_of, tmp_path_factory):
    pytest.importorskip("onnxruntime_genai")
    pytest.importorskip("onnx")
    from genai_folders import write_folder

    session = open_session(bundle_of("embedded", "fp32"))
    return write_folder(session.bundle, tmp_path_factory.mktemp("genai") / "folder")


@pytest.fixture(scope="module")
def genai_host(folder):
    """A function from a capacity and more to a host of the folder."""
    import onnxruntime_genai as genai

    vocab_size = json.loads((folder / "genai_config.json").read_text())["model"]["vocab_size"]
    model = genai.Model(str(folder))

    def opened(capacity=96, *, more_columns=0, **options):
        return GenaiHost(model, vocab_size + more_columns, capacity, **options)

    return opened


class TestGenai:
    def test_the_answer_is_that_of_the_folder(self, genai_host):
        check(genai_host())

    def test_two_hosts_of_a_model_take_turns(self, genai_host):
        take_turns(genai_host(), genai_host())

    def test_what_is_not_the_models_is_refused(self, genai_host):
        for given, error, match in (
            ({"capacity": 100_000}, OptionError, "capacity of 100000"),
            ({"more_columns": 1}, OptionError, "the logits have"),
            ({"capacity": 0}, OptionError, "capacity is 0"),
            ({"forbidden_ids": [10**6]}, TokenOutOfRangeError, "forbidden_ids"),
        ):
            with pytest.raises(error, match=match):
                genai_host(**given)

    def test_a_model_that_cannot_take_tokens_back_is_refused(self, folder, tmp_path: Path):
        import onnxruntime_genai as genai

        from genai_folders import edit_config

        windowed = shutil.copytree(folder, tmp_path / "windowed")
        window = {"window_size": 16, "layers": [0, 1], "slide_key_value_cache": False}
        edit_config(windowed, decoder__sliding_window=window)
        model = genai.Model(str(windowed))
        with pytest.raises(OptionError, match="cannot take tokens back"):
            GenaiHost(model, 1536, 96)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    pytest.importorskip("cyllama")
    gguf_files = pytest.importorskip("gguf_files")
    where = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return gguf_files.write_gguf(where, CHECKPOINTS["embedded"])


class TestLlamaCpp:
    @pytest.mark.parametrize("n_seq_max", [16, 1])
    def test_the_answer_is_that_of_the_file(self, path, n_seq_max: int):
        host = open_host(path, context=256, n_seq_max=n_seq_max)
        assert host.takes_trees == (n_seq_max > 1)
        check(host)
        assert measured_costs(host, (1, 2), [1, 2, 3])[1] > 0

    def test_two_hosts_of_a_file_take_turns(self, path):
        take_turns(open_host(path, context=256), open_host(path, context=256))

    @pytest.mark.parametrize(
        "samplers",
        [
            {"add_penalties": (64, 1.3, 0.0, 0.0), "add_greedy": ()},
            {"add_top_k": (8,), "add_temp": (0.8,), "add_dist": (7,)},
        ],
        ids=lambda samplers: next(iter(samplers)),
    )
    def test_a_sampler_with_a_memory_or_a_seed_says_the_same(self, path, samplers):
        from cyllama.llama import llama_cpp

        model = llama_cpp.LlamaModel(str(path))
        said = []
        for rows in ((1,), (1, 2, 4, 8, 16)):
            params = llama_cpp.LlamaContextParams()
            params.n_ctx, params.n_seq_max, params.kv_unified = 256, 16, True
            params.n_threads = params.n_threads_batch = 1
            sampler = llama_cpp.LlamaSampler(llama_cpp.LlamaSamplerChainParams())
            for add, given in samplers.items():
                getattr(sampler, add)(*given)
            host = LlamaHost(llama_cpp, llama_cpp.LlamaContext(model, params), sampler, 16)
            said.append(
                [answer(host, prompt, make_drafter(host, rows=rows))[0] for prompt in PROMPTS]
            )
        assert said[0] == said[1]

    def test_what_is_not_there_is_refused(self, path, tmp_path: Path):
        (tmp_path / "bad.gguf").write_bytes(b"nope")
        for wrong in ("bad.gguf", "none.gguf"):
            with pytest.raises(EngineError, match=f"cannot open .*{wrong}"):
                open_host(tmp_path / wrong)
        for given, error, match in (
            ({"n_seq_max": 300}, EngineError, "cannot open"),  # llama.cpp has 256
            ({"n_seq_max": 0}, OptionError, "n_seq_max is 0"),
            ({"context": -1}, OptionError, "context is -1"),
            ({"forbidden_ids": [10**6]}, TokenOutOfRangeError, "forbidden_ids"),
        ):
            with pytest.raises(error, match=match):
                open_host(path, **{"context": 256} | given)
        with pytest.raises(OptionError, match="15 branches, the host 2"):
            make_drafter(open_host(path, context=256, n_seq_max=2))

    def test_answers_go_past_the_window_as_they_do_alone(self, tmp_path: Path):
        pytest.importorskip("cyllama")
        gguf_files = pytest.importorskip("gguf_files")
        path = gguf_files.write_gguf(tmp_path / "model.gguf", random_gemma(tmp_path / "gemma"))
        prompt = np.resize(PROMPTS[0], 290)  # llama.cpp's cache of a window has 256 places or more
        for n_seq_max in (16, 1):
            host = open_host(path, context=512, n_seq_max=n_seq_max)
            expected, _ = answer(host, prompt, make_drafter(host, rows=(1,)))
            assert answer(host, prompt, make_drafter(host))[0] == expected


def random_gemma(folder: Path) -> Path:
    """A Gemma 3 with windows of 16 tokens, as a Hugging Face directory."""
    tiny = pytest.importorskip("tiny_transformers")
    from tokenizers import Tokenizer, models

    sizes = {"sliding_window": 16, "head_dim": 16, "hidden_size": 64, "num_hidden_layers": 7}
    model = tiny.model_of("Gemma3", query_pre_attn_scalar=16, **{**sizes, "initializer_range": 0.3})
    model.save_pretrained(folder)
    vocabulary = {chr(48 + token): token for token in range(tiny.VOCAB_SIZE)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="0")).save(str(folder / "tokenizer.json"))
    return folder
