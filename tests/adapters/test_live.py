"""Adapters with their engines, where these are installed: the answer is the engine's own.

The models are tiny and have random weights; their scores lie far apart, so that no near tie falls
by rounding.
"""

from pathlib import Path

import numpy as np
import pytest

from checkpoints import CHECKPOINTS
from coordgen_rs import open_session
from coordgen_rs._core import HostDrafter, SharedHistory
from coordgen_rs.adapters.host import generate, make_drafter, measured_costs
from coordgen_rs.errors import OptionError

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


@pytest.fixture(scope="module")
def model():
    """A random Llama of transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        eos_token_id=None,
        pad_token_id=0,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).eval()


class TestTransformers:
    @pytest.mark.parametrize("takes_trees", [True, False])
    def test_the_answer_is_the_models(self, model, takes_trees):
        from coordgen_rs.adapters.transformers import TransformersHost

        check(TransformersHost(model, takes_trees=takes_trees))

    @pytest.mark.parametrize("trees", [True, False])
    def test_generate_takes_the_loop(self, model, trees):
        import torch

        from coordgen_rs.adapters.transformers import Drafted

        drafted = Drafted(trees=trees, costs=None)
        for prompt in PROMPTS:
            ids = torch.from_numpy(prompt.astype(np.int64))[None]
            asked = {"do_sample": False, "max_new_tokens": NUM_NEW, "repetition_penalty": 1.1}
            plain = model.generate(ids, **asked)
            ours = model.generate(ids, custom_generate=drafted, **asked)
            assert ours.tolist() == plain.tolist()
            assert drafted.num_steps <= NUM_NEW

    def test_an_answer_that_a_criterion_ends_is_remembered_up_to_there(self, model):
        import torch

        from coordgen_rs.adapters.transformers import Drafted

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

    def test_two_sequences_are_refused(self, model):
        import torch

        from coordgen_rs.adapters.transformers import Drafted

        ids = torch.tensor([[1, 2], [3, 4]])
        with pytest.raises(OptionError, match="2 sequences"):
            model.generate(ids, custom_generate=Drafted(costs=None), max_new_tokens=4)


class TestMlx:
    def test_the_answer_is_the_models(self):
        mx = pytest.importorskip("mlx.core")
        llama = pytest.importorskip("mlx_lm.models.llama")
        from coordgen_rs.adapters.mlx_lm import MlxHost

        mx.random.seed(3)
        check(MlxHost(self.model(llama), vocab_size=64, capacity=96))

    def test_scores_of_half_the_width_are_told_as_float32(self):
        mx = pytest.importorskip("mlx.core")
        llama = pytest.importorskip("mlx_lm.models.llama")
        from coordgen_rs.adapters.mlx_lm import MlxHost

        model = self.model(llama)
        model.set_dtype(mx.bfloat16)
        host = MlxHost(model, vocab_size=64, capacity=96)
        host.read(PROMPTS[0])
        scores = host.scores(0)
        assert scores.dtype == np.float32
        assert scores.argmax() == host.choose(0)

    def model(self, llama):
        args = llama.ModelArgs(
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


class TestGenai:
    def test_the_answer_is_that_of_the_folder(self, bundle_of, tmp_path: Path):
        genai = pytest.importorskip("onnxruntime_genai")
        pytest.importorskip("onnx")
        from coordgen_rs.adapters.onnxruntime_genai import GenaiHost
        from genai_folders import write_folder

        session = open_session(bundle_of("embedded", "fp32"))
        folder = write_folder(session.bundle, tmp_path / "folder")
        model = genai.Model(str(folder))
        check(GenaiHost(model, session.vocab_size, min(96, session.capacity)))


class TestLlamaCpp:
    @pytest.mark.parametrize("n_seq_max", [16, 1])
    def test_the_answer_is_that_of_the_file(self, tmp_path: Path, n_seq_max: int):
        pytest.importorskip("cyllama")
        gguf_files = pytest.importorskip("gguf_files")
        from coordgen_rs.adapters.llama_cpp import open_host

        path = gguf_files.write_gguf(tmp_path / "model.gguf", CHECKPOINTS["embedded"])
        host = open_host(path, context=256, n_seq_max=n_seq_max)
        assert host.takes_trees == (n_seq_max > 1)
        check(host)
        assert measured_costs(host, (1, 2), [1, 2, 3])[1] > 0
