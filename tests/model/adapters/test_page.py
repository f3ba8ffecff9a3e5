"""The examples of docs/engines.md run, each with a tiny model where it names a real one."""

import re
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from checkpoints import CHECKPOINTS, ROOT
from coordgen_rs import open_session

PAGE = (ROOT / "docs" / "engines.md").read_text()
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EXAMPLES: dict[str, str] = {}
for part in PAGE.split("\n## ")[1:]:
    for code in re.findall(r"^```py\n(.*?)^```", part, re.MULTILINE | re.DOTALL):
        EXAMPLES[part.partition("\n")[0]] = code


def run(heading: str, smaller: dict[str, str], **given: object) -> None:
    """Run the example below a heading, with some of its words replaced."""
    code = EXAMPLES[heading]
    for word, instead in {**smaller, "256": "24"}.items():
        assert word in code, word
        code = code.replace(word, instead)
    exec(compile(code, f"engines.md: {heading}", "exec"), dict(given))


@pytest.fixture(scope="module")
def tokenizer_file(bundle_of):
    bundle = open_session(bundle_of("embedded", "fp32")).bundle
    return bundle.file(bundle.manifest.tokenizer)


def test_transformers(tokenizer_file, tmp_path, capsys):
    tiny = pytest.importorskip("tiny_transformers")
    words = tiny.transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file))
    words.chat_template = CHAT
    words.save_pretrained(tmp_path)
    tiny.model_of("Llama", vocab_size=len(words)).save_pretrained(tmp_path)
    run("transformers", {"HuggingFaceTB/SmolLM2-135M-Instruct": str(tmp_path)})
    assert capsys.readouterr().out.strip()


def test_llama_cpp(tmp_path, monkeypatch, capsys):
    pytest.importorskip("cyllama")
    gguf_files = pytest.importorskip("gguf_files")
    name = "SmolLM2-135M-Instruct.Q4_0.gguf"
    chat = {"tokenizer.chat_template": CHAT}
    gguf_files.write_gguf(tmp_path / name, CHECKPOINTS["embedded"], metadata=chat)
    monkeypatch.chdir(tmp_path)
    run("llama.cpp", {"context=4096": "context=256", "threads=2": "threads=1"})
    assert capsys.readouterr().out.strip()


def test_onnx_runtime_genai(bundle_of, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime_genai")
    pytest.importorskip("onnx")
    from genai_folders import write_folder

    session = open_session(bundle_of("embedded", "fp32"))
    folder = write_folder(session.bundle, tmp_path / "folder")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    monkeypatch.chdir(tmp_path)
    sizes = {"49152": str(session.vocab_size), "4096": "128"}
    run("ONNX Runtime GenAI", sizes)
    assert capsys.readouterr().out.strip()


def test_mlx_lm(monkeypatch, capsys):
    pytest.importorskip("mlx.core")
    llama = pytest.importorskip("mlx_lm.models.llama")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    args = llama.ModelArgs(
        "llama", num_attention_heads=4, rms_norm_eps=1e-5, vocab_size=64, **sizes
    )
    words = SimpleNamespace(
        apply_chat_template=lambda messages, add_generation_prompt: [1, 2, 3],
        eos_token_ids={2},
        decode=str,
    )
    monkeypatch.setattr("mlx_lm.load", lambda name: (llama.Model(args), words))
    run("MLX-LM", {"49152": "64", "4096": "128"})
    assert capsys.readouterr().out.startswith("[")


def test_llama_cpp_python(monkeypatch, capsys):
    """It is not installed: what the page hands it is what its loop calls."""

    class Llama:
        def __init__(self, path, n_ctx, logits_all):
            assert logits_all
            self.n_ctx, self.n_vocab, self.n_tokens = lambda: n_ctx, lambda: 64, 0
            self.draft_model = None

        def reset(self):
            self.n_tokens = 0

        def eval(self, tokens):
            self.n_tokens += len(tokens)

        def __call__(self, prompt, max_tokens, temperature):
            assert self.n_tokens == 0
            drafted = self.draft_model(np.array([4, 5, 6, 4, 5], np.intc))
            assert drafted.dtype == np.intc
            return {"choices": [{"text": "again"}]}

    module = ModuleType("llama_cpp")
    module.Llama = Llama  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    code = EXAMPLES["llama-cpp-python"]
    exec(compile(code, "engines.md: llama-cpp-python", "exec"), {})
    assert capsys.readouterr().out == "again\n"


def test_vllm(monkeypatch):
    """It is not installed: the class that the page names is there."""
    taken = {}
    module = ModuleType("vllm")
    module.LLM = lambda name, speculative_config: taken.update(speculative_config)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    exec(compile(EXAMPLES["vLLM"], "engines.md: vLLM", "exec"), {})
    from coordgen_rs.adapters import vllm

    assert taken["model"] == f"{vllm.Proposer.__module__}.{vllm.Proposer.__name__}"


def test_sglang():
    """It is not installed: the worker is a name."""
    worker = SimpleNamespace()
    exec(compile(EXAMPLES["SGLang"], "engines.md: SGLang", "exec"), {"worker": worker})
    assert worker.ngram_corpus.batch_get(["one"], [[3, 4]], [2])[0].shape == (8,)


def test_an_engine_of_your_own():
    asked = []

    def verify(chain):
        asked.append(chain)
        return [*chain.tolist(), 7]

    run("An engine of your own", {}, prompt_ids=[4, 5, 6, 4, 5], verify=verify)
    assert 1 < len(asked) < 24


def test_each_adapter_of_the_table_is_there():
    named = re.findall(r"`adapters\.(\w+)\.(\w+)`", PAGE)
    assert len(named) >= 7
    for module, name in named:
        assert hasattr(import_module(f"coordgen_rs.adapters.{module}"), name)


def test_no_example_is_left_out():
    assert PAGE.count("```py\n") == len(EXAMPLES)
    names = {re.sub(r"\W+", "_", heading).lower() for heading in EXAMPLES}
    assert {f"test_{name}" for name in names} <= set(globals())
