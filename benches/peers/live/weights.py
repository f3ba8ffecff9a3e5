"""The peers' own forms of a GGUF file's weights, made where they are absent.

In: a GGUF file and a folder to keep things in. Out: a Q4_0 file (by llama.cpp's quantiser, from
cyllama), a Hugging Face directory of its float values (by coordgen's checkpoint reader), and the
int4 and fp32 folders that ONNX Runtime GenAI's builder makes of that (onnxruntime-genai, torch,
transformers, onnx-ir). Files stand under the hash of the GGUF, so another file gets others.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import quantize
from contest import ContestantFailedError
from genai_model import CONFIG_NAME

PRECISIONS = ("int4", "fp32")
_NAME_DIGITS = 12


class Weights:
    """All forms of one file.

    Attributes:
        gguf: The file.
        sha256: Its hash.
    """

    def __init__(self, gguf, work):
        """Raises OSError where the file cannot be read, or the folder not be made."""
        self.gguf = gguf
        with gguf.open("rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._place = work / f"{gguf.stem}-{self.sha256[:_NAME_DIGITS]}"
        self._place.mkdir(parents=True, exist_ok=True)

    def q4_0(self):
        """The Q4_0 file; raises ContestantFailedError."""
        return self._made(self._place / "Q4_0.gguf", self._quantize)

    def genai(self, precision):
        """The builder's folder of a precision; raises ContestantFailedError."""
        return self._made(self._place / f"genai-{precision}", self._build, precision)

    def hugging_face(self):
        """The directory of float32 values; raises ContestantFailedError."""
        return self._made(self._place / "hugging-face", self._dequantize)

    def _made(self, path, make, *arguments):
        """The path, once `make` has written it whole."""
        if path.exists():
            return path
        part = path.with_name(f"{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            make(part, *arguments)
        except ModuleNotFoundError as error:
            raise ContestantFailedError(
                f"no module named {error.name}: pip install --group peers"
            ) from error
        except Exception as error:
            raise ContestantFailedError(f"{path.name} cannot be made: {error}") from error
        part.rename(path)
        return path

    def _quantize(self, part):
        quantize.quantize(self.gguf, part)

    def _dequantize(self, part):
        from safetensors.numpy import save_file

        from coordgen_rs.convert.families.checkpoint import open_checkpoint

        checkpoint = open_checkpoint(self.gguf)
        part.mkdir()
        tensors = {name: tensor.load() for name, tensor in checkpoint.tensors.items()}
        save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
        (part / "config.json").write_text(json.dumps(llama_config(checkpoint.config)))
        (part / "tokenizer.json").write_text(checkpoint.read_tokenizer(), encoding="utf-8")
        (part / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
        )

    def _build(self, part, precision):
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        asked = ["-i", self.hugging_face(), "-o", part, "-p", precision, "-e", "cpu"]
        done = subprocess.run(
            [*builder, *map(str, asked), "-c", str(self._place / "cache")],
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0 or not (part / CONFIG_NAME).is_file():
            log = Path(f"{part}.log")
            log.write_text(done.stdout + done.stderr)
            said = done.stderr.strip().rpartition("\n")[2] or "no word"
            raise RuntimeError(
                f"the builder ended with {done.returncode}: {said} (all of it: {log})"
            )


def llama_config(config):
    """The config.json of a Llama without scaled positions, from a `ModelConfig`.

    Raises ValueError for another family: the builder would make another model of it.
    """
    theta = config.inv_freq[1] ** (-config.head_dim / 2)
    expected = [theta ** (-2 * index / config.head_dim) for index in range(len(config.inv_freq))]
    is_scaled = any(
        abs(ours / theirs - 1) > 1e-5
        for ours, theirs in zip(config.inv_freq, expected, strict=True)
    )
    if config.family != "llama" or is_scaled:
        raise ValueError(f"only an unscaled Llama, not this {config.family}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": round(theta, 2),
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.end_token_ids,
        "torch_dtype": "float32",
    }
